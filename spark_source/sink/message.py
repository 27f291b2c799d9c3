"""The message of a task to the driver about its writes."""

from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from millrace.client.transactions.branch import BranchToken

from .identity import BatchIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMessage(WriterCommitMessage):
    """What a task has written; pickled by Spark.

    Attributes:
        identity: of the batch; tells the driver which transaction to commit.
        token: of the branch with the events of the task; None if it wrote none.
        dead_letters: how many of these events are in the dead-letter stream.
        was_committed: the server told the task that the batch is committed already, so the task wrote nothing.
        refusal: why the batch can never be committed: another query, or a newer run of this one, has the writer id.
            The driver raises it: if the task did, Spark would try the task again.
    """

    identity: BatchIdentity
    token: BranchToken | None = None
    dead_letters: int = 0
    was_committed: bool = False
    refusal: str | None = None
