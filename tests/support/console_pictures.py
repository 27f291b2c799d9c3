"""Makes the pictures of the console in the documentation, of a real server under a load that rises and falls.

    python -m tests.support.console_pictures

It takes two minutes, and needs a Chromium. Segments split and merge by the policy of the stream, as fast as the
settings below let them.
"""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import millrace
from millrace import blocking
from millrace.client.testing import SETTINGS_SMALL, server

from .browser import Browser

FOLDER: Final = Path(__file__).resolve().parents[2] / "docs" / "images"
STREAM: Final = "shop/orders"
SETTINGS: Final = {
    **SETTINGS_SMALL,
    "MILLRACE_STREAMS_TICK_S": "0.5",
    "MILLRACE_STREAMS_FAST_WINDOW_S": "2",
    "MILLRACE_STREAMS_SLOW_WINDOW_S": "3",
    "MILLRACE_STREAMS_SPLIT_AFTER_S": "3",
    "MILLRACE_STREAMS_MERGE_AFTER_S": "4",
}
LOAD: Final = ((10.0, 60), (15.0, 250), (20.0, 800), (15.0, 300), (22.0, 40))
"""For so many seconds, so many events per second."""
TURN_S: Final = 0.1
WIDTH: Final = 1200
HEIGHT: Final = 1500


@contextmanager
def loaded(address: str) -> Iterator[threading.Thread]:
    """Write and consume while the load lasts."""
    over = threading.Event()

    def write() -> None:
        chance = random.Random(7)
        with blocking.connect(address) as client, client.writer(STREAM) as writer:
            cursor = client.cursors(STREAM)
            for seconds, per_s in LOAD:
                for turn in range(int(seconds / TURN_S)):
                    for _ in range(int(per_s * TURN_S)):
                        # Half of the orders are from few customers, whose keys are near each other.
                        customer = chance.randrange(40) if chance.random() < 0.5 else chance.randrange(5000)
                        order = f'{{"customer": {customer}, "amount": {chance.randrange(1, 200)}}}'
                        writer.write(order.encode(), key=f"customer-{customer}")
                    writer.flush()
                    if turn % 50 == 0:
                        cursor.set("billing", millrace.TAIL)
                    if over.wait(TURN_S):
                        return

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield thread
    finally:
        over.set()
        thread.join()


def wait_until_drawn(browser: Browser, part: str) -> None:
    """Wait until the page has put something new in the place of a part of it, which it does with each look."""
    browser.wait_for(f"!!document.querySelector({part!r})")
    browser.evaluate(f"document.querySelector({part!r}).dataset.drawn = 'before'")
    browser.wait_for(f"document.querySelector({part!r})?.dataset.drawn === undefined")


def main() -> None:
    """Write the pictures."""
    FOLDER.mkdir(exist_ok=True)
    with server(settings=SETTINGS, console="127.0.0.1:0") as running, blocking.connect(running.address) as client:
        policy = millrace.ScalingPolicy.by_events_per_s(100, min_segments=2)
        client.create_stream(
            STREAM,
            millrace.StreamConfig(scaling=policy, retention=millrace.RetentionPolicy.by_time(max_age_s=7 * 86400)),
        )
        for name in ("shop/returns", "plant/sensor-1", "plant/sensor-2"):
            client.create_stream(name)
        client.bookmarks(STREAM).save("before-the-sale")
        client.cursors(STREAM).set("archive", millrace.HEAD)
        with Browser() as browser:
            browser.look_like("light", width=WIDTH, height=HEIGHT)
            browser.open(f"http://{running.console_address}/#/streams/{STREAM}")
            with loaded(running.address) as load:
                load.join(timeout=sum(seconds for seconds, _ in LOAD) - 3)
                for scheme in ("light", "dark"):
                    browser.look_like(scheme, width=WIDTH, height=HEIGHT)
                    browser.evaluate("window.scrollTo(0, 0)")
                    wait_until_drawn(browser, "#stream h1")
                    browser.screenshot(FOLDER / f"console-stream-{scheme}.png")
                browser.look_like("light", width=WIDTH, height=560)
                browser.evaluate("location.hash = '#/server'")
                wait_until_drawn(browser, "#server h2")  # for the second time, from which on there are rates
                browser.screenshot(FOLDER / "console-server.png")


if __name__ == "__main__":
    main()
