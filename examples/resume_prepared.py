"""Decide over a transaction after a crash: `python examples/resume_prepared.py [ADDRESS]`.

A shop pays by a system that is not Millrace, here a file. It prepares its events, then pays, then commits. Prepared, a
transaction cannot fail any more and does not end by itself. So a shop that was killed in between looks what it has
paid, and commits or aborts by the name: events and payments are the same in the end.
"""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from millrace import TAIL, TransactionState, blocking
from millrace.examples.running import ended_by_sigterm

STREAM = "shop/paid"


def sell(address: str, payments: Path, order: str, *, killed: str = "") -> None:
    """Write the events of an order, and pay it; the process is killed before the payment, or after it, if so asked."""
    with blocking.connect(address) as client, client.transaction(STREAM, name=f"order-{order}") as transaction:
        transaction.write(f"order {order} is paid".encode(), key=order)
        transaction.prepare()
        if killed == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        with payments.open("a") as file:
            file.write(f"{order}\n")
        if killed == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        transaction.commit()


def recover(address: str, payments: Path) -> None:
    """Decide over all that earlier lives of this program have prepared."""
    paid = set(payments.read_text().split()) if payments.exists() else set()
    with blocking.connect(address) as client:
        for left in list(client.list_transactions()):
            if left.state is not TransactionState.PREPARED or not left.name.startswith("order-"):
                continue
            if left.name.removeprefix("order-") in paid:
                client.commit_transaction(left.name)
                print(f"{left.name} was paid: committed")
            else:
                client.abort_transaction(left.name)
                print(f"{left.name} was not paid: aborted")


def run(address: str) -> None:
    with tempfile.TemporaryDirectory() as folder, blocking.connect(address) as client:
        client.create_stream(STREAM)
        payments = Path(folder) / "payments"
        sell(address, payments, "1")
        for order, moment in (("2", "before"), ("3", "after")):
            life = [sys.executable, __file__, address, str(payments), order, moment]
            killed = subprocess.run(life, check=False).returncode == -signal.SIGKILL
            print(f"order {order}: killed {moment} it was paid: {killed}")
        recover(address, payments)
        with client.reader(STREAM, end=TAIL) as reader:
            events = sorted(event.value.decode() for event in reader)
    print("; ".join(events))


if __name__ == "__main__":
    server = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9240"
    if len(sys.argv) > 2:
        sell(server, Path(sys.argv[2]), sys.argv[3], killed=sys.argv[4])
    else:
        with ended_by_sigterm():
            run(server)
