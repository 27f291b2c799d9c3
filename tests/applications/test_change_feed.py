"""What observers see over HTTP is the derived state, each change once, whatever is cut off or killed."""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from urllib.request import urlopen

import pytest

import millrace
from applications.change_feed import __main__ as command
from applications.change_feed.messages import Message, Messages
from applications.change_feed.observing import Fetch, Observer, WrongError, by_curl, by_http
from applications.change_feed.page import page_of, page_server
from applications.change_feed.state import STATE, Sensor, State, changed, create, derive, encoded, truth
from applications.sensors.recorded import READINGS as READINGS_STREAM
from applications.sensors.recorded import Reading, recorded, write
from millrace import blocking
from millrace.client.testing import SETTINGS_SMALL, server
from tests.support.browser import CHROMIUM, Browser
from tests.support.tables import table
from tests.support.waiting import PATIENCE_S, until


@pytest.mark.slow
def test_each_change_is_seen_once_although_observers_and_the_server_end() -> None:
    """Behaviours 22, 27, 39 and 61: as a process of its own, as a user runs it."""
    finished = subprocess.run(
        [sys.executable, "-m", "applications.change_feed"], capture_output=True, text=True, check=False
    )

    assert finished.returncode == 0, finished.stdout + finished.stderr
    count = 3 if shutil.which("curl") else 2
    assert f"{count} observers have seen each of 6,000 changes once" in finished.stderr
    assert "the server was killed" in finished.stderr
    rows = [line.rsplit(maxsplit=2) for line in finished.stdout.splitlines() if line.startswith(("one ", "curl "))]
    assert [changes for _, changes, _ in rows] == ["6000"] * count
    assert all(int(connections) > 1 for _, _, connections in rows)


READINGS = [Reading("a", 1, 3.0), Reading("b", 2, 5.0), Reading("a", 3, 1.0), Reading("a", 4, 2.0)]


def test_the_state_is_the_last_the_lowest_and_the_highest_of_each_sensor() -> None:
    assert truth(READINGS) == {"a": Sensor(3, 2.0, 1.0, 3.0), "b": Sensor(1, 5.0, 5.0, 5.0)}


def messages_of(readings: Iterable[Reading]) -> list[bytes]:
    """What a feed would say of measurements."""
    state: dict[str, Sensor] = {}
    said = []
    for number, reading in enumerate(readings):
        state[reading.sensor] = changed(state, reading)
        content = {"key": reading.sensor, "value": json.dumps(asdict(state[reading.sensor]))}
        said.append(f"id: {number}\ndata: {json.dumps(content)}\n\n".encode())
    return said


END = b'event: end\ndata: {"reason": "sealed"}\n\n'


def feed_of(*answers: list[bytes]) -> tuple[Fetch, list[str]]:
    """A feed that gives these answers one after another, and the places that were asked for."""
    asked: list[str] = []

    @contextmanager
    def lines(last_id: str) -> Iterator[Iterable[bytes]]:
        asked.append(last_id)
        yield b"".join(answers[len(asked) - 1]).splitlines(keepends=True)

    def fetch(url: str, last_id: str) -> AbstractContextManager[Iterable[bytes]]:
        assert url == "the url"
        return lines(last_id)

    return fetch, asked


def test_an_observer_comes_back_to_where_it_was_cut_off() -> None:
    said = messages_of(READINGS)
    # The second answer ends inside of a message, which is not counted.
    fetch, asked = feed_of(said[:2], [said[2], said[3][:-1]], [said[3], END])
    observer = Observer("the url", fetch)

    observer.follow()

    assert asked == ["", "1", "2"]
    assert observer.state == truth(READINGS)
    assert (observer.changes, observer.connections) == (4, 3)


def test_an_observer_that_leaves_comes_back_after_what_it_has_seen() -> None:
    said = messages_of(READINGS)
    fetch, asked = feed_of(said, said[2:], [END])
    observer = Observer("the url", fetch, leaves_after=2)

    observer.follow()

    assert asked == ["", "1", "3"]
    assert observer.state == truth(READINGS)


@table("order", [[0, 0], [1, 0, 3], [2]])
def test_a_change_that_is_missing_or_comes_twice_is_told(order: list[int]) -> None:
    said = messages_of(READINGS)
    fetch, _ = feed_of([said[number] for number in order])

    with pytest.raises(WrongError, match=r"of a change . came after change ."):
        Observer("the url", fetch).follow()


@pytest.mark.parametrize("kind", ["truncated", "failed"])
def test_a_feed_that_cannot_say_everything_is_told(kind: str) -> None:
    fetch, _ = feed_of([f'event: {kind}\ndata: {{"error": "x"}}\n\n'.encode()])

    with pytest.raises(WrongError, match=kind):
        Observer("the url", fetch).follow()


def test_the_check_sees_an_observer_that_has_not_seen_all() -> None:
    said, state = messages_of(READINGS), truth(READINGS)
    for answer, derived, complaint in (
        (said, state, None),
        (said[:3], state, "curl has seen 3 of 4 changes"),
        (said, truth(READINGS[:3]), "the state is"),
    ):
        fetch, _ = feed_of([*answer, END])
        observer = Observer("the url", fetch)
        observer.follow()
        if complaint is None:
            command.check({"curl": observer}, state, derived, count=4)
        else:
            with pytest.raises(SystemExit, match=complaint):
                command.check({"curl": observer}, state, derived, count=4)


def test_messages_are_read_as_the_standard_says() -> None:
    lines = [
        b": a comment\r\n", b"id: 1\r\n", b"data: a\r\n", b"data:b\r\n", b"data\r\n", b"strange: x\r\n", b"\r\n",
        b"id: 2\n", b"\n",
        b"event: kind\n", b"data:  c\n", b"\n",
        b"id: 3\0\n", b"data: d\n", b"\n",
        b"id: 4\n", b"data: not ended\n",
    ]  # fmt: skip
    messages = Messages("0")

    read = [(message, messages.last_id) for message in messages.read(lines)]

    assert read == [
        (Message("1", "message", "a\nb\n"), "1"),
        (Message("2", "kind", " c"), "2"),
        (Message("2", "message", "d"), "2"),
    ]
    assert messages.last_id == "2"


FETCHES = [by_http, *([by_curl] if shutil.which("curl") else [])]


@pytest.mark.parametrize("fetch", FETCHES)
def test_an_answer_that_is_no_feed_is_an_error(fetch: Fetch) -> None:
    with server(console="127.0.0.1:0") as running:
        url = command.feed_url(running)
        with pytest.raises(OSError, match="404"), fetch(url, ""):
            pass
        running.kill()
        with pytest.raises(OSError), fetch(url, ""):  # noqa: PT011  # what the system says
            pass


@pytest.mark.parametrize("fetch", FETCHES)
def test_an_observer_that_was_cut_off_before_the_end_hears_of_it(fetch: Fetch) -> None:
    """After the last change and before the end: the server says that nothing will come."""
    with server(console="127.0.0.1:0") as running, blocking.connect(running.address) as client:
        client.create_stream(STATE)
        with client.writer(STATE) as writer:
            for reading in READINGS:
                writer.write(encoded(truth([reading])[reading.sensor]), key=reading.sensor + str(reading.timestamp_us))
        client.seal_stream(STATE)
        observer = Observer(command.feed_url(running), fetch, leaves_after=len(READINGS))

        observer.follow()

        assert (observer.changes, observer.connections) == (len(READINGS), 2)


def test_the_page_is_served() -> None:
    with page_server() as origin, urlopen(page_of(origin, "http://x/?from=head"), timeout=PATIENCE_S) as page:
        assert page.url == f"{origin}/?feed=http%3A%2F%2Fx%2F%3Ffrom%3Dhead"
        assert b"new EventSource(" in page.read()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.asyncio
async def test_a_browser_shows_the_state_and_comes_back_by_itself() -> None:
    """Each change is seen once by a real browser, over a kill of the server."""
    readings = recorded()[-600:]

    def shown(browser: Browser) -> tuple[State, int]:
        rows = browser.evaluate(
            "[...document.getElementById('rows').rows].map(row => [...row.cells].map(cell => cell.innerText))"
        )
        state = {row[0]: Sensor(int(row[4]), *map(float, row[1:4])) for row in rows}
        return state, int(browser.evaluate("document.getElementById('seen').innerText"))

    with page_server() as origin, Browser() as browser:
        settings = {**SETTINGS_SMALL, "MILLRACE_FEED_ORIGINS": origin}
        with server(settings=settings, console=command.CONSOLE) as running:
            async with millrace.connect(running.address) as client:
                await create(client)
                deriving = asyncio.create_task(derive(client))
                browser.open(page_of(origin, command.feed_url(running)))
                await write(client, readings[:300])
                await until(lambda: shown(browser) == (truth(readings[:300]), 300))
                await asyncio.to_thread(running.kill)
                await asyncio.to_thread(running.start)
                await write(client, readings[300:])
                await client.seal_stream(READINGS_STREAM)
                await deriving
                await asyncio.to_thread(
                    browser.wait_for, "document.getElementById('said').innerText === 'that was all'"
                )
                assert shown(browser) == (truth(readings), 600)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_a_page_that_was_refused_tries_again() -> None:
    """A browser does not by itself, and a server that recovers refuses for a while."""
    said = "document.getElementById('said')?.innerText"
    with page_server() as origin, Browser() as browser:
        settings = {"MILLRACE_FEED_ORIGINS": origin, "MILLRACE_FEED_COUNT_MAX": "1"}
        with server(settings=settings, console=command.CONSOLE) as running:
            with blocking.connect(running.address) as client:
                client.create_stream(STATE)
                with urlopen(command.feed_url(running), timeout=PATIENCE_S):
                    browser.open(page_of(origin, command.feed_url(running)))
                    browser.wait_for(f"{said} === 'refused'")
                with client.writer(STATE) as writer:
                    writer.write(encoded(Sensor(1, 2.0, 2.0, 2.0)), key="a")
                client.seal_stream(STATE)
            browser.wait_for(f"{said} === 'that was all'")
            assert browser.evaluate("document.getElementById('seen').innerText") == "1"


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_a_browser_reads_nothing_for_a_page_of_an_origin_that_is_not_listed() -> None:
    with page_server() as origin, Browser() as browser, server(console=command.CONSOLE) as running:
        with blocking.connect(running.address) as client:
            client.create_stream(STATE)
        browser.open(page_of(origin, command.feed_url(running)))
        said = "document.getElementById('said')?.innerText"
        assert browser.wait_for(f"{said} !== 'connecting' && {said}") == "refused"
