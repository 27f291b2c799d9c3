"""What is watched: payments with cards, what their owners dispute of them, and the alerts, each a stream."""

import json
from collections.abc import Sequence
from math import asin, cos, radians, sin, sqrt
from typing import Any, Final, NamedTuple

import millrace
from millrace import blocking

PAYMENTS: Final = "cards/payments"
DISPUTES: Final = "cards/disputes"
ALERTS: Final = "cards/alerts"
SEGMENTS: Final = 2
EARTH_RADIUS_KM: Final = 6371.0


class City(NamedTuple):
    """Where somebody pays, in degrees."""

    name: str
    latitude: float
    longitude: float


class Payment(NamedTuple):
    """One payment.

    Attributes:
        number: of the payment; they ascend in the order of time.
        at_us: when, in Unix microseconds.
        city: None: over the network.
    """

    card: str
    number: int
    at_us: int
    cents: int
    city: City | None

    def value(self) -> bytes:
        """Return the event."""
        value: dict[str, object] = {"number": self.number, "cents": self.cents}
        if self.city is not None:
            value |= {"city": self.city.name, "latitude": self.city.latitude, "longitude": self.city.longitude}
        return json.dumps(value).encode()

    def __str__(self) -> str:
        """Tell it to people."""
        return f"${self.cents / 100:.2f} {'online' if self.city is None else f'in {self.city.name}'}"


class Alert(NamedTuple):
    """What is told of a payment.

    Attributes:
        number: of the payment.
        rule: why it is told: `tested` or `far apart`.
        payment: where it is in the stream of payments.
        before: where the payment of the same card is that makes it suspicious.
    """

    card: str
    number: int
    rule: str
    payment: millrace.EventPosition
    before: millrace.EventPosition


def kilometres(one: City, other: City) -> float:
    """Return how far two places are apart, on a sphere."""
    lat_1, lat_2 = radians(one.latitude), radians(other.latitude)
    height, width = lat_2 - lat_1, radians(other.longitude - one.longitude)
    return 2 * EARTH_RADIUS_KM * asin(sqrt(sin(height / 2) ** 2 + cos(lat_1) * cos(lat_2) * sin(width / 2) ** 2))


def payment_of(event: millrace.Event) -> Payment:
    """Return the payment that an event is."""
    value = json.loads(event.value)
    city = City(value["city"], value["latitude"], value["longitude"]) if "city" in value else None
    return Payment(event.key or "", value["number"], event.timestamp_us or 0, value["cents"], city)


def alert_of(value: Any) -> Alert:
    """Return the alert that a row of Spark is, or the value of an event when it is decoded."""
    payment, before = (
        millrace.EventPosition(place["segment"], place["offset"], place["index"])
        for place in (value["payment"], value["before"])
    )
    return Alert(value["card"], value["number"], value["rule"], payment, before)


def create(client: blocking.Client) -> bool:
    """Create the streams. False if one of them was there before."""
    fixed = millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(SEGMENTS))
    are_new = [client.create_stream(stream, fixed) for stream in (PAYMENTS, DISPUTES, ALERTS)]
    return all(are_new)


def pay(client: blocking.Client, payments: Sequence[Payment]) -> None:
    """Write payments, keyed by their cards."""
    with client.writer(PAYMENTS) as writer:
        writer.write_many(
            [payment.value() for payment in payments],
            keys=[payment.card for payment in payments],
            timestamps_us=[payment.at_us for payment in payments],
        )


def dispute(client: blocking.Client, payments: Sequence[Payment]) -> None:
    """Write that the owners of the cards have not made these payments."""
    with client.writer(DISPUTES) as writer:
        values = [json.dumps({"number": payment.number}).encode() for payment in payments]
        writer.write_many(values, keys=[payment.card for payment in payments])


def disputes(client: blocking.Client) -> set[int]:
    """Return the numbers of the payments that are disputed by now."""
    with client.reader(DISPUTES, end=millrace.TAIL) as reader:
        return {json.loads(event.value)["number"] for event in reader}
