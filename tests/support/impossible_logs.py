"""Logs of well-formed records in impossible orders: whole batches, which no server would have decided."""

import asyncio
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import construct as c
from hypothesis import strategies as st

from millrace.model.block_packing import pack_block
from millrace.model.checksum import Buffer
from millrace.model.key_range import KEY_SPACE
from millrace.server.host.files import FileSystem
from millrace.server.wal import LogOwner, Wal
from millrace.wire import messages as m
from millrace.wire.append_run import AppendRun
from millrace.wire.append_scan import scan_run
from millrace.wire.framing import encode, encode_append_header
from tests.support.clock import ManualClock
from tests.support.servers import SMALL_WAL
from tests.support.strategies import bounds, fields_of, message_of, unrenamed

RECORDS: Final = [cls for cls in m.MESSAGES.values() if issubclass(cls, m.Record)]
"""Every type of record that is declared."""
LogItem = m.Record | AppendRun

IDS: Final = [*range(1, 18), 18, 19, 20]
BOUND: Final = 1 << 63
PLACES: Final = [0, BOUND - 1, BOUND, KEY_SPACE - 1]
NAMES: Final = ["", "raw/1", "raw/2", "shop/a", "w", "#part/9", "ü"]
SIZE: Final = 10
"""Of each append that is drawn: offsets of others fit, overlap or leave a gap."""
WHOLE_ID: Final = 500
"""The first of the ids that only `PRELUDE_OF_OTHERS` uses."""


def run_of(segment_id: int, offset: int, payload: Buffer = b"x" * SIZE, *, events: int = 1, **writer: Any) -> AppendRun:
    """Return an append as it is logged."""
    header = encode_append_header(request_id=1, segment_id=segment_id, payload=payload, event_count=events, **writer)
    frames = bytes(header) + bytes(payload)
    run = scan_run(bytearray(frames), memoryview(frames), start=0, end=len(frames))
    assert run is not None
    run.offset = offset
    return run


def ranges(*segment_ids: int) -> list[m.SegmentRangeRecord]:
    """Return two segments with a half of the keys each, or one with all of them."""
    if len(segment_ids) == 1:
        return [m.SegmentRangeRecord(segment_ids[0], 0, KEY_SPACE - 1)]
    low, high = segment_ids
    return [m.SegmentRangeRecord(low, 0, BOUND - 1), m.SegmentRangeRecord(high, BOUND, KEY_SPACE - 1)]


def begun(number: int, *parts: m.PartRecord, streams: list[m.TransactionStream]) -> m.TransactionBegun:
    return m.TransactionBegun(number=number, begun_us=1, lease_ms=1000, name="", streams=streams, parts=list(parts))


PRELUDE: Final[list[LogItem]] = [
    m.IdsReserved(1, 20),
    m.SegmentCreated(1, 1, "raw/1"),
    m.SegmentCreated(2, 1, "raw/2"),
    m.StreamCreated(
        stream_id=4, created_us=1, name="shop/a", configuration="{}", segments=ranges(5, 6), cursors=[m.CursorName("c")]
    ),
    m.WriterRecorded(writer_number=7, writer_epoch=1, opened_us=1, writer_id="w", stream_id=4),
    run_of(1, 0),
    run_of(2, 0),
    run_of(5, 0, pack_block([b"v"], keys=["k"])),
    begun(8, m.PartRecord(9, 4, 0, BOUND - 1), streams=[m.TransactionStream(4, 0, ranges(5, 6))]),
    run_of(9, 0),
    m.ProducerTaken(number=10, producer_id="p", holder="h", run="r"),
]
"""What the ids that are drawn lead to."""
CONTENT_OF_OTHERS: Final = [b"first", b"second", b"third"]
PRELUDE_OF_OTHERS: Final[list[LogItem]] = [
    m.SegmentCreated(WHOLE_ID, 1, "other/raw"),
    m.StreamCreated(
        stream_id=WHOLE_ID + 1, created_us=1, name="other/stream", configuration="{}", segments=ranges(WHOLE_ID + 2),
        cursors=[],
    ),
    begun(
        WHOLE_ID + 3, m.PartRecord(WHOLE_ID + 4, WHOLE_ID + 1, 0, KEY_SPACE - 1),
        streams=[m.TransactionStream(WHOLE_ID + 1, 0, ranges(WHOLE_ID + 2))],
    ),
]  # fmt: skip
"""What no record that is drawn names."""


def items_of_others(place: int) -> list[LogItem]:
    """Return what is logged of the others between what is drawn: appends, and a commit at last."""
    content = CONTENT_OF_OTHERS
    offset = sum(map(len, content[:place]))
    items: list[LogItem] = [
        run_of(WHOLE_ID, offset, content[place]),
        run_of(WHOLE_ID + 4, offset, content[place]),
    ]
    if place + 1 == len(content):
        size = sum(map(len, content))
        items.append(
            m.TransactionCommitted(
                number=WHOLE_ID + 3, committed_us=9, name="", digest=bytes(16), epochs=[],
                parts=[m.CommittedPart(WHOLE_ID + 4, WHOLE_ID + 2, 0, size, len(content))],
                dropped=[], cuts=[], cursors=[],
            )
        )  # fmt: skip
    return items


def _numbers(name: str, number: c.FormatField) -> st.SearchStrategy[int]:
    least, greatest = bounds(number)
    if name in {"low", "last"} and greatest == KEY_SPACE - 1:
        return st.sampled_from(PLACES)
    if "epoch" in name or name in {"kind", "state", "present", "is_plain", "is_exclusive", "lease_ms", "hold_s"}:
        usual = st.integers(0, 4)
    elif name.endswith("_us"):
        usual = st.integers(0, 100)
    elif name in {"offset", "target_offset", "source_start", "size", "event_count", "stored_below", "count"}:
        usual = st.sampled_from([0, 1, SIZE, SIZE, 2 * SIZE])
    else:
        usual = st.sampled_from(IDS)
    # Seldom: as a rule a record with such a number is refused for it.
    return st.integers(0, 39).flatmap(lambda chance: st.sampled_from([least, greatest]) if not chance else usual)


def _values(declaration: c.Struct) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(*[_field(name, subcon) for name, subcon in fields_of(declaration)])


def _field(name: str, subcon: c.Construct) -> st.SearchStrategy[Any]:
    if isinstance(subcon, c.FormatField):
        return _numbers(name, subcon)
    if isinstance(subcon, c.Bytes):
        return st.sampled_from([bytes(subcon.length), b"\1" * subcon.length])
    if isinstance(subcon, c.StringEncoded):
        return st.sampled_from(NAMES)
    if isinstance(subcon, c.Prefixed | type(c.GreedyBytes)):
        return st.binary(max_size=4)
    assert isinstance(subcon, c.FocusedSeq), subcon
    item = unrenamed(unrenamed(subcon.subcons[1]).subcon)
    return st.lists(_values(item) if isinstance(item, c.Struct) else _field(name, item), max_size=3)


def records_of(cls: type[m.Message]) -> st.SearchStrategy[m.Record]:
    """Return any record of a type, about the ids of `PRELUDE`."""
    return _values(cls.layout).map(lambda values: _record(cls, values))


def _record(cls: type[m.Message], values: tuple[Any, ...]) -> m.Record:
    record = message_of(cls, values)
    assert isinstance(record, m.Record)
    return record


@st.composite
def _runs(draw: st.DrawFn) -> AppendRun:
    writer: dict[str, Any] = draw(
        st.sampled_from(
            [
                {},
                {"writer_number": 7, "writer_epoch": 1, "event_number": 1},
                {"writer_number": 13, "writer_epoch": 1, "event_number": 5},
            ]
        )
    )
    offset = draw(st.sampled_from([0, SIZE // 2, SIZE, SIZE, 2 * SIZE, 3 * SIZE, BOUND - 1, BOUND]))
    return run_of(draw(st.sampled_from(IDS)), offset, **writer)


@st.composite
def _likely(draw: st.DrawFn) -> m.Record:
    """A record that often fits, since most that are drawn at random do not: so the others meet deeper states."""
    segment, other = draw(st.sampled_from([1, 2, 5, 9])), draw(st.sampled_from([1, 2, 9]))
    offset = draw(st.sampled_from([0, SIZE, SIZE, 2 * SIZE]))
    new = draw(st.sampled_from([11, 12, 13, 14, 15, 16]))
    epoch = draw(st.integers(1, 3))
    return draw(
        st.sampled_from(
            [
                m.SegmentMerged(
                    target_id=segment, source_id=other, target_offset=offset, source_start=0, size=SIZE, event_count=1
                ),
                m.SegmentTruncated(segment, offset),
                m.StreamScaled(
                    stream_id=4, epoch=epoch, scaled_us=2, cause="", sealed_ids=[5, 6], created=ranges(new)
                ),
                m.StreamScaled(
                    stream_id=4, epoch=epoch, scaled_us=2, cause="", sealed_ids=[5], created=[ranges(new, 99)[0]]
                ),
                m.StreamTruncated(4, [m.CutPosition(5, offset), m.CutPosition(6, 0)]),
                m.PartsAdded(number=8, branch=1, added_us=2, parts=[m.PartRecord(new, 4, BOUND, KEY_SPACE - 1)]),
                m.TransactionPrepared(number=8, branches=[m.BranchCount(0, 1)], digest=bytes(16), dropped=[]),
                m.TransactionsEnded(ended_us=3, state=4, numbers=[8]),
                m.TransactionCommitted(
                    number=8, committed_us=3, name="", digest=bytes(16), epochs=[],
                    parts=[
                        m.CommittedPart(other, segment, offset, SIZE, 1),
                        m.CommittedPart(9, 5, offset, SIZE, 1),
                    ],
                    dropped=[], cuts=[], cursors=[], producers=[m.CommittedProducer(10, "p", "h", "r", epoch)],
                ),
                m.TransactionCommitted(
                    number=8, committed_us=3, name="", digest=bytes(16),
                    epochs=[
                        m.CommitEpochRecord(4, epoch, [5, 6], ranges(new)),
                        m.CommitEpochRecord(4, epoch + 1, [new], ranges(17, 18)),
                    ],
                    parts=[m.CommittedPart(9, new, 0, SIZE, 1)], dropped=[], cuts=[], cursors=[],
                ),
            ]
        )
    )  # fmt: skip


ITEMS: Final[st.SearchStrategy[LogItem]] = st.one_of(
    st.sampled_from(RECORDS).flatmap(records_of), st.sampled_from(RECORDS).flatmap(records_of), _runs(), _likely()
)


@dataclass(frozen=True)
class ImpossibleLog:
    """Batches of items, in their order."""

    batches: tuple[tuple[LogItem, ...], ...]

    async def write(self, folder: Path, *, files: FileSystem, server_id: uuid.UUID) -> None:
        """Write it with the writer of the server, as the log of container 0; `folder` is that of the log."""
        wal = Wal(files, folder, SMALL_WAL, clock=ManualClock(), owner=LogOwner(container_id=0, server_id=server_id))
        list(wal.recover(0))
        durable: asyncio.Queue[int] = asyncio.Queue()
        failures: list[BaseException] = []
        await wal.start(
            on_durable=lambda runs, sequence, wall_time_us: durable.put_nowait(len(runs)), on_failure=failures.append
        )
        for batch in self.batches:
            for item in batch:
                wal.submit(AppendRun.of_record(encode(item)) if isinstance(item, m.Record) else item)
            left = len(batch)
            while left:
                left -= await durable.get()
        await wal.close()
        assert not failures


@st.composite
def impossible_logs(draw: st.DrawFn) -> ImpossibleLog:
    """Any log in which items that are drawn follow `PRELUDE`, with what nothing of that names in between."""
    return log_of(draw(st.lists(st.lists(ITEMS, min_size=1, max_size=4), min_size=1, max_size=12)))


def log_of(drawn: list[list[LogItem]]) -> ImpossibleLog:
    """Return the log in which these batches follow `PRELUDE`."""
    batches: list[tuple[LogItem, ...]] = [tuple(PRELUDE), tuple(PRELUDE_OF_OTHERS)]
    third = len(drawn) // 3
    for number, batch in enumerate(drawn):
        batches.append(tuple(batch))
        if third and number in {third, 2 * third}:
            batches.append(tuple(items_of_others(0 if number == third else 1)))
    if not third or third == 2 * third:
        batches += [tuple(items_of_others(0)), tuple(items_of_others(1))]
    batches.append(tuple(items_of_others(2)))
    return ImpossibleLog(tuple(batches))
