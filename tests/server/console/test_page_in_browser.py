"""The page of the console in a real browser: what is seen, what grows while one watches, and what cannot run."""

import json
from collections.abc import Iterator

import pytest

import millrace
from millrace import blocking
from millrace.client.testing import SETTINGS_SMALL, TestServer, server
from tests.support.browser import CHROMIUM, Browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed"),
]

STREAM = "shop/orders"
HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=1</script>'
TOKEN = "s3crät"


@pytest.fixture(scope="module")
def running() -> Iterator[TestServer]:
    with server(settings={**SETTINGS_SMALL, "MILLRACE_FRONT_TOKEN": TOKEN}, console="127.0.0.1:0") as started:
        yield started


@pytest.fixture
def client(running: TestServer) -> Iterator[blocking.Client]:
    with blocking.connect(running.address, token=TOKEN) as client:
        yield client
        for stream in list(client.list_streams()):
            client.seal_stream(stream)
            client.delete_stream(stream)


@pytest.fixture
def browser(running: TestServer) -> Iterator[Browser]:
    """A browser that has given the token, and sees nothing yet."""
    with Browser() as browser:
        browser.look_like("light", width=1200, height=1400)
        browser.open(f"http://{running.console_address}/")
        give_token(browser, TOKEN)
        browser.wait_for("!!document.querySelector('#streams')")
        browser.listen()
        browser.complaints.clear()
        yield browser
        assert browser.evaluate("document.title") == "Millrace"
        assert browser.complaints == []


def give_token(browser: Browser, token: str) -> None:
    browser.wait_for("!!document.querySelector('#token')")
    browser.evaluate(f"document.querySelector('#token').value = {json.dumps(token)}")
    browser.evaluate("document.querySelector('#token-form').requestSubmit()")


def write(client: blocking.Client, *values: str, key: str = "k") -> None:
    with client.writer(STREAM) as writer:
        for value in values:
            writer.write(value.encode(), key=key)


def text_of(browser: Browser, selector: str) -> str:
    return str(browser.evaluate(f"document.querySelector('{selector}')?.innerText ?? ''"))


def go(browser: Browser, view: str) -> None:
    browser.evaluate(f"location.hash = '#/{view}'")


def test_the_token_is_asked_for_until_it_is_right_and_is_kept_for_the_tab(running: TestServer) -> None:
    """Behaviour 53: it is in no address, and in nothing that outlives the tab."""
    with Browser() as browser:
        browser.open(f"http://{running.console_address}/")
        give_token(browser, "wrong")
        give_token(browser, TOKEN)
        browser.wait_for("document.querySelector('#streams')?.innerText.includes('no stream')")
        browser.wait_for("document.querySelector('#status').className === 'good'")
        assert browser.evaluate("location.href").endswith("/")
        assert browser.evaluate("[localStorage.length, document.cookie]") == [0, ""]
        # It did not ask again: the token is still there when the page is loaded once more.
        browser.reload()
        browser.wait_for("document.querySelector('#streams')?.innerText.includes('no stream')")
        addresses = browser.evaluate("performance.getEntriesByType('resource').map((entry) => entry.name)")
        assert addresses
        assert not any("s3cr" in address for address in addresses)


def test_streams_are_listed_and_searched(client: blocking.Client, browser: Browser) -> None:
    for name in (STREAM, *(f"plant/sensor-{number:02}" for number in range(60))):
        client.create_stream(name)
    browser.wait_for("document.querySelectorAll('#streams tbody tr').length === 50")
    browser.evaluate("[...document.querySelectorAll('button')].find((each) => each.innerText === 'Next page').click()")
    browser.wait_for("document.querySelectorAll('#streams tbody tr').length === 11")
    assert STREAM in text_of(browser, "#streams")
    search = "const search = document.querySelector('#search'); search.value = '{}'; search.form.requestSubmit()"
    browser.evaluate("{" + search.format("ORDERS") + "}")
    browser.wait_for(f"document.querySelector('#streams tbody').innerText.startsWith('{STREAM}')")
    browser.evaluate("{" + search.format("plant/sensor-1") + "}")
    browser.wait_for("document.querySelectorAll('#streams tbody tr').length === 10")
    browser.evaluate("document.querySelector('#streams a').click()")
    browser.wait_for("document.querySelector('h1')?.innerText.startsWith('plant/sensor-10')")


HOLD_ANSWERS = """
window.held = [];
const fetched = window.fetch;
window.fetch = async (path, options) => {
  const answer = await fetched(path, options);
  if (path.includes("contains=returns")) await new Promise((release) => held.push(release));
  return answer;
};
"""
"""Answers to one search come when the test says so."""


def test_an_answer_to_an_earlier_search_does_not_replace_that_to_a_later_one(
    client: blocking.Client, browser: Browser
) -> None:
    for name in ("shop/orders", "shop/returns"):
        client.create_stream(name)
    browser.wait_for("document.querySelectorAll('#streams tbody tr').length === 2")
    browser.evaluate("{" + HOLD_ANSWERS + "}")
    search = "document.querySelector('#search').value = '{}'; document.querySelector('#search').form.requestSubmit()"
    browser.evaluate(search.format("returns"))
    browser.wait_for("held.length > 0")
    browser.evaluate(search.format("orders"))
    browser.wait_for("document.querySelector('#streams tbody')?.innerText.startsWith('shop/orders')")
    # What the list shows from here on, up to the next look.
    browser.evaluate(
        "window.shown = []; new MutationObserver(() => shown.push(document.querySelector('#streams').innerText))"
        ".observe(document.querySelector('#streams'), { childList: true })"
    )
    browser.evaluate("held.forEach((release) => release())")
    browser.wait_for("shown.length > 0")
    assert "shop/orders" in str(browser.evaluate("shown[0]"))


def test_segments_are_rectangles_that_grow_and_split_while_one_watches(
    client: blocking.Client, browser: Browser
) -> None:
    """Figure 5: keys upwards, time to the right."""
    client.create_stream(STREAM, millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(2)))
    low, high = client.stream_info(STREAM).open_segments
    write(client, "a", "b", "c")
    go(browser, f"streams/{STREAM}")
    browser.wait_for("document.querySelectorAll('#picture .segment').length === 2")

    def boxes() -> dict[str, dict[str, float]]:
        """Return where each segment is in the picture as it was drawn last."""
        found: dict[str, dict[str, float]] = browser.evaluate(
            "Object.fromEntries([...document.querySelectorAll('#picture .segment')].map((segment) => {"
            " const box = segment.querySelector('.outline').getBBox(); return [segment.dataset.segment,"
            " {left: box.x, right: box.x + box.width, top: box.y, bottom: box.y + box.height}] }))"
        )
        return found

    drawn = boxes()
    lower, upper = drawn[str(low.segment_id)], drawn[str(high.segment_id)]
    assert lower["top"] == pytest.approx(upper["bottom"])
    assert lower["bottom"] - lower["top"] == pytest.approx(upper["bottom"] - upper["top"])
    assert (lower["left"], lower["right"]) == pytest.approx((upper["left"], upper["right"]))
    # What is written while one watches is measured: both are coloured, in strips.
    write(client, *("x" for _ in range(50)))
    browser.wait_for("document.querySelectorAll('#picture .segment rect:not(.heat-0):not(.outline)').length > 0")

    info = client.scale_stream(STREAM, seal=[low.segment_id], ranges=[(0, 0.25), (0.25, 0.5)])
    browser.wait_for("document.querySelectorAll('#picture .segment').length === 4")
    drawn = boxes()
    first, second, _ = (drawn[str(segment.segment_id)] for segment in info.open_segments)
    before = drawn[str(low.segment_id)]
    assert before["right"] == pytest.approx(first["left"], abs=1.01) == pytest.approx(second["left"], abs=1.01)
    assert first["top"] == pytest.approx(second["bottom"])
    assert before["top"] == pytest.approx(second["top"])
    # The picture is as wide as before and the time is more: what is over shrinks, what is open grows.
    browser.wait_for(
        f"document.querySelector('[data-segment=\"{low.segment_id}\"] .outline').getBBox().width"
        f" < {before['right'] - before['left'] - 5}"
    )
    assert boxes()[str(info.open_segments[0].segment_id)]["right"] == pytest.approx(upper["right"])
    browser.wait_for("document.querySelector('#explain').innerText.includes('asked for')")
    browser.wait_for("document.querySelector('#stream').innerText.includes('everything is kept')")


def test_what_others_have_named_is_text_and_nothing_else(client: blocking.Client, browser: Browser) -> None:
    client.create_stream(STREAM, millrace.StreamConfig(tags=(HOSTILE[:100],)))
    client.cursors(STREAM).set(HOSTILE, millrace.HEAD)
    client.bookmarks(STREAM).save(HOSTILE)
    client.begin_transaction(STREAM, name=HOSTILE)
    with client.writer(STREAM) as writer:
        writer.write(HOSTILE.encode(), key=HOSTILE, headers={HOSTILE: HOSTILE.encode()})
        writer.write(b"\xff\xfe", key="k", timestamp_us=(1 << 63) - 1)
    go(browser, f"streams/{STREAM}")
    browser.wait_for("document.querySelector('#cuts')?.innerText.includes('<script>')")
    assert text_of(browser, "#cuts tbody tr").split("\t")[1] == "2"  # events not read
    browser.evaluate("document.querySelector('#show').click()")
    browser.wait_for("document.querySelectorAll('#events tbody tr').length === 2")
    rows = text_of(browser, "#events")
    assert rows.count(HOSTILE) >= 3
    assert "base 64: //4=" in rows
    assert " us" in rows  # a time that no calendar has
    assert HOSTILE[:100] in text_of(browser, "#stream")
    go(browser, "transactions")
    browser.wait_for("document.querySelector('#transactions')?.innerText.includes('<script>')")
    assert browser.evaluate("document.querySelectorAll('main img, main script').length") == 0
    client.abort_transaction(HOSTILE)


def test_markup_and_code_are_refused_by_the_browser_too(running: TestServer) -> None:
    """The policy that is sent with the page: a mistake in a script of ours would show nothing, and run nothing."""
    with Browser() as browser:
        browser.open(f"http://{running.console_address}/")
        browser.wait_for("!!document.querySelector('#token')")
        for code in (
            "document.body.innerHTML = '<b>x</b>'",
            "document.body.append(document.createElement('script').text = 'x')",
        ):
            refused = browser.evaluate(
                f"(() => {{ try {{ {code}; return '' }} catch (error) {{ return error.name }} }})()"
            )
            assert refused == "TypeError", code


def test_events_are_shown_from_a_place_by_a_key_and_as_they_come(client: blocking.Client, browser: Browser) -> None:
    client.create_stream(STREAM)
    write(client, *(f"old-{number}" for number in range(60)))
    client.bookmarks(STREAM).save("here")
    write(client, "after", key="ada")
    go(browser, f"streams/{STREAM}")
    browser.wait_for("!!document.querySelector('#show')")
    browser.evaluate("document.querySelector('#show').click()")
    browser.wait_for("document.querySelectorAll('#events tbody tr').length === 50")
    browser.evaluate(
        "[...document.querySelectorAll('button')].find((each) => each.innerText === 'Next events').click()"
    )
    browser.wait_for("document.querySelectorAll('#events tbody tr').length === 11")
    browser.evaluate("document.querySelector('#from').value = 'bookmark:here'")
    browser.evaluate("document.querySelector('#show').click()")
    browser.wait_for("document.querySelectorAll('#events tbody tr').length === 1")
    assert "after" in text_of(browser, "#events")
    browser.evaluate("document.querySelector('#from').value = 'nowhere'")
    browser.evaluate("document.querySelector('#show').click()")
    browser.wait_for("document.querySelector('#problem').innerText.includes('bookmark:NAME')")
    browser.complaints.clear()  # that an answer was 400 is one

    browser.evaluate("document.querySelector('#key').value = 'ada'")
    browser.evaluate("document.querySelector('#live').click()")
    browser.wait_for("document.querySelector('#events-said').innerText === 'waiting for events'")
    # By then the server has opened the feed, at the tail.
    browser.wait_for(
        "(fetch('/metrics').then((answer) => answer.text())"
        ".then((text) => { window.feeds = /^millrace_feed_open 1/m.test(text) }), window.feeds)"
    )
    write(client, "not this", key="bob")
    write(client, "live-1", "live-2", key="ada")
    browser.wait_for("document.querySelectorAll('#events tbody tr').length === 2")
    assert text_of(browser, "#events tbody tr").split("\t")[2] == "live-2"
    client.seal_stream(STREAM)
    browser.wait_for("document.querySelector('#events-said').innerText.includes('sealed')")
    assert browser.evaluate("document.querySelector('#live').getAttribute('aria-pressed')") == "false"


def test_a_server_that_is_away_is_told_and_the_page_comes_back_with_it(
    running: TestServer, client: blocking.Client, browser: Browser
) -> None:
    client.create_stream(STREAM)
    go(browser, f"streams/{STREAM}")
    browser.wait_for("document.querySelectorAll('#picture .segment').length === 1")
    running.kill()
    browser.wait_for("document.querySelector('#problem').innerText.includes('does not answer')")
    browser.wait_for("document.querySelector('#status').className === 'bad'")
    running.start()
    browser.wait_for("document.querySelector('#problem').innerText === ''")
    browser.wait_for("document.querySelector('#status').innerText.startsWith('healthy')")
    browser.complaints.clear()  # that connections were refused


NARROW = """
[document.documentElement.scrollWidth <= innerWidth,
 [...document.querySelectorAll('button')].every((button) => button.getBoundingClientRect().height < 40),
 [...document.querySelectorAll('td.name')].every((cell) => cell.getBoundingClientRect().width >= 9 * 14),
 [...document.querySelectorAll('.field')].every((field) => field.getBoundingClientRect().height < 40)]
"""


def test_a_phone_shows_all_of_it_and_breaks_no_word_into_letters(client: blocking.Client, browser: Browser) -> None:
    client.create_stream(STREAM)
    client.cursors(STREAM).set("billing", millrace.HEAD)
    client.bookmarks(STREAM).save("before-the-sale")
    write(client, "x" * 1000, key="a-customer-with-a-rather-long-name")
    browser.look_like("dark", width=390, height=1200)
    for view, shown in (
        ("streams", "#streams td.name"),
        (f"streams/{STREAM}", "#cuts td.name"),
        ("server", "#server td.text"),
        ("transactions", "#transactions"),
    ):
        go(browser, view)
        browser.wait_for(f"!!document.querySelector('{shown}')")
        if view.endswith(STREAM):
            browser.evaluate("document.querySelector('#show').click()")
            browser.wait_for("document.querySelectorAll('#events tbody tr').length === 1")
        assert browser.evaluate(NARROW) == [True] * 4, view
