"""The memory of a server with HTTP followers that never read: its resident set before, and the largest one afterwards.

    python -m benchmarks.feed_memory --feeds 64 --block-kib 1024 --bytes-max-mib 32

The growth should stay below `MILLRACE_FEED_BYTES_MAX` and half a MiB for each feed.
"""

import argparse
import asyncio
import socket
import tempfile
import time
from pathlib import Path
from typing import Final

from rich.console import Console

import millrace
from millrace.model.address import Address
from millrace.wire.limits import KIB, MIB

from .server import MillraceServer, millrace_server

STREAM: Final = "bench/feeds"
BLOCKS_COUNT: Final = 16
EVENTS_PER_BLOCK: Final = 64
SETTLED_S: Final = 8.0
POLL_S: Final = 0.05


async def write(address: str, *, block_bytes: int) -> None:
    """Write a stream of blocks of one size."""
    async with millrace.connect(address) as client:
        await client.create_stream(STREAM)
        async with client.writer(STREAM) as writer:
            for _ in range(BLOCKS_COUNT):
                await writer.write_many([b"v" * (block_bytes // EVENTS_PER_BLOCK)] * EVENTS_PER_BLOCK, key="k")
                await writer.flush()


def follow(server: MillraceServer, number: int) -> socket.socket:
    """Ask for a feed, from an address of its own, and read nothing."""
    console = Address.parse(server.console, default_port=0)
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KIB)
    peer.bind((f"127.1.0.{number % 250 + 1}", 0))
    peer.connect((console.host, console.port))
    peer.sendall(f"GET /streams/{STREAM}/events?from=head HTTP/1.1\r\nHost: {server.console}\r\n\r\n".encode())
    return peer


def measure(server: MillraceServer, *, feeds_count: int) -> tuple[int, int, int]:
    """Return the resident set before, the largest one with the followers, and the last one, in bytes."""
    before = largest = last = server.process.memory_info().rss
    peers = [follow(server, number) for number in range(feeds_count)]
    until_s = time.monotonic() + SETTLED_S
    while time.monotonic() < until_s:
        last = server.process.memory_info().rss
        largest = max(largest, last)
        time.sleep(POLL_S)
    open_count = server.statistics()["feed"]["open"]
    assert open_count == feeds_count, f"{open_count} feeds are open"
    for peer in peers:
        peer.close()
    return before, largest, last


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--feeds", type=int, default=64)
    parser.add_argument("--block-kib", type=int, default=1024)
    parser.add_argument("--bytes-max-mib", type=int, default=32)
    arguments = parser.parse_args()
    settings = {
        "MILLRACE_FEED_BYTES_MAX": str(arguments.bytes_max_mib * MIB),
        "MILLRACE_FEED_COUNT_MAX": str(arguments.feeds),
    }
    with tempfile.TemporaryDirectory() as folder, millrace_server(Path(folder), settings=settings) as server:
        asyncio.run(write(server.address, block_bytes=arguments.block_kib * KIB))
        # What one reader brings into memory, such as the page cache, is no part of the growth.
        measure(server, feeds_count=1)
        before, largest, last = measure(server, feeds_count=arguments.feeds)
    allowed_bytes = arguments.bytes_max_mib * MIB + arguments.feeds * MIB // 2
    Console().print(
        f"{arguments.feeds} feeds over blocks of {arguments.block_kib:,} KiB: {before / MIB:.0f} MiB before, "
        f"{largest / MIB:.0f} MiB at most, {last / MIB:.0f} MiB at last; "
        f"growth {(largest - before) / MIB:.0f} MiB of {allowed_bytes / MIB:.0f} MiB"
    )


if __name__ == "__main__":
    main()
