"""Read a stream from its head, and on as events come: `python examples/tail_reader.py [ADDRESS [COUNT]]`.

Run the producer beside it. Ctrl-C ends it, and says from where another reader could resume.
"""

import asyncio
import contextlib
import sys

import millrace


async def tail(address: str, count: int | None) -> None:
    async with (
        millrace.connect(address) as client,
        client.reader("shop/orders", start=millrace.HEAD) as reader,
    ):
        read = 0
        try:
            async for event in reader:
                print(event.key, event.value.decode())
                read += 1
                if read == count:
                    break
        finally:
            print(f"resume with start=millrace.parse_cut({str(reader.position())!r})")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(
            tail(
                address=sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9240",
                count=int(sys.argv[2]) if len(sys.argv) > 2 else None,
            )
        )
