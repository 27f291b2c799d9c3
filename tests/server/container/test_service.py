"""Objects that several services need are made once, by whichever service declares them."""

import pytest

from millrace.server.container.service import Collaborators


class Clock:
    """Given."""


class Loop:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock


class Requests:
    def __init__(self, loop: Loop) -> None:
        self.loop = loop


def test_an_object_is_made_once_of_what_it_needs() -> None:
    clock = Clock()
    made = Collaborators(
        [clock], {Requests: lambda made: Requests(made.get(Loop)), Loop: lambda made: Loop(made.get(Clock))}
    )
    requests = made.get(Requests)
    assert requests.loop is made.get(Loop)
    assert requests.loop.clock is clock
    assert made.get(Requests) is requests


def test_an_object_that_nothing_makes_is_an_error() -> None:
    with pytest.raises(KeyError):
        Collaborators([], {}).get(Clock)
