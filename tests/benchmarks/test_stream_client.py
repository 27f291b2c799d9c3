import pytest

import millrace
from benchmarks.stream_client import ClientWork, run_client

pytestmark = pytest.mark.slow


@pytest.mark.asyncio
@pytest.mark.parametrize(("per_s", "events"), [(10, 3), (1000, 300)])
async def test_a_paced_writer_writes_at_its_rate(per_s: float, events: int) -> None:
    with millrace.testing.server() as server:
        work = ClientWork(what="paced", address=server.address, stream="bench/paced", duration_s=0.3, per_s=per_s)
        result = await run_client(work)

        assert result.events == events
        assert result.elapsed_s > 0.2  # the last block is not before its time
        with millrace.blocking.connect(server.address) as client:
            with client.reader(work.stream, start=millrace.HEAD, end=millrace.TAIL) as reader:
                assert len(list(reader)) == events
