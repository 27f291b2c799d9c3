"""The cost of a scaling after many: the first ones of a stream that is written to, and the last ones.

    python -m benchmarks.many_scales --scales 1000

Between two scalings each open segment gets an event, so that every replaced segment stays. The ratio of the medians of
the last 20 scalings and the first 20 should be near 1.
"""

import argparse
import asyncio
import time
from statistics import median

from rich.console import Console

import millrace

STREAM = "bench/scales"
SAMPLE_COUNT = 20


async def measure(address: str, count: int) -> tuple[float, float]:
    """Return the medians, in seconds, of the first and of the last scalings of a new stream."""
    durations_s = []
    async with millrace.connect(address) as client:
        await client.create_stream(STREAM)
        opened = (await client.stream_info(STREAM)).open_segments
        for number in range(count):
            async with client.writer(STREAM) as writer:
                await writer.write(b"event")
            ranges = [(0.0, 0.5), (0.5, 1.0)] if number % 2 == 0 else [(0.0, 1.0)]
            started_s = time.perf_counter()
            info = await client.scale_stream(STREAM, seal=[each.segment_id for each in opened], ranges=ranges)
            durations_s.append(time.perf_counter() - started_s)
            opened = info.open_segments
    sample_count = min(SAMPLE_COUNT, count)
    return median(durations_s[:sample_count]), median(durations_s[-sample_count:])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scales", type=int, default=1000)
    arguments = parser.parse_args()
    with millrace.testing.server() as server:
        first_s, last_s = asyncio.run(measure(server.address, arguments.scales))
    Console().print(
        f"{arguments.scales:,} scalings: {first_s * 1e3:.2f} ms at first, {last_s * 1e3:.2f} ms at last, "
        f"ratio {last_s / first_s:.2f}"
    )


if __name__ == "__main__":
    main()
