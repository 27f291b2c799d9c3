"""The cost of a scaling after many, and of what depends on the segments of a stream: early and late.

    python -m benchmarks.many_scales --scales 1000
    python -m benchmarks.many_scales --scales 1000 --empty

Between two scalings each open segment gets an event, or with `--empty` none. The stream is never truncated. Printed are
medians of the first and the last 20 scalings, and of opening a reader at HEAD then. The ratios should be near 1.
"""

import argparse
import asyncio
import time
from statistics import median

from rich.console import Console

import millrace

STREAM = "bench/scales"
SAMPLE_COUNT = 20


async def measure(address: str, count: int, *, is_empty: bool) -> dict[str, tuple[float, float]]:
    """Return what is measured, with its medians in seconds after the first and after the last scalings."""
    scalings_s, heads_s = [], []
    async with millrace.connect(address) as client:
        await client.create_stream(STREAM)
        opened = (await client.stream_info(STREAM)).open_segments
        for number in range(count):
            if not is_empty:
                async with client.writer(STREAM) as writer:
                    await writer.write(b"event")
            ranges = [(0.0, 0.5), (0.5, 1.0)] if number % 2 == 0 else [(0.0, 1.0)]
            started_s = time.perf_counter()
            info = await client.scale_stream(STREAM, seal=[each.segment_id for each in opened], ranges=ranges)
            scaled_s = time.perf_counter()
            if number < SAMPLE_COUNT or number >= count - SAMPLE_COUNT:
                async with client.reader(STREAM):
                    heads_s.append(time.perf_counter() - scaled_s)
            scalings_s.append(scaled_s - started_s)
            opened = info.open_segments
    return {
        "scaling": (median(scalings_s[:SAMPLE_COUNT]), median(scalings_s[-SAMPLE_COUNT:])),
        "reader at HEAD": (median(heads_s[:SAMPLE_COUNT]), median(heads_s[-SAMPLE_COUNT:])),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scales", type=int, default=1000)
    parser.add_argument("--empty", action="store_true", help="write no events")
    arguments = parser.parse_args()
    with millrace.testing.server() as server:
        measured = asyncio.run(measure(server.address, arguments.scales, is_empty=arguments.empty))
    for what, (first_s, last_s) in measured.items():
        Console().print(
            f"{what}, {arguments.scales:,} scalings: {first_s * 1e3:.2f} ms at first, {last_s * 1e3:.2f} ms at last, "
            f"ratio {last_s / first_s:.2f}"
        )


if __name__ == "__main__":
    main()
