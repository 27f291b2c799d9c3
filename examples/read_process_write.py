"""Read, process, write, each event once: `python examples/read_process_write.py [ADDRESS]`.

A worker reads orders, and writes an invoice for each. The invoices and the place up to which it has read are one
transaction, so it may be killed at any moment: here the first one is killed with invoices that are stored and not
committed, and the second one continues where the last commit has left the cursor.
"""

import json
import os
import signal
import subprocess
import sys
from itertools import islice

import millrace
from millrace import HEAD, TAIL, blocking
from millrace.examples.running import ended_by_sigterm

ORDERS, INVOICES = "books/orders", "books/invoices"
ORDER_COUNT = 1000
AT_ONCE = 100


def write_orders(client: blocking.Client) -> None:
    config = millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(3))
    if client.create_stream(ORDERS, config) and client.create_stream(INVOICES, config):
        with client.writer(ORDERS) as writer:
            numbers = range(ORDER_COUNT)
            writer.write_many([b"%d" % number for number in numbers], keys=[f"customer-{n % 7}" for n in numbers])


def work(address: str, *, killed_in: int = 0) -> int:
    """Write an invoice for each order that has none; return for how many. The process is killed in one transaction."""
    written = transactions = 0
    with blocking.connect(address) as client:
        while True:
            start = client.cursors(ORDERS).get("invoices")  # None before the first commit
            with client.reader(ORDERS, start=start or HEAD, end=TAIL) as reader:
                orders = list(islice(reader, AT_ONCE))
                end = reader.position()
            if not orders:
                return written
            with client.transaction(INVOICES) as invoices:
                for order in orders:
                    invoice = {"order": int(order.value), "amount": int(order.value) * 3}
                    invoices.write(json.dumps(invoice).encode(), key=order.key)
                # Moves with the commit, from where this worker has begun. If another one was faster, nothing is
                # committed, neither the invoices nor the move: CursorMovedError.
                invoices.advance(ORDERS, "invoices", end, expected=start)
                transactions += 1
                if transactions == killed_in:
                    invoices.flush()
                    os.kill(os.getpid(), signal.SIGKILL)
            written += len(orders)


def check(client: blocking.Client) -> None:
    with client.reader(INVOICES, end=TAIL) as reader:
        numbers = sorted(json.loads(invoice.value)["order"] for invoice in reader)
    if numbers != list(range(ORDER_COUNT)):
        raise SystemExit(f"{len(numbers)} invoices for {len(set(numbers))} of {ORDER_COUNT} orders")
    print(f"{ORDER_COUNT} orders have one invoice each")


def run(address: str) -> None:
    with blocking.connect(address) as client:
        write_orders(client)
        first = subprocess.run([sys.executable, __file__, address, "killed"], check=False)
        print(f"the first worker was killed: {first.returncode == -signal.SIGKILL}")
        print(f"the second worker wrote {work(address)} invoices")
        check(client)


if __name__ == "__main__":
    server = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9240"
    if sys.argv[2:] == ["killed"]:
        work(server, killed_in=4)
    else:
        with ended_by_sigterm():
            run(server)
