"""Payments that a small model makes from a seed, with thieves among those who pay.

It follows the simulator of the "Practical Handbook" of *Reproducible Machine Learning for Credit Card Fraud Detection*
(Machine Learning Group, Brussels): each card has its own rate and its own usual amount. In place of its grid there are
cities of the United States, whose places travel inside the PyPI package `vega_datasets`.
"""

from collections.abc import Iterator
from random import Random
from typing import Final, NamedTuple

from millrace.examples.demo.data import rows_of, unix_us_of

from .payments import City, Payment, kilometres

CARDS: Final = 130
DAYS: Final = 60
BEGIN_US: Final = unix_us_of("2026/03/01")
AIRPORTS: Final = ("ATL", "BOS", "DEN", "IAH", "JFK", "LAX", "MIA", "MSP", "ORD", "PHX", "SEA", "SFO")
"""The cities have the places of these airports."""
MINUTE_US: Final = 60_000_000
DAY_US: Final = 24 * 60 * MINUTE_US

PAYMENTS_PER_DAY: Final = (0.4, 3.0)
USUAL_CENTS: Final = (500, 10_000)
TEST_CENTS: Final = (50, 200)
ONLINE: Final = 0.25
LARGE: Final = 0.02
"""The part of the honest payments that is several times as large as usual."""
TINY: Final = 0.06
"""The part that is as small as the test of a thief: parking, a coffee."""
JOURNEY: Final = 0.03
JOURNEY_KMH: Final = 700
DAYS_PER_THEFT: Final = 25
"""The mean for each card. In life it is years."""
COPY_DISTANCE_KM: Final = 1000


class Simulated(NamedTuple):
    """Payments in the order of time, and the numbers of those that the owners of the cards will dispute."""

    payments: list[Payment]
    disputed: frozenset[int]


class _Made(NamedTuple):
    """A payment that has no number yet."""

    at_us: int
    card: str
    cents: int
    city: City | None
    is_disputed: bool = False


def simulated(seed: int) -> Simulated:
    """Return the payments of all cards.

    Raises:
        ModuleNotFoundError: the package with the places is not installed.
    """
    cities = [
        City(row["city"], float(row["latitude"]), float(row["longitude"]))
        for row in rows_of("airports.csv")
        if row["iata"] in AIRPORTS
    ]
    made = [each for number in range(CARDS) for each in _card(f"card-{number:03}", cities, seed=seed)]
    made.sort(key=lambda each: (each.at_us, each.card))
    payments = [Payment(each.card, number, each.at_us, each.cents, each.city) for number, each in enumerate(made)]
    return Simulated(payments, frozenset(number for number, each in enumerate(made) if each.is_disputed))


def _card(card: str, cities: list[City], *, seed: int) -> Iterator[_Made]:
    """Yield the payments with one card: those of its owner, and those of thieves."""
    chance = Random(f"{seed} {card}")
    usual = chance.uniform(*USUAL_CENTS)
    per_day = chance.uniform(*PAYMENTS_PER_DAY)
    city = home = chance.choice(cities)
    at_us = BEGIN_US
    while (at_us := at_us + int(chance.expovariate(per_day) * DAY_US)) < BEGIN_US + DAYS * DAY_US:
        if chance.random() < JOURNEY:
            there = home if city != home else chance.choice(cities)
            at_us += int((kilometres(city, there) / JOURNEY_KMH + 2) * 60 * MINUTE_US)
            city = there
        yield _Made(at_us, card, _honest_cents(chance, usual), None if chance.random() < ONLINE else city)
        if chance.random() < 1 / (DAYS_PER_THEFT * per_day):
            if chance.random() < 0.5:
                yield from _stolen(chance, card, at_us, usual=usual)
            else:
                far = [each for each in cities if kilometres(city, each) >= COPY_DISTANCE_KM]
                yield from _copied(chance, card, at_us, usual=usual, city=chance.choice(far))


def _honest_cents(chance: Random, usual: float) -> int:
    kind = chance.random()
    if kind < TINY:
        return chance.randint(*TEST_CENTS)
    cents = chance.gauss(usual, usual / 2)
    if cents <= 0:
        cents = chance.uniform(0, 2 * usual)
    return 1 + int(cents * chance.uniform(3, 12) if kind < TINY + LARGE else cents)


def _stolen(chance: Random, card: str, at_us: int, *, usual: float) -> Iterator[_Made]:
    """Yield what a thief does who knows the number of a card: see whether it works, then shop with it."""
    at_us += chance.randint(10, 600) * MINUTE_US
    for _ in range(chance.randint(1, 2)):
        yield _Made(at_us, card, chance.randint(*TEST_CENTS), None)
        at_us += chance.randint(1, 5) * MINUTE_US
    at_us += int(chance.expovariate(1 / 12) * MINUTE_US)
    yield _Made(at_us, card, int(usual * chance.uniform(2.5, 12)), None, is_disputed=True)


def _copied(chance: Random, card: str, at_us: int, *, usual: float, city: City) -> Iterator[_Made]:
    """Yield what a thief does who has copied a card: pay in a city that is far from its owner."""
    for _ in range(chance.randint(1, 2)):
        at_us += int((2 + chance.expovariate(1 / 90)) * MINUTE_US)
        yield _Made(at_us, card, int(usual * chance.uniform(0.5, 3)), city, is_disputed=True)
