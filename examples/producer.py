"""Write orders to a stream: `python examples/producer.py [ADDRESS]`.

Events with the same key are read in the order written. Leaving `async with` waits until every event is on disk.
"""

import asyncio
import json
import sys

import millrace


async def produce(address: str) -> None:
    async with millrace.connect(address) as client:
        config = millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(4))
        await client.create_stream("shop/orders", config)  # False if it exists
        async with client.writer("shop/orders") as writer:
            for number in range(1000):
                order = {"number": number, "amount": number % 50}
                await writer.drain()  # waits only while too much is on its way
                _ = writer.write(json.dumps(order).encode(), key=f"customer-{number % 7}")
            # A future resolves when its event is durable, and says where it is.
            stored = await writer.write(b'{"number": 1000, "amount": 1}', key="customer-0")
    print(f"1001 orders are durable, the last in segment {stored.segment_id} at offset {stored.offset}")


if __name__ == "__main__":
    asyncio.run(produce(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9240"))
