import pytest

import millrace
from benchmarks.many_scales import measure


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("is_empty", [False, True])
async def test_the_first_and_the_last_scalings_are_measured(
    millrace_server: millrace.testing.TestServer, *, is_empty: bool
) -> None:
    measured = await measure(millrace_server.address, 4, is_empty=is_empty)
    assert measured.keys() == {"scaling", "reader at HEAD"}
    assert min(min(medians_s) for medians_s in measured.values()) > 0
