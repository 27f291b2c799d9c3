"""Checks what a test leaves in its containers: pins, and admitted changes that never became durable."""

import gc
from collections.abc import Iterator

import pytest

from millrace.server.container.container import SegmentContainer
from millrace.server.container.state.container_state import ContainerState

from .views import differences


@pytest.fixture(autouse=True)
def _containers_are_settled(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a test that ran a server, no pin is left, and the admitted view is the durable one (behaviour 97).

    Containers of earlier tests may wait for the collector, also those of mutants, whose views differ. What is frozen is
    not listed.
    """
    gc.freeze()
    yield
    created = gc.get_objects()
    gc.unfreeze()
    if request.node.get_closest_marker("asyncio") is None:
        return
    for found in created:
        if type(found) is ContainerState:
            _check_pins(found)
        elif type(found) is SegmentContainer:
            _check_views(found)


def _check_pins(state: ContainerState) -> None:
    """Only tails, merged segments, targets of unreadable ones and open transactions are pinned."""
    counts = [dict(cache.pin_counts) for cache in state.caches.values()]
    links = [segment.link for segment in state.merged.values() if segment.link is not None]
    targets = {link.target_id for link in links if link.is_unreadable}
    own = len(state.unflushed.keys() | state.merged.keys() | targets) + state.open_transactions.pins_count
    assert sum(sum(each.values()) for each in counts) == own, counts


def _check_views(container: SegmentContainer) -> None:
    """Check the admitted view; a log that failed leaves admitted what never became durable."""
    has_ended = container.has_failed or container.loss is not None or container.fence is not None
    if not has_ended:
        assert differences(container) == [], differences(container)
