import pytest

import millrace
from benchmarks.many_scales import measure


@pytest.mark.slow
@pytest.mark.asyncio
async def test_the_first_and_the_last_scalings_are_measured(millrace_server: millrace.testing.TestServer) -> None:
    first_s, last_s = await measure(millrace_server.address, 4)
    assert min(first_s, last_s) > 0
