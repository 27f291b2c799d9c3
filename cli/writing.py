"""`millrace write`: writes lines as events; at any end it prints how many are stored and how to resume."""

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Annotated, Any, Final, TypeVar

import typer

from millrace.client.write.events import WriteResult
from millrace.client.write.options import WriterOptions
from millrace.client.write.writer import Writer
from millrace.model.errors import EventTooLargeError, InvalidArgumentError, MillraceError
from millrace.model.figures import count_text, duration_text, rate_text, size_text
from millrace.model.limits import ROUTING_KEY_SIZE_BYTES_MAX

from .connecting import ServerTarget, StreamArgument
from .input_lines import LineError, Lines
from .input_records import InputRecords
from .key_fields import KeyFieldError, key_reader
from .line_items import Item, ItemOf, json_item, keyed_item
from .output import ProgressBar, print_done, print_note, progress
from .standard_input import StandardInput, input_name
from .write_account import LineAccount, ResumeAdvice

T = TypeVar("T")

END_WAIT_S: Final = 5.0
"""How long an early end waits for pending lines to be stored."""
_SIGNALS: Final = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


def write(
    server: ServerTarget,
    stream: StreamArgument,
    key_field: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD",
            help="Take the key from this field of JSON lines, or from this column of CSV: its number from 1, or its "
            "name (then the first line is the header, and is not written). A record of CSV is one event, even if a "
            "quoted field holds line ends.",
        ),
    ] = None,
    key: Annotated[str | None, typer.Option(help="The same key for all events.")] = None,
    with_keys: Annotated[
        bool, typer.Option("--keys", help="Each line is a key, a tab and a value, as `read --keys` prints them.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Each line is an event, with key, time and headers, as `read --json` prints it."),
    ] = False,
    writer_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Store each line once: after an interruption, run the same command again with the same ID and the "
            "whole input. The lines that are missing are stored.",
        ),
    ] = None,
    create: Annotated[
        bool, typer.Option("--create", help="Create the stream, with one segment, if it does not exist.")
    ] = False,
) -> None:
    """Write each line of standard input as an event. With exit code 0, all of them are durable.

    Lines are sent as they arrive, so `tail -f log | millrace write app/log` works. Empty lines are not written. If
    interrupted, the command prints how many lines are stored, and how to resume.
    """
    options = {"--key-field": key_field, "--key": key, "--writer-id": writer_id}
    flags = {"--keys": with_keys, "--json": as_json}
    ways = [name for name, value in (options | flags).items() if value not in (None, False) and name != "--writer-id"]
    if len(ways) > 1:
        raise typer.BadParameter(f"give only one of {' and '.join(ways)}")
    started_s = time.monotonic()
    arguments = ["write", stream, *(name for name, is_given in flags.items() if is_given)]
    arguments += [part for name, value in options.items() if value is not None for part in (name, value)]
    resuming = ResumeAdvice(arguments=[*arguments, *server.arguments], writer_id=writer_id, is_typed=sys.stdin.isatty())
    forms: dict[bool, ItemOf] = {with_keys: keyed_item, as_json: json_item}
    # A progress bar would disturb typing.
    with progress(f"writing to {stream}", total=None, is_shown=not resuming.is_typed) as update:
        writing = _WriteRun(server, stream, resuming, item_of=forms.get(True), update=update)
        writing.key, writing.key_field, writing.is_to_create = key, key_field, create
        with asyncio.Runner() as runner:
            ending = runner.run(writing.run())
    account = writing.account
    if ending is not None:
        told = writing.resuming.text(account, stream)
        if isinstance(ending, _StopSignal):
            print_note(f"stopped by {_SIGNALS[ending.signal]}: {told}")
            raise typer.Exit(128 + ending.signal)
        if isinstance(ending, LineError | KeyFieldError):
            ending = InvalidArgumentError(f"{input_name(sys.stdin.fileno())}: {ending}")
        ending.add_note(told)
        raise ending
    elapsed_s = max(time.monotonic() - started_s, 1e-9)
    through = writing.resuming.resumed_through
    resumed = f", after line {through:,}, through which all was stored" if through > 0 else ""
    print_done(
        f"wrote {count_text(account.sent_count, 'event')} ({size_text(account.size_bytes)}) to {stream} in "
        f"{duration_text(elapsed_s)}, {rate_text(account.sent_count / elapsed_s)}{resumed}"
    )


class _StopSignal(BaseException):
    """A signal has ended the run."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number)
        self.signal = number


class _LeaveWriter(BaseException):
    """Leaves the writer without waiting: the run has waited already."""


class _WriteRun:
    """One run of `millrace write`.

    Attributes:
        account: the stored lines; complete when `run` has returned.
        resuming: how to write the rest.
    """

    def __init__(
        self, server: ServerTarget, stream: str, resuming: ResumeAdvice, *, item_of: ItemOf | None, update: ProgressBar
    ) -> None:
        self._server = server
        self._stream = stream
        self._item_of = item_of
        self._update = update
        self.resuming = resuming
        self.account = LineAccount()
        self.key: str | None = None
        self.key_field: str | None = None
        self.is_to_create = False
        self._signal: signal.Signals | None = None
        # While lines are written: the reason for ending, a signal or a failure of the writer, once it is known.
        self._stop: asyncio.Future[BaseException] | None = None

    async def run(self) -> BaseException | None:
        """Write all lines; return the reason of an early end, None if there is none."""
        task = asyncio.current_task()
        assert task is not None

        def stop(number: signal.Signals) -> None:
            self._signal = number
            if self._stop is None or self._stop.done():
                task.cancel()
            else:
                self._stop.set_result(_StopSignal(number))

        failure: BaseException | None = None
        with _handling(stop):
            try:
                await self._run()
            except asyncio.CancelledError:
                if self._signal is None:
                    raise
                task.uncancel()
            except _LeaveWriter as left:
                failure = left.__cause__
            except (MillraceError, OSError) as error:
                failure = error
        self.account.close()
        return failure if self._signal is None else _StopSignal(self._signal)

    async def _run(self) -> None:
        options = WriterOptions(delivery_timeout_s=self._server.outage_timeout_s)
        async with self._server.connect_async(on_waiting=self._update.show_waiting) as client:
            if self.is_to_create and await client.create_stream(self._stream):
                print_note(f"created {self._stream} with 1 segment")
            writer_id = self.resuming.writer_id
            async with client.writer(self._stream, writer_id=writer_id, options=options) as writer:
                self.resuming = replace(self.resuming, resumed_through=writer.stored_through)
                self._stop = asyncio.get_running_loop().create_future()
                try:
                    await self._write(writer)
                except (Exception, _StopSignal) as error:  # for any reason, earlier lines are stored
                    # An unreachable server does not answer now; another signal ends the wait, too.
                    with suppress(TimeoutError, MillraceError):
                        async with asyncio.timeout(END_WAIT_S):
                            await writer.flush()
                    raise _LeaveWriter from error

    async def _write(self, writer: Writer) -> None:
        """Write all lines of standard input, and wait until they are stored.

        Raises:
            LineError, KeyFieldError, InvalidArgumentError: a line cannot be written; earlier lines were.
            _StopSignal: a signal arrived.
        """
        records = InputRecords(can_be_csv=self.key_field is not None)
        source = StandardInput(sys.stdin.fileno())
        if self.resuming.is_typed:
            print_note("reading lines from the terminal: each is stored when it is typed; Ctrl-D ends")
        try:
            data = None
            while data != b"" and records.failure is None:
                data = await self._unless_stopped(source.read())
                lines = records.feed(data)
                if lines.lines:
                    await self._take(writer, lines)
        finally:
            source.close()
        if records.failure is not None:
            raise records.failure
        await self._unless_stopped(writer.flush())

    async def _take(self, writer: Writer, lines: Lines) -> None:
        """Pass lines to the writer. Raises as `_write`."""
        if self.key_field is not None and self._item_of is None:
            lines = self._begin_keys(self.key_field, lines)
        lines = lines.after(self.resuming.resumed_through)
        items, failure = (None, None) if self._item_of is None else _items(self._item_of, lines)
        for start, end in _parts(lines.numbers, items, is_numbered=self.resuming.writer_id is not None):
            if not writer.has_room(0):
                await self._unless_stopped(writer.drain())
            self._send(writer, lines.part(start, end), None if items is None else items[start:end])
        self._update(advance=len(lines.lines))
        if failure is not None:
            raise failure

    def _begin_keys(self, field: str, lines: Lines) -> Lines:
        """Detect the format of the lines; return them without the header, if the first one is a header."""
        key_of, is_header = key_reader(field, lines.lines[0])
        self._item_of = lambda line: Item(line, key_of(line))
        if not is_header:
            return lines
        self.resuming = replace(self.resuming, header_number=lines.numbers[0])
        return lines.after(lines.numbers[0])

    def _send(self, writer: Writer, lines: Lines, items: list[Item] | None) -> None:
        # The number of a line is the sequence of its event; so those of an append follow without a gap.
        first_sequence = lines.numbers[0] if self.resuming.writer_id is not None else None
        try:
            if items is None:
                future = writer.write_many(lines.lines, key=self.key, first_sequence=first_sequence)
            else:
                future = writer.write_many(
                    [item.value for item in items],
                    keys=[item.key for item in items if item.key is not None] or None,
                    timestamps_us=[item.timestamp_us for item in items if item.timestamp_us is not None] or None,
                    headers=[item.headers for item in items] if any(item.headers for item in items) else None,
                    first_sequence=first_sequence,
                )
        except (EventTooLargeError, InvalidArgumentError) as error:
            if len(lines.lines) == 1:
                raise LineError(
                    _first_number(lines.numbers[0], lines.lines[0]), f"cannot be written: {error}"
                ) from error
            # A rejected call writes nothing. One by one, the lines before the wrong one are written, and it has a
            # number.
            for at in range(len(lines.lines)):
                self._send(writer, lines.part(at, at + 1), None if items is None else items[at : at + 1])
            return
        self.account.sent(lines, future)
        future.add_done_callback(self._note_failure)

    def _note_failure(self, outcome: "asyncio.Future[WriteResult]") -> None:
        """End the wait for the next line if the writer has failed."""
        failure = None if outcome.cancelled() else outcome.exception()
        if failure is not None and self._stop is not None and not self._stop.done():
            self._stop.set_result(failure)

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of work, unless a signal arrives first, or the writer fails: then the work is cancelled.

        Raises:
            _StopSignal: a signal arrived.
            MillraceError: why the writer failed.
        """
        assert self._stop is not None
        task = asyncio.create_task(work)
        try:
            await asyncio.wait((task, self._stop), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not self._stop.done():
            return task.result()
        task.cancel()
        await asyncio.wait((task,))
        raise self._stop.result()


@contextmanager
def _handling(stop: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call a function on signals, if they reach this thread and are not ignored, as under `nohup`."""
    loop = asyncio.get_running_loop()
    is_main = threading.current_thread() is threading.main_thread()
    handled = [each for each in _SIGNALS if is_main and signal.getsignal(each) is not signal.SIG_IGN]
    for each in handled:
        loop.add_signal_handler(each, stop, each)
    try:
        yield
    finally:
        for each in handled:
            loop.remove_signal_handler(each)


def _items(item_of: ItemOf, lines: Lines) -> tuple[list[Item], LineError | None]:
    """Parse lines, up to the first invalid one; return the items, and the error."""
    items: list[Item] = []
    for number, line in zip(lines.numbers, lines.lines, strict=True):
        try:
            item = item_of(line)
        except ValueError as error:
            return items, LineError(_first_number(number, line), str(error))
        if item.key is not None and len(item.key.encode()) > ROUTING_KEY_SIZE_BYTES_MAX:
            return items, LineError(
                _first_number(number, line), f"has a key longer than {size_text(ROUTING_KEY_SIZE_BYTES_MAX)}"
            )
        items.append(item)
    return items, None


def _first_number(number: int, record: bytes) -> int:
    """Return the number of the first line of a record, which is numbered by its last."""
    return number - record.count(b"\n")


def _parts(numbers: Sequence[int], items: list[Item] | None, *, is_numbered: bool) -> Iterator[tuple[int, int]]:
    """Yield start and end of the parts that can each be one call of a writer.

    Either all events of a call have a key, or none; and so with their times. With sequences, none is missing between.
    """
    count = len(numbers) if items is None else len(items)
    start = 0
    for at in range(1, count):
        if (is_numbered and numbers[at] != numbers[at - 1] + 1) or (
            items is not None and _kind(items[at]) != _kind(items[at - 1])
        ):
            yield start, at
            start = at
    if count:
        yield start, count


def _kind(item: Item) -> tuple[bool, bool]:
    return item.key is None, item.timestamp_us is None
