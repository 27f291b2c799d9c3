"""Read slices of a stream, without asyncio and in parallel: `python examples/slices.py [ADDRESS]`.

A cut is a place in every segment of a stream. Two of them bound a slice; a slice can be split into ranges that any
number of threads, processes or machines read at once. Needs pyarrow.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import millrace
from millrace import blocking


def count_range(address: str, part: millrace.SegmentRange) -> int:
    with blocking.connect(address) as client:
        return sum(batch.num_rows for batch in client.read_range(part))


def read_slices(address: str) -> None:
    with blocking.connect(address) as client:
        before = client.stream_cut("shop/orders")
        with client.writer("shop/orders") as writer:
            writer.write_many([b'{"amount": 1}', b'{"amount": 2}'], key="customer-0").result()
        after = client.stream_cut("shop/orders")

        with client.reader("shop/orders", start=before, end=after) as reader:
            print("between the cuts:", [event.value.decode() for event in reader])

        parts = client.plan_ranges("shop/orders", start=millrace.HEAD, end=after, max_bytes=16 * 1024)
    with ThreadPoolExecutor(4) as pool:
        counts = list(pool.map(lambda part: count_range(address, part), parts))
    print(f"{sum(counts)} events up to the second cut, read as {len(parts)} ranges by 4 threads")


if __name__ == "__main__":
    read_slices(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9240")
