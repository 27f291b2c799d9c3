"""The console over real HTTP."""

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from millrace.server.console.access import Access
from millrace.server.console.api import Api
from millrace.server.console.busy import Busy
from millrace.server.console.counters import FeedCounters
from millrace.server.console.feeds import Feeds
from millrace.server.console.options import FeedOptions
from millrace.server.console.site import ConsoleSite
from millrace.server.front.counters import FrontCounters
from millrace.server.host.metrics import Metrics
from tests.support.waiting import PATIENCE_S


class Subject:
    """What the console asks."""

    def __init__(self) -> None:
        self.problem = ""
        self.live = True
        self.numbers = FrontCounters(frames_total=7)

    async def is_live(self) -> bool:
        return self.live


@pytest.fixture
def subject() -> Subject:
    return Subject()


async def measured_already() -> None:
    """Nothing has to be measured."""


@pytest.fixture
def site(subject: Subject) -> Iterator[ConsoleSite]:
    def address() -> str:
        return "127.0.0.1:1"

    def statistics() -> dict[str, FrontCounters]:
        return {"front": subject.numbers}

    def health() -> str:
        return subject.problem

    access = Access(token="", host="127.0.0.1")
    site = ConsoleSite(
        host="127.0.0.1",
        port=0,
        metrics=Metrics(),
        statistics=statistics,
        health=health,
        busy=Busy,
        measure=measured_already,
        is_live=subject.is_live,
        access=access,
        feeds=Feeds(address=address, access=access, options=FeedOptions(), counters=FeedCounters()),
        api=Api(address=address, access=access, statistics=statistics, health=health),
    )
    yield site
    site.close()


def get(site: ConsoleSite, path: str, *, method: str = "GET") -> tuple[int, bytes]:
    request = urllib.request.Request(f"http://127.0.0.1:{site.port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_metrics_are_the_statistics(site: ConsoleSite) -> None:
    status, text = get(site, "/metrics")
    assert status == 200
    samples = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }
    assert samples["millrace_front_frames_total"] == 7
    assert samples["millrace_healthy"] == 1


@pytest.mark.parametrize("path", ["/health", "/readyz"])
def test_health_says_what_is_wrong(site: ConsoleSite, subject: Subject, path: str) -> None:
    status, text = get(site, path)
    assert (status, json.loads(text)) == (200, {"healthy": True, "problem": ""})
    subject.problem = "the disk has not answered for 3.1 s"
    status, text = get(site, path)
    assert (status, json.loads(text)) == (503, {"healthy": False, "problem": subject.problem})


def test_a_server_that_is_not_well_lives_while_its_loop_runs(site: ConsoleSite, subject: Subject) -> None:
    subject.problem = "the disk is full"
    status, text = get(site, "/livez")
    assert (status, json.loads(text)) == (200, {"live": True})
    subject.live = False
    status, text = get(site, "/livez")
    assert (status, json.loads(text)) == (503, {"live": False})


def test_the_figures_of_all_parts_are_json(site: ConsoleSite, subject: Subject) -> None:
    subject.problem = "the disk is full"
    status, text = get(site, "/api/v1/server")
    content = json.loads(text)
    assert (status, content["statistics"]["front"]["frames_total"]) == (200, 7)
    assert (content["healthy"], content["problem"]) == (False, "the disk is full")


def test_the_front_page_is_for_people(site: ConsoleSite) -> None:
    status, text = get(site, "/")
    assert (status, text[:15]) == (200, b"<!doctype html>")
    assert get(site, "/", method="HEAD") == (200, b"")
    status, text = get(site, "/nothing")
    assert status == 404
    assert b"/metrics" in text


@pytest.mark.parametrize("path", ["/", "/metrics", "/streams/a/b/events"])
def test_another_method_is_refused_and_the_right_one_named(site: ConsoleSite, path: str) -> None:
    status, text = get(site, path, method="POST")
    assert status == 405
    assert "GET" in json.loads(text)["error"]


@pytest.mark.slow
def test_a_feed_of_a_server_that_does_not_answer_is_refused_for_now(site: ConsoleSite) -> None:
    status, text = get(site, "/streams/a/b/events")
    assert status == 503
    assert "cannot be read now" in json.loads(text)["error"]


def test_a_client_that_sends_slowly_delays_no_other(site: ConsoleSite) -> None:
    """Behaviour 50: slowloris, at the console too."""
    with socket.create_connection(("127.0.0.1", site.port)) as slow:
        slow.sendall(b"GET /hea")
        assert get(site, "/health")[0] == 200


def test_the_other_format_of_prometheus_is_spoken(site: ConsoleSite) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{site.port}/metrics?x=1", headers={"Accept": "application/openmetrics-text; version=1.0.0"}
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        assert response.headers["Content-Type"].startswith("application/openmetrics-text")
        assert response.read().endswith(b"# EOF\n")


def test_what_is_not_http_is_nobodys_problem(site: ConsoleSite, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_connection(("127.0.0.1", site.port)) as strange:
        strange.sendall(b"\x18\0\0\0\0\0\r\n\r\n")
        strange.shutdown(socket.SHUT_WR)
        while strange.recv(4096):
            pass
    assert get(site, "/health")[0] == 200
    assert capfd.readouterr().err == ""
