"""Checks that nothing stays pinned when nobody uses it any more."""

import gc
from collections.abc import Iterator

import pytest

from millrace.server.container.state.container_state import ContainerState


@pytest.fixture(autouse=True)
def _all_pins_are_released(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a test that ran a server, only tails, merged segments and open transactions are pinned."""
    yield
    if request.node.get_closest_marker("asyncio") is None:
        return
    for state in gc.get_objects():
        if type(state) is ContainerState:
            caches = state.caches.values()
            counts = [dict(cache.pin_counts) for cache in caches]
            own = len(state.unflushed.keys() | state.merged.keys()) + state.open_transactions.pins_count
            assert sum(sum(each.values()) for each in counts) == own, counts
