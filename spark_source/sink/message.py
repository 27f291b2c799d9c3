"""What a task tells the driver about what it wrote."""

from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from millrace.client.transactions.branch import BranchToken

from .identity import BatchIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMessage(WriterCommitMessage):
    """What a task has written; pickled by Spark.

    Attributes:
        identity: the driver knows the transaction from here.
        token: of the branch that has what the task wrote; None if that is nothing.
        dead_letters: how many events of the dead-letter stream are among what it wrote.
        was_committed: the task was told that its batch is committed already, so it wrote nothing.
        refusal: why the batch can never be committed: another query has the writer id, or a newer run of this
            one. Raised in a task it would be tried again by Spark; so the driver raises it.
    """

    identity: BatchIdentity
    token: BranchToken | None = None
    dead_letters: int = 0
    was_committed: bool = False
    refusal: str | None = None
