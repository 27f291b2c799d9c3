"""Random histories of a container's state, for tests: everything that a log and a flusher may do to it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from millrace.server.container.entity_cache import EntityCache
from millrace.server.container.memtable import LinkedExtent
from millrace.server.container.state.apply import BatchItem, BytesSink, apply_batch, pin_items
from millrace.server.container.state.container_state import ContainerState
from millrace.server.container.state.segment import Segment
from millrace.server.kinds.producers.row import producers_of
from millrace.server.tier2 import ChunkRecord
from millrace.wire import messages as m
from millrace.wire.append_run import AppendRun, Sequences
from millrace.wire.limits import APPEND_HEADER_SIZE_BYTES, SEQUENCED_APPEND_HEADER_SIZE_BYTES
from tests.server.container.states import new_state
from tests.server.container.transaction_steps import TRANSACTION_KINDS, TransactionSteps

KINDS = (
    "create", "append", "append", "append", "append_as_writer", "append_as_writer", "lose", "flush", "flush",
    "compact", "truncate", "seal", "delete", "set_attribute", "unset_attribute", "open_writer", "open_writer",
    "open_on_stream", "open_on_stream", "open_exclusive", "open_exclusive", "release", "append_sequenced",
    "append_sequenced", "tell_stored", "refuse_sequences", "reset_sequences", "expire_writers", "count_uptime",
    "create_stream", "seal_stream", "truncate_stream", "delete_stream", "merge", "scale_stream", "scale_stream",
    "update_stream", "save_cut", "forget_cut", *TRANSACTION_KINDS,
)  # fmt: skip
STEPS = st.tuples(st.sampled_from(KINDS), st.integers(0, 2**16), st.integers(0, 2**16))


def apply(
    state: ContainerState,
    *items: BatchItem,
    sequence: int = 0,
    wall_time_us: int = 0,
    bytes_sink: BytesSink = lambda segment, extent: None,
) -> set[Segment]:
    """Apply items as one batch, the next one if no sequence is given; their bytes are dropped."""
    sequence = sequence or state.sequence + 1
    with pin_items(state, items):
        return apply_batch(state, items, sequence=sequence, wall_time_us=wall_time_us, bytes_sink=bytes_sink)


def run_of(
    segment: Segment,
    *,
    offset: int,
    size: int,
    event_count: int,
    writer_number: int = 0,
    last_event_number: int = 0,
    sequences: Sequences | None = None,
) -> AppendRun:
    """Return a run of one append of so many zeros."""
    header_size = APPEND_HEADER_SIZE_BYTES if sequences is None else SEQUENCED_APPEND_HEADER_SIZE_BYTES
    return AppendRun(
        segment_id=segment.segment_id,
        offset=offset,
        frames=bytes(header_size + size),
        frame_count=1,
        frame_size=header_size + size,
        event_count=event_count,
        writer_number=writer_number,
        last_event_number=last_event_number,
        sequences=sequences,
    )


@dataclass
class History(TransactionSteps):
    """A state, changed by one step after the other. Numbers of a step choose what it applies to, and how much."""

    state: ContainerState = field(default_factory=new_state)
    # What was applied, one item in each batch, and by what clock.
    items: list[tuple[AppendRun | m.Record, int]] = field(default_factory=list)
    clock_us: int = 1_700_000_000_000_000

    def step(self, kind: str, choice: int, amount: int) -> None:
        self.clock_us += amount - 2**14  # it goes back at times
        getattr(self, kind)(choice, amount)

    @property
    def records(self) -> list[m.Record]:
        return [item for item, _ in self.items if not isinstance(item, AppendRun)]

    def apply(self, item: AppendRun | m.Record) -> None:
        self.items.append((item, self.clock_us))
        apply(self.state, item, wall_time_us=self.clock_us)

    def create(self, choice: int, amount: int) -> None:
        segment_id = self.state.take_id()
        name = f"scope/segment-{segment_id}-{amount}"
        self.apply(m.SegmentCreated(segment_id, self.clock_us, f"#{name}" if amount % 3 == 1 else name))

    def append(self, choice: int, amount: int) -> None:
        if segment := self._segment(choice):
            self._append(segment, amount=amount, gap=0, writer_number=0, last_event_number=0)

    def append_as_writer(self, choice: int, amount: int) -> None:
        segment = self._segment(choice)
        numbers = [writer.writer_number for writer in self.state.writers.values() if not writer.row.expired_us]
        if segment and numbers:
            number = numbers[amount % len(numbers)]
            progress = segment.writers.get(number)
            last = (progress.durable if progress else 0) + 1 + amount % 7
            self._append(segment, amount=amount, gap=0, writer_number=number, last_event_number=last)

    def lose(self, choice: int, amount: int) -> None:
        if segment := self._segment(choice):
            self._append(segment, amount=amount, gap=1 + amount % 99, writer_number=0, last_event_number=0)

    def flush(self, choice: int, amount: int) -> None:
        with self._pinned(choice) as segment:
            self._flush(segment, amount)

    def _flush(self, segment: Segment | None, amount: int) -> None:
        if segment and segment.flushed_offset < segment.length and not segment.tail:
            start = segment.flushed_offset
            length = 1 + amount % (segment.length - start)
            events = segment.chunks[-1].end_events if segment.chunks else 0
            name = f"{segment.segment_id}/{start}-{length}"
            end_events = min(segment.event_count, events + amount % 9)
            record = ChunkRecord(start, length, name, length + 200, events, end_events, self.clock_us)
            segment.flushed_offset = start + length
            self.state.replace_chunks(segment, (), [record])

    def compact(self, choice: int, amount: int) -> None:
        with self._pinned(choice) as segment:
            self._compact(segment, amount)

    def _compact(self, segment: Segment | None, amount: int) -> None:
        if segment and len(segment.chunks) >= 2:
            place = amount % (len(segment.chunks) - 1)
            first, second = segment.chunks[place : place + 2]
            length = second.end_offset - first.start_offset
            joined = ChunkRecord(
                first.start_offset, length, f"{first.name}+", length + 200,
                first.start_events, second.end_events, second.end_wall_time_us,
            )  # fmt: skip
            self.state.replace_chunks(segment, [first, second], [joined])

    def truncate(self, choice: int, amount: int) -> None:
        if segment := self._segment(choice):
            offset = amount % (segment.length + 1)
            self.apply(m.SegmentTruncated(segment.segment_id, offset))

    def seal(self, choice: int, amount: int) -> None:
        if segment := self._segment(choice):
            self.apply(m.SegmentSealed(segment.segment_id))

    def merge(self, choice: int, amount: int) -> None:
        target, source = self._segment(choice), self._segment(amount)
        if target and source and target is not source:
            self.apply(m.SegmentSealed(source.segment_id))
            self.apply(
                m.SegmentMerged(
                    target_id=target.segment_id,
                    source_id=source.segment_id,
                    target_offset=target.length,
                    source_start=source.start_offset,
                    size=source.length - source.start_offset,
                    event_count=source.event_count,
                )
            )

    def delete(self, choice: int, amount: int) -> None:
        if segment := self._segment(choice):
            self.apply(m.SegmentDeleted(segment.segment_id))

    def set_attribute(self, choice: int, amount: int) -> None:
        self._attribute(choice, amount, value=amount.to_bytes(amount % 5 + 3, "big"))

    def unset_attribute(self, choice: int, amount: int) -> None:
        self._attribute(choice, amount, value=None)

    def open_writer(self, choice: int, amount: int) -> None:
        writer_id = f"schreiber-ü-{choice % 3}" if choice % 4 else ""
        known = self.state.writers.find(writer_id)
        number = self.state.take_id() if known is None or known.row.expired_us else known.writer_number
        self.apply(
            m.WriterRecorded(writer_number=number, writer_epoch=amount, opened_us=self.clock_us, writer_id=writer_id)
        )

    def open_on_stream(self, choice: int, amount: int) -> None:
        writers = [writer for writer in self.state.writers.values() if writer.writer_id and not writer.row.expired_us]
        streams = list(self.state.streams.values())
        if writers and streams:
            writer = writers[choice % len(writers)]
            self.apply(
                m.WriterRecorded(
                    writer_number=writer.writer_number,
                    writer_epoch=writer.row.epoch + 1,
                    opened_us=self.clock_us,
                    writer_id=writer.writer_id,
                    stream_id=streams[amount % len(streams)].stream_id,
                    nonce=amount.to_bytes(16),
                    is_plain=amount // 3 % 2,
                )
            )

    def open_exclusive(self, choice: int, amount: int) -> None:
        streams = [stream for stream in self.state.streams.values() if not stream.sealed]
        if streams:
            stream_id = streams[amount % len(streams)].stream_id
            writers = [
                writer for writer in self.state.writers.values() if not writer.row.expired_us and writer.writer_id
            ]
            known = writers[choice % len(writers)] if writers and choice % 3 else None
            number = self.state.take_id() if known is None else known.writer_number
            before = self.state.durable.exclusive_writers.get(stream_id)
            fenced = before is not None and before.number != number and choice % 2
            self.apply(
                m.WriterRecorded(
                    writer_number=number,
                    writer_epoch=1 if known is None else known.row.epoch + 1,
                    opened_us=self.clock_us,
                    writer_id="" if known is None else known.writer_id,
                    stream_id=stream_id,
                    nonce=amount.to_bytes(16),
                    is_exclusive=1,
                    fenced_number=before.number if before and fenced else 0,
                    fenced_epoch=before.epoch + 1 if before and fenced else 0,
                )
            )

    def release(self, choice: int, amount: int) -> None:
        if held := list(self.state.durable.exclusive_writers.items()):
            stream_id, writer = held[choice % len(held)]
            self.apply(
                m.ExclusiveReleased(
                    stream_id=stream_id,
                    writer_number=writer.number,
                    writer_epoch=writer.epoch,
                    fenced_epoch=writer.epoch + 1 if amount % 2 else 0,
                )
            )

    def append_sequenced(self, choice: int, amount: int) -> None:
        found = self._writer_on_stream(choice)
        segments = [
            segment
            for segment in self.state.segments.values()
            if found and segment.stream_id == found[1] and not segment.sealed
        ]
        if found and segments:
            segment = segments[amount % len(segments)]
            progress = segment.writers.get(found[0])
            first = amount // 7
            sequences = Sequences(first, first + 3, max(0, first - amount % 50))
            run = run_of(
                segment,
                offset=segment.length,
                size=1 + amount % 99,
                event_count=3,
                writer_number=found[0],
                last_event_number=(progress.durable if progress else 0) + 3,
                sequences=sequences,
            )
            self.apply(run)

    def tell_stored(self, choice: int, amount: int) -> None:
        if found := self._writer_on_stream(choice):
            self.apply(m.StoredTold(*found, amount // 7))

    def refuse_sequences(self, choice: int, amount: int) -> None:
        if found := self._writer_on_stream(choice):
            self.apply(
                m.SequencesRefused(
                    writer_number=found[0],
                    stream_id=found[1],
                    segment_id=amount,
                    first_sequence=choice,
                    stored_through=choice + amount,
                )
            )

    def reset_sequences(self, choice: int, amount: int) -> None:
        if found := self._writer_on_stream(choice):
            self.apply(
                m.SequencesReset(
                    writer_number=found[0],
                    writer_epoch=self.state.writers[found[0]].row.epoch + 1,
                    stream_id=found[1],
                    stored_through=amount - 1,
                )
            )

    def _writer_on_stream(self, choice: int) -> tuple[int, int] | None:
        """Return the numbers of a writer and of a stream that it was opened for."""
        found = [
            (writer.writer_number, stream_id)
            for writer in self.state.writers.values()
            for stream_id in writer.streams
            if stream_id in self.state.streams
        ]
        return found[choice % len(found)] if found else None

    def expire_writers(self, choice: int, amount: int) -> None:
        chosen = [writer for writer in self.state.writers.values() if writer.writer_number % 3 == choice % 3]
        self.apply(
            m.WritersExpired(
                expired_us=self.clock_us,
                marked=[writer.writer_number for writer in chosen if writer.writer_id and not writer.row.expired_us],
                forgotten=[writer.writer_number for writer in chosen if writer.row.expired_us or not writer.writer_id],
            )
        )

    def count_uptime(self, choice: int, amount: int) -> None:
        self.apply(m.UptimeCounted(choice + amount, self.clock_us + choice * 1_000_000, self.clock_us, "boot"))

    def create_stream(self, choice: int, amount: int) -> None:
        stream_id = self.state.take_id()
        border = (amount << 47) + 1
        segments = [
            m.SegmentRangeRecord(self.state.take_id(), 0, border - 1),
            m.SegmentRangeRecord(self.state.take_id(), border, 2**64 - 1),
        ]
        self.apply(
            m.StreamCreated(
                stream_id=stream_id,
                created_us=self.clock_us,
                name=f"scope/stream-{stream_id}",
                configuration=f'{{"tags": ["{amount}"]}}',
                segments=segments,
                cursors=[m.CursorName("cursor-ü")] if amount % 2 else [],
            )
        )

    def seal_stream(self, choice: int, amount: int) -> None:
        if streams := [stream.stream_id for stream in self.state.streams.values()]:
            self.apply(m.StreamSealed(streams[choice % len(streams)]))

    def truncate_stream(self, choice: int, amount: int) -> None:
        if streams := list(self.state.streams.values()):
            stream = streams[choice % len(streams)]
            positions = [m.SavedPosition(part.segment_id, amount, choice % 3) for part in stream.parts]
            self.apply(m.StreamStartMoved(stream.stream_id, positions))

    def scale_stream(self, choice: int, amount: int) -> None:
        streams = [stream for stream in self.state.streams.values() if not stream.sealed]
        if not streams:
            return
        stream = streams[choice % len(streams)]
        parts = stream.open_parts
        first = amount % len(parts)
        if parts[first].key_range.width == 1:
            return
        if amount % 3 or first + 1 == len(parts):
            low, last = parts[first].key_range.low, parts[first].key_range.last
            if low == last:
                return  # one place is not split
            border = low + (last - low) // 2 + 1
            sealed, ranges = parts[first : first + 1], [(low, border - 1), (border, last)]
        else:
            sealed, ranges = parts[first : first + 2], [(parts[first].key_range.low, parts[first + 1].key_range.last)]
        self.apply(
            m.StreamScaled(
                stream_id=stream.stream_id,
                epoch=stream.epoch + 1,
                scaled_us=self.clock_us,
                cause=f"größe {amount}",
                sealed_ids=[part.segment_id for part in sealed],
                created=[m.SegmentRangeRecord(self.state.take_id(), low, last) for low, last in ranges],
            )
        )

    def update_stream(self, choice: int, amount: int) -> None:
        if streams := [stream.stream_id for stream in self.state.streams.values()]:
            self.apply(m.StreamUpdated(streams[choice % len(streams)], f'{{"tags": ["grün-{amount}"]}}'))

    def save_cut(self, choice: int, amount: int) -> None:
        if streams := list(self.state.streams.values()):
            stream = streams[choice % len(streams)]
            positions = [m.SavedPosition(part.segment_id, amount, amount % 3) for part in stream.open_parts]
            names = ["marke-ü-0", "marke-ü-1"][: 1 + amount // 2 % 2]
            cuts = [m.NamedCut(1 + amount % 2, name, positions, amount % 3) for name in names]
            self.apply(m.CutsSaved(stream_id=stream.stream_id, saved_us=self.clock_us, cuts=cuts))

    def forget_cut(self, choice: int, amount: int) -> None:
        if streams := [stream.stream_id for stream in self.state.streams.values()]:
            self.apply(m.CutForgotten(streams[choice % len(streams)], 1 + amount % 2, f"marke-ü-{amount // 2 % 2}"))

    def delete_stream(self, choice: int, amount: int) -> None:
        if streams := [stream.stream_id for stream in self.state.streams.values()]:
            self.apply(m.StreamDeleted(streams[choice % len(streams)]))

    @contextmanager
    def _pinned(self, choice: int) -> Iterator[Segment | None]:
        """Keep a segment in memory while it is changed by something other than the fold."""
        segment = self._segment(choice)
        ids = [] if segment is None else [segment.segment_id]
        with self.state.segments.pin(ids):
            yield self.state.segments.get(ids[0]) if ids else None

    def _segment(self, choice: int) -> Segment | None:
        segments = [segment for segment in self.state.segments.values() if segment.link is None]
        return segments[choice % len(segments)] if segments else None

    def _append(self, segment: Segment, *, amount: int, gap: int, writer_number: int, last_event_number: int) -> None:
        if segment.sealed:
            return  # no server admits that
        self.apply(
            run_of(
                segment,
                offset=segment.length + gap,
                size=1 + amount,
                event_count=amount % 10,
                writer_number=writer_number,
                last_event_number=last_event_number,
            )
        )

    def _attribute(self, choice: int, amount: int, *, value: bytes | None) -> None:
        if segment := self._segment(choice):
            self.apply(
                m.AttributeSet(
                    segment_id=segment.segment_id,
                    present=int(value is not None),
                    key=f"schlüssel-{amount % 4}",
                    value=value or b"",
                )
            )


def history(*steps: tuple[str, int, int], state: ContainerState | None = None) -> History:
    """Return a history after some steps. One whose changes will be stored needs a state that finds them again."""
    result = History() if state is None else History(state)
    for step in steps:
        result.step(*step)
    return result


def durable_view(state: ContainerState) -> dict[str, Any]:
    """Return everything that must survive, in a form that can be compared and printed."""
    return {
        "segments": {segment.segment_id: _segment_view(segment) for segment in state.segments.values()},
        "segment_names": _numbers_by_name(state.segments, [segment.name for segment in state.segments.values()]),
        "writers": {
            writer.writer_number: (
                (writer.writer_id, writer.row.epoch, writer.row.opened_us),
                (writer.active_us, writer.row.expired_us, writer.seen_uptime_us, writer.row.nonces),
                # What is left of deleted streams is forgotten when the writer is evicted.
                {
                    stream_id: (repr(view.row), view.is_plain, view.refusal)
                    for stream_id, progress in sorted(writer.streams.items())
                    if stream_id in state.streams
                    for view in [progress.durable]
                },
            )
            for writer in state.writers.values()
        },
        "writer_ids": _numbers_by_name(state.writers, [writer.writer_id for writer in state.writers.values()]),
        "streams": {
            stream.stream_id: (
                (stream.name, stream.configuration, stream.created_us, stream.sealed),
                stream.epoch,
                list(stream.parts),
                list(stream.epochs),
                dict(sorted(stream.cuts.items())),
            )
            for stream in state.streams.values()
        },
        "exclusive_writers": dict(sorted(state.durable.exclusive_writers.items())),
        "stream_names": _numbers_by_name(state.streams, [stream.name for stream in state.streams.values()]),
        "transactions": {
            each.number: (
                (each.name, each.state, each.row.begun_us, each.row.lease_ms, each.row.digest),
                (each.row.decided_us, each.decided_uptime_us),
                list(each.streams),
                dict(sorted(each.parts.items())),
                list(each.row.cuts),
                list(each.row.branches),
                each.producer,
            )
            for each in state.transactions.values()
        },
        "transaction_names": _numbers_by_name(state.transactions, [each.name for each in state.transactions.values()]),
        "producers": {each.number: each.row for each in producers_of(state).values()},
        "producer_ids": _numbers_by_name(producers_of(state), [each.name for each in producers_of(state).values()]),
        "open": sorted(state.open_transactions.by_number),
        "horizon": state.scalars.horizon,
        "counts": {kind: len(cache) for kind, cache in state.caches.items()},
        "next_id": state.scalars.next_id,
        "uptime_us": state.scalars.uptime_us,
        "clock_history": (state.scalars.clock_history.last, state.scalars.clock_history.anchors),
    }


def _numbers_by_name(shelf: EntityCache[Any], names: list[str]) -> dict[str, int]:
    """Return where each name leads; one of an entity whose namesake with a higher number was deleted leads nowhere."""
    found = {name: shelf.find(name) for name in sorted(names) if name}
    return {name: shelf.number_of(each) for name, each in found.items() if each is not None}


def _segment_view(segment: Segment) -> tuple[Any, ...]:
    link = segment.link
    return (
        link and tuple(getattr(link, name) for name in LinkedExtent.__slots__),
        segment.name,
        (segment.stream_id, segment.keys),
        segment.created_us,
        (segment.start, segment.flushed_offset, segment.length, segment.event_count),
        segment.sealed,
        list(segment.chunks),
        list(segment.damages),
        dict(segment.attributes),
        {number: (progress.durable, progress.last_offset) for number, progress in sorted(segment.writers.items())},
    )
