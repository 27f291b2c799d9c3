"""The desk at which people see the alerts: it reads them as they come, and looks up the payments that they name."""

import json
import threading
import time
from contextlib import suppress
from typing import Final

import millrace
from millrace import blocking
from millrace.cli.output import print_text

from .payments import ALERTS, Alert, alert_of, payment_of

PATIENCE_S: Final = 300.0


class Desk:
    """Reads alerts in a thread of its own. A context manager.

    Attributes:
        paid_s: when the payment of a number was written (`time.perf_counter`); the alerts of these payments are shown.
        latencies_s: of the same payments, how long after that the alert was read here.
    """

    def __init__(self, address: str) -> None:
        self._client = blocking.connect(address)
        self._changed = threading.Condition()
        self._count = 0
        self._wrong = ""
        self._thread = threading.Thread(target=self._follow)
        self.paid_s: dict[int, float] = {}
        self.latencies_s: list[float] = []

    def __enter__(self) -> "Desk":
        """Begin to read, with the first alert."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Read no more."""
        self._client.close()
        self._thread.join()

    def wait_for(self, count: int) -> None:
        """Wait until so many alerts have come.

        Raises:
            SystemExit: they do not come, or one names another payment than its own.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._count >= count or self._wrong, PATIENCE_S):
                raise SystemExit(f"{self._count} of {count} alerts came within {PATIENCE_S:g} s")
            if self._wrong:
                raise SystemExit(self._wrong)

    def _follow(self) -> None:
        # A reader whose client is closed by another thread may raise either.
        with suppress(millrace.ClientClosedError, RuntimeError):
            with self._client.reader(ALERTS, start=millrace.HEAD) as reader:
                while events := reader.next_events():
                    now_s = time.perf_counter()
                    for event in events:
                        self._take(alert_of(json.loads(event.value)), now_s)
                    with self._changed:
                        self._count += len(events)
                        self._changed.notify_all()

    def _take(self, alert: Alert, now_s: float) -> None:
        payment, before = (payment_of(self._client.fetch_event(place)) for place in (alert.payment, alert.before))
        if (payment.number, payment.card, before.card) != (alert.number, alert.card, alert.card):
            self._wrong = f"{alert} names {payment}, and before that {before}"
        if alert.number in self.paid_s:
            latency_s = now_s - self.paid_s[alert.number]
            self.latencies_s.append(latency_s)
            minutes = (payment.at_us - before.at_us) / 60e6
            shown = f"{before}, and {minutes:.0f} minutes later {payment}"
            print_text(f"{latency_s:6.2f} s  {alert.card}  {alert.rule:<9}  {shown}")
