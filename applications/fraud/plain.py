"""What must be told, without Spark: each payment beside all payments of its card before it."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple

import millrace
from millrace import blocking

from .limits import KNOWN_PAYMENTS, SMALL_CENTS, Limits
from .payments import PAYMENTS, Alert, Payment, kilometres, payment_of

MINUTE_US: Final = 60_000_000
HOUR_US: Final = 60 * MINUTE_US


class Placed(NamedTuple):
    """A payment, and where it is in its stream."""

    payment: Payment
    place: millrace.EventPosition


def placed(client: blocking.Client, start: millrace.CutChoice | str, end: millrace.CutChoice | str) -> list[Placed]:
    """Return the payments of a slice, those of each card in their order."""
    with client.reader(PAYMENTS, start=start, end=end) as reader:
        return [Placed(payment_of(event), event.position) for event in reader]


def alerts(payments: Iterable[Placed], limits: Limits) -> list[Alert]:
    """Return what must be told of payments, if they are all that is known."""
    of_card: defaultdict[str, list[Placed]] = defaultdict(list)
    for each in payments:
        of_card[each.payment.card].append(each)
    found = []
    for card, mine in of_card.items():
        for index, (payment, place) in enumerate(mine):
            if (suspicion := _suspicion(payment, mine[:index], limits)) is not None:
                rule, before = suspicion
                found.append(Alert(card, payment.number, rule, place, before.place))
    return found


def _suspicion(payment: Payment, earlier: list[Placed], limits: Limits) -> tuple[str, Placed] | None:
    """Return the rule that a payment breaks, and the payment before it that makes it suspicious."""
    tests = [each for each in earlier if each.payment.cents <= SMALL_CENTS]
    if tests and len(earlier) >= KNOWN_PAYMENTS:
        is_soon = payment.at_us - tests[-1].payment.at_us <= limits.minutes * MINUTE_US
        if is_soon and payment.cents * len(earlier) > limits.times * sum(each.payment.cents for each in earlier):
            return "tested", tests[-1]
    visits = [(each, each.payment.city) for each in earlier if each.payment.city is not None]
    if visits and payment.city is not None:
        before, city = visits[-1]
        hours = (payment.at_us - before.payment.at_us) / HOUR_US
        if kilometres(city, payment.city) > limits.kmh * hours:
            return "far apart", before
    return None
