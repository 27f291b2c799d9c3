"""A data source whose writers wait, fail or die at a point that a test names; all else is the product's.

    begin     a task is about to write
    middle    a task has written its first Arrow batch, and has not got the next one
    end       a task has written all, and Spark has no message of it yet
    before    the driver is about to commit
    after     the driver has committed, and Spark has not noted it yet

The test arms one point, in a folder that all processes of Spark find by an environment variable. The process that comes
to it first takes it, says that it is there, and does one of these:

    fail      raises an error
    die       kills its own process
    kill      kills the executor it belongs to: the process of Java above it
    wait      waits until it is released
    pass      continues: the test has seen that the query is at work
"""

import json
import os
import selectors
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from millrace.spark_source import MillraceDataSource
from millrace.spark_source.sink.identity import BATCH_PROPERTY
from millrace.spark_source.sink.message import TaskMessage
from millrace.spark_source.sink.writers import MillraceStreamWriter

FOLDER_VARIABLE: Final = "KILL_MATRIX_POINTS"


class Points:
    """The armed point of a folder, on the side of the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name in ("reached", "released"):
            os.mkfifo(folder / name)
        # Open for both, so that neither side waits for the other to open them.
        self._reached = os.open(folder / "reached", os.O_RDWR | os.O_NONBLOCK)
        self._released = os.open(folder / "released", os.O_RDWR | os.O_NONBLOCK)

    def fileno(self) -> int:
        """What can be read once somebody is at the armed point."""
        return self._reached

    def arm(self, point: str, action: str, *, batch: int | None) -> None:
        """Let the process that next comes to a point in a batch, or in any, do something, once."""
        for waiting in (self._reached, self._released):
            with suppress(BlockingIOError):  # what is left of an attempt that was killed while it waited
                os.read(waiting, 1 << 10)
        (self.folder / "taken").unlink(missing_ok=True)
        written = self.folder / "written"
        written.write_text(json.dumps({"point": point, "action": action, "batch": batch}))
        written.rename(self.folder / "armed")

    @property
    def was_taken(self) -> bool:
        """Whether somebody came to the armed point."""
        return (self.folder / "taken").exists()

    def wait(self, *, within_s: float) -> None:
        """Wait until somebody is at the armed point."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._reached, selectors.EVENT_READ)
            if not selector.select(within_s):
                raise TimeoutError("nobody came to the armed point")
        os.read(self._reached, 1)

    def release(self) -> None:
        """Let who waits there continue."""
        os.write(self._released, b".")

    def close(self) -> None:
        os.close(self._reached)
        os.close(self._released)


def reach(point: str, batch: int) -> None:
    """Come to a point in a process of Spark."""
    folder = Path(os.environ[FOLDER_VARIABLE])
    try:
        armed = json.loads((folder / "armed").read_text())
    except FileNotFoundError:
        return
    if armed["point"] != point or armed["batch"] not in (None, batch):
        return
    try:
        os.close(os.open(folder / "taken", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    (folder / "reached").write_bytes(b".")
    match armed["action"]:
        case "fail":
            raise RuntimeError(f"fails at {point} of batch {batch}")
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "kill":
            os.kill(_parent_of(os.getppid()), signal.SIGKILL)
        case "wait":
            with (folder / "released").open("rb", buffering=0) as released:
                released.read(1)
        case "pass":
            pass
        case action:
            raise AssertionError(action)


def _parent_of(process: int) -> int:
    """Return the parent of a process; workers are children of a daemon of Python, and that of the executor."""
    stat = Path(f"/proc/{process}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def _batch_of_task() -> int:
    context = TaskContext.get()
    assert context is not None
    return int(context.getLocalProperty(BATCH_PROPERTY) or -1)


class PointedWriter(MillraceStreamWriter):
    """The writer of a query, which comes to all points."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        batch = _batch_of_task()
        reach("begin", batch)

        def batches() -> Iterator[pa.RecordBatch]:
            for number, each in enumerate(iterator):
                if number == 1:
                    reach("middle", batch)
                yield each

        message = super().write(batches())
        reach("end", batch)
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        reach("before", batchId)
        super().commit(messages, batchId)
        reach("after", batchId)


class PointedDataSource(MillraceDataSource):
    """The data source, with that writer."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        writer = super().streamWriter(schema, overwrite)
        assert isinstance(writer, MillraceStreamWriter)
        return PointedWriter(writer.sink)
