"""The desk at which people see the alerts: it reads them as they come, and looks up the payments that they name."""

import json

import millrace
from applications.following import Follower
from millrace.cli.output import print_text

from .payments import ALERTS, alert_of, payment_of


class Desk(Follower):
    """Reads alerts as they come; one that names another payment than its own ends that with SystemExit.

    Attributes:
        paid_s: when the payment of a number was written (`time.perf_counter`); the alerts of these payments are shown.
        latencies_s: of the same payments, how long after that the alert was read here.
    """

    def __init__(self, address: str) -> None:
        super().__init__(address, ALERTS)
        self.paid_s: dict[int, float] = {}
        self.latencies_s: list[float] = []

    def take(self, event: millrace.Event, came_s: float) -> None:
        alert = alert_of(json.loads(event.value))
        payment, before = (payment_of(self.client.fetch_event(place)) for place in (alert.payment, alert.before))
        if (payment.number, payment.card, before.card) != (alert.number, alert.card, alert.card):
            raise SystemExit(f"{alert} names {payment}, and before that {before}")
        if alert.number in self.paid_s:
            latency_s = came_s - self.paid_s[alert.number]
            self.latencies_s.append(latency_s)
            minutes = (payment.at_us - before.at_us) / 60e6
            shown = f"{before}, and {minutes:.0f} minutes later {payment}"
            print_text(f"{latency_s:6.2f} s  {alert.card}  {alert.rule:<9}  {shown}")
