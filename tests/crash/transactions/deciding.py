"""Commits or aborts what others have prepared, by its name, as it is told."""

import asyncio
from collections.abc import Callable

import millrace
from millrace.client.client import Client
from tests.crash.transactions.recorded import UNKNOWN
from tests.support.history import Recorder


class Decider:
    """Carries out lines of the form `commit NAME NUMBER BRANCH` and `abort NAME NUMBER BRANCH`, each at once."""

    def __init__(self, client: Client, recorder: Recorder, name: str, say: Callable[..., None]) -> None:
        self._client = client
        self._recorder = recorder
        self._name = name
        self._say = say

    async def run(self, lines: "asyncio.Queue[str]") -> None:
        """Go on until there is a line `end`; all before it is decided then."""
        async with asyncio.TaskGroup() as tasks:
            while (line := (await lines.get()).split()) != ["end"]:
                verb, name, number, branch = line
                tasks.create_task(self._decide(verb, name, int(number), branch))

    async def _decide(self, verb: str, name: str, number: int, branch: str) -> None:
        """Ask for one outcome, and say which one it is."""
        fields = {"branches": [branch]} if verb == "commit" and branch != UNKNOWN else {}
        call = self._recorder.call(self._name, verb, txn=number, **fields)
        try:
            if verb == "commit":
                # It does not say whether somebody had committed it before.
                await self._client.commit_transaction(name)
                answer = "already"
            else:
                await self._client.abort_transaction(name)
                answer = "aborted"
        except millrace.TransactionCommittedError:
            answer = "committed"
        except millrace.TransactionAbortedError:
            answer = "aborted"
        self._recorder.answer(call, answer, txn=number)
        self._say("decided", name, "aborted" if answer == "aborted" else "committed")
