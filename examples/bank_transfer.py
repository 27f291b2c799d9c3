"""Move money between two streams, and read both at one moment: `python examples/bank_transfer.py [ADDRESS]`.

Each transfer is one transaction: a debit in one stream and its credit in another. Half of the writers change their mind
and abort. A reader of both streams adds everything up meanwhile, again and again, and never finds a cent missing.
"""

import asyncio
import random
import sys

import millrace

DEBITS, CREDITS = "bank/debits", "bank/credits"
ACCOUNTS = ("ada", "bob", "eve", "joe")
TELLERS = 4


class ChangedMindError(Exception):
    """A customer does not want the transfer any more: leaving the transaction by an error aborts it."""


async def transfer_money(client: millrace.Client, count: int) -> int:
    """Transfer money so often; return how many transfers were committed."""
    committed = 0
    for _ in range(count):
        payer, payee = random.sample(ACCOUNTS, 2)
        amount = random.randint(1, 100)
        try:
            async with client.transaction([DEBITS, CREDITS]) as transfer:
                _ = transfer.write(b"%d" % -amount, key=payer, stream=DEBITS)
                _ = transfer.write(b"%d" % amount, key=payee, stream=CREDITS)
                if random.random() < 0.5:
                    await transfer.flush()  # stored, and still nobody reads it
                    raise ChangedMindError
        except ChangedMindError:
            continue
        committed += 1
    return committed


async def add_up(client: millrace.Client) -> tuple[int, int]:
    """Return the sum over both streams as they are at one moment, and how many events that are."""
    cuts = await client.stream_cuts([DEBITS, CREDITS])  # both at the same moment: of each transfer both, or none
    async with client.reader([DEBITS, CREDITS], end=cuts) as reader:
        amounts = [int(event.value) async for event in reader]
    return sum(amounts), len(amounts)


async def run(address: str, transfers: int = 50) -> None:
    async with millrace.connect(address) as client:
        for stream in (DEBITS, CREDITS):
            await client.create_stream(stream, millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(2)))
        tellers = [asyncio.create_task(transfer_money(client, transfers)) for _ in range(TELLERS)]
        looks = 0
        while not all(teller.done() for teller in tellers):
            balance, _ = await add_up(client)
            if balance:
                raise SystemExit(f"{balance} are missing")
            looks += 1
        committed = sum([await teller for teller in tellers])
        balance, events = await add_up(client)
    print(f"{committed} of {TELLERS * transfers} transfers were committed, in {events} events")
    print(f"the balance was 0 at each of {looks} looks, and is {balance} now")


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9240"))
