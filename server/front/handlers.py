"""One function per request that is neither an append nor a read: message in, message out.

Errors are raised; the dispatcher turns them into replies in one place. A refusal tells only what is durable: that is
waited for here, for every request that is no query, before the error is passed on.

What fills and ends a transaction may be sent without waiting for answers, so it has two halves: `admit` decides in the
order in which it was sent, together with the appends between; the reply follows when that is durable.
"""

import json
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from dataclasses import astuple
from functools import partial
from typing import Any, Final, NamedTuple

from millrace.model.limits import SEGMENTS_PER_STREAM_MAX
from millrace.model.names import AFTER_INTERNAL
from millrace.model.producer import Producer
from millrace.server.container.container import SegmentContainer
from millrace.server.container.entity_cache import Pins
from millrace.server.container.loader import page_of_names
from millrace.server.container.merged_borders import load_merged_index
from millrace.server.container.seek import seek_before_event_time, seek_event_time
from millrace.server.container.segment_commands import SegmentCommands
from millrace.server.container.state.segment import Segment
from millrace.server.container.state.stream import Stream
from millrace.server.container.state.transaction import NO_SESSION
from millrace.server.container.writer_commands import WriterCommands
from millrace.server.errors import InvalidArgumentError, ServerError
from millrace.server.streams import (
    AdmittedStep,
    Catalog,
    ExclusiveCommands,
    StreamCommands,
    TransactionCommands,
    step_reply,
)
from millrace.wire import messages as m
from millrace.wire.limits import CONTROL_FRAME_SIZE_BYTES_MAX, FRAME_HEADER_SIZE_BYTES, LIST_PAGE_COUNT_MAX

from .read_only_guard import check_answerable
from .replies import segment_info

INDEX_ENTRIES_COUNT_MAX: Final = 10_000
EPOCH_SIZE_BYTES: Final = 18
"""Of an epoch in STREAM_HISTORY, without its cause and its lists."""
HISTORY_SIZE_BYTES_MAX: Final = CONTROL_FRAME_SIZE_BYTES_MAX - FRAME_HEADER_SIZE_BYTES - 5

Handler = Callable[[Any], Awaitable[m.Message]]


class ReadyReply(NamedTuple):
    """The reply to a request that is decided in this step: it is known, and told when that is durable.

    Attributes:
        is_new: whether this request decided it; else it was before.
    """

    message: m.Message
    is_new: bool


PendingReply = Callable[[], Awaitable[m.Message]]
"""Returns the reply, or raises, once the decision or what a rejection rests on is durable."""
Reply = ReadyReply | PendingReply
"""The reply to a decided request."""
BEFORE_APPENDS: Final = (m.BeginTransaction, m.AddParts)
"""Appends that follow are refused if these are; so they are not even looked at before."""


class Handlers:
    """The requests that a connection hands on; shared by all connections of a client.

    A request is carried out by the method named after its type, which returns the reply that the request declares.
    """

    def __init__(
        self,
        *,
        container: SegmentContainer,
        segments: SegmentCommands,
        writers: WriterCommands,
        streams: StreamCommands,
        exclusive: ExclusiveCommands,
        transactions: TransactionCommands,
        catalog: Catalog,
        explain: Callable[[Stream], dict[str, Any]],
    ) -> None:
        self.container = container
        self._catalog = catalog
        self._explain = explain
        self._segments = segments
        self._writers = writers
        self._streams = streams
        self._exclusive = exclusive
        self._transactions = transactions
        self._session_id = NO_SESSION
        self._address = ""

    def of_session(self, session_id: bytes, address: str) -> "Handlers":
        """Return handlers that know which client their requests come from."""
        bound = copy(self)
        bound._session_id, bound._address = session_id, address  # noqa: SLF001  # a copy of this one
        return bound

    async def handle(self, message: m.Message) -> m.Message:
        """Carry a request out and return its reply. Cancelling does not undo what was decided.

        Raises:
            ContentLostError: the log has lost content that the answer may rest on.
            DecisionLostError: it was refused for something that did not become durable.
            ServerError, InvalidNameError: the request failed.
        """
        check_answerable(message, self.container.loss)
        handler: Handler | None = getattr(self, f"_{message.type.name.lower()}", None)
        if handler is None:
            raise InvalidArgumentError(f"{message.type.name} is not a request")
        with await self.pin(message):
            try:
                return await handler(message)
            except ServerError as error:
                return await self._refused(message, error)

    def admit(self, message: m.Message) -> Reply | None:
        """Decide a request of a transaction in this step, if it is one and nothing has to be waited for; else None.

        What is returned raises like `handle`.
        """
        decide = DECIDED_IN_ORDER.get(type(message))
        if decide is None or not self.container.loader.is_resident(m.required_entities(message)):
            return None
        try:
            check_answerable(message, self.container.loss)
            return decide(self, message)
        except Exception as error:  # noqa: BLE001  # the dispatcher makes it a reply, as of every request
            return partial(self._refused, message, error)

    async def admitted(self, message: m.Message) -> Reply:
        """Decide a request of `BEFORE_APPENDS` when that can be; cancelling is safe. What is returned raises."""
        with await self.pin(message):
            try:
                check_answerable(message, self.container.loss)
                if isinstance(message, m.BeginTransaction):
                    admitted = await self._begin(message)
                    return self._told(admitted, admitted.reply)
                assert isinstance(message, m.AddParts)
                return self._decide_parts(message)
            except ServerError as error:
                return partial(self._refused, message, error)

    async def _refused(self, message: m.Message, error: Exception) -> m.Message:
        """Raise why a request is refused, once what that can rest on is durable."""
        # Refused in this very turn of the loop: what it can rest on is durable already, or in flight now.
        try:
            if isinstance(error, ServerError) and error.tells_state and not isinstance(message, m.Query):
                await self.container.in_flight.settled()
            raise error
        finally:
            del error  # its traceback has this frame: a cycle, which would hold the message until it is collected

    async def pin(self, message: m.Message) -> Pins:
        """Load what a request names, and keep it in memory until that is released.

        Raises:
            StorageError: the checkpoint cannot be read.
        """
        return await self.container.loader.pin(m.required_entities(message))

    async def _create_segment(self, message: m.CreateSegment) -> m.SegmentInfo:
        return segment_info(await self._segments.create(message.name))

    async def _get_segment(self, message: m.GetSegment) -> m.SegmentInfo:
        return segment_info(self._segments.find(segment_id=message.segment_id, name=message.name))

    async def _seal_segment(self, message: m.SealSegment) -> m.SegmentInfo:
        segment = self.container.segment(message.segment_id)
        await self._segments.seal(segment)
        return segment_info(segment)

    async def _truncate_segment(self, message: m.TruncateSegment) -> m.SegmentInfo:
        segment = self.container.segment(message.segment_id)
        await self._segments.truncate(segment, message.offset)
        self.container.reader.forget(segment)
        return segment_info(segment)

    async def _delete_segment(self, message: m.DeleteSegment) -> m.Done:
        segment = self.container.segment(message.segment_id)
        await self._segments.delete(segment)
        self.container.reader.forget(segment)
        return m.Done(1)

    async def _merge_segment(self, message: m.MergeSegment) -> m.SegmentInfo:
        target = self.container.segment(message.target_id)
        await self._segments.merge(target, source_id=message.source_id, source=message.source)
        return segment_info(target)

    async def _list_segments(self, message: m.ListSegments) -> m.SegmentList:
        # So internal segments are not even passed over.
        after = max(message.after, AFTER_INTERNAL)
        cache = self.container.state.segments
        segments: list[Segment] = []
        more = True
        # A page of nothing but segments that were merged is not the last one.
        while more and not segments:
            names, more = await page_of_names(
                cache, cache.archive.names, prefix=message.prefix, after=after, count_max=_page_count(message)
            )
            with await self.container.loader.pin(m.Required(segments=names)):
                found = map(cache.find, names)
                segments = [segment for segment in found if segment is not None and segment.link is None]
            after = names[-1] if names else after
        return m.SegmentList([m.SegmentDescription(*astuple(segment_info(segment))) for segment in segments], int(more))

    async def _set_attribute(self, message: m.SetAttribute) -> m.Attribute:
        value = message.value if message.present else None
        await self._segments.set_attribute(
            self.container.segment(message.segment_id),
            message.key,
            expected=message.expected if message.expected_present else None,
            value=value,
        )
        return m.Attribute(int(value is not None), value or b"")

    async def _get_attribute(self, message: m.GetAttribute) -> m.Attribute:
        value = self.container.segment(message.segment_id).attributes.get(message.key)
        return m.Attribute(int(value is not None), value or b"")

    async def _open_writer(self, message: m.OpenWriter) -> m.WriterOpened:
        self._check_segments(message.segment_ids)
        if message.exclusive:
            return await self._exclusive.open(
                message.writer_id,
                message.segment_ids,
                start_over=bool(message.start_over),
                stream_id=message.stream_id,
                nonce=message.nonce,
                expected=message.expected,
            )
        if message.expected:
            raise InvalidArgumentError("only the opening of an exclusive writer expects the stream to end somewhere")
        return await self._writers.open(
            message.writer_id,
            message.segment_ids,
            start_over=bool(message.start_over),
            stream_id=message.stream_id,
            nonce=message.nonce,
        )

    async def _get_writer(self, message: m.GetWriter) -> m.WriterOpened:
        await self.container.in_flight.settled()  # so what was sent before, and is not told here, is never stored
        self._check_segments(message.segment_ids)
        writer = self._writers.find(message.writer_id)
        self._writers.check_epoch(writer, message.writer_epoch)
        return self._writers.describe(writer, message.segment_ids, stream_id=message.stream_id)

    async def _tell_stored(self, message: m.TellStored) -> m.Done:
        changed = await self._writers.tell_stored(
            message.writer_number, message.writer_epoch, stream_id=message.stream_id, stored_below=message.stored_below
        )
        return m.Done(int(changed))

    async def _reset_sequences(self, message: m.ResetSequences) -> m.Done:
        changed = await self._writers.reset_sequences(
            message.writer_id, stream_id=message.stream_id, stored_through=message.stored_through
        )
        return m.Done(int(changed))

    async def _release_stream(self, message: m.ReleaseStream) -> m.Done:
        changed = await self._exclusive.release(
            message.stream_id, writer_number=message.writer_number, writer_epoch=message.writer_epoch
        )
        return m.Done(int(changed))

    def _check_segments(self, segment_ids: Sequence[int]) -> None:
        """Raise if a segment does not exist, or if there are more than one reply can hold."""
        if len(segment_ids) > SEGMENTS_PER_STREAM_MAX:
            raise InvalidArgumentError(f"a request names at most {SEGMENTS_PER_STREAM_MAX} segments")
        for segment_id in segment_ids:
            self.container.segment(segment_id)

    async def _get_index(self, message: m.GetIndex) -> m.Index:
        segment = self.container.segment(message.segment_id)
        start, end = max(message.start, segment.start_offset), min(message.end, segment.length)
        if message.spacing_bytes < 1:
            raise InvalidArgumentError("spacing_bytes must be above 0", subject=segment.name)
        await self.container.reader.load_index(segment, start, end)
        await load_merged_index(self.container.reader, self.container.state.merged, segment, start, end)
        borders = segment.index.split(start, end, target_bytes=message.spacing_bytes)
        count_max = min(message.count_max, INDEX_ENTRIES_COUNT_MAX)
        return m.Index([m.IndexEntry(*entry[:3]) for entry in borders[:count_max]])

    async def _seek(self, message: m.Seek) -> m.Index:
        segment = self.container.segment(message.segment_id)
        entry = await seek_event_time(
            self.container.reader, self.container.state.merged, segment, timestamp_us=message.timestamp_us
        )
        return m.Index([] if entry is None else [m.IndexEntry(*entry[:3])])

    async def _seek_before(self, message: m.SeekBefore) -> m.Interval:
        segment = self.container.segment(message.segment_id)
        found = await seek_before_event_time(
            self.container.reader,
            self.container.state.merged,
            segment,
            timestamp_us=message.timestamp_us,
            end=min(message.end, segment.length),
        )
        return m.Interval(*(found or (0, 0)))

    async def _create_stream(self, message: m.CreateStream) -> m.StreamInfo:
        stream, created = await self._streams.create(
            message.name,
            segment_count=message.segment_count,
            configuration=message.configuration,
            cursors=[name for (name,) in message.cursors],
        )
        return self._streams.describe(stream, created=created)

    async def _get_stream(self, message: m.GetStream) -> m.StreamInfo:
        stream = self._streams.find(message.name)
        segment_ids = self._streams.page_ids(stream, message)
        # The request pins the open segments only. Of the replaced ones, no more than a page is loaded at once.
        while segment_ids:
            with await self.container.loader.pin(m.Required(segments=segment_ids, open_streams=[message.name])):
                stream = self._streams.find(message.name)
                pinned, segment_ids = set(segment_ids), self._streams.page_ids(stream, message)
                if pinned.issuperset(segment_ids):
                    return self._streams.describe_page(stream, message)
        return self._streams.describe_page(stream, message)

    async def _get_tails(self, message: m.GetTails) -> m.StreamTails:
        # Without a wait: what is durable of one stream here, and of another, is so at one moment.
        return m.StreamTails(self._streams.tails([name for (name,) in message.streams]))

    async def _list_streams(self, message: m.ListStreams) -> m.StreamList:
        count_max = _page_count(message)
        if message.tag:
            names, more = await self._catalog.names_with_tag(
                message.tag, prefix=message.prefix, after=message.after, count_max=count_max
            )
        else:
            cache = self.container.state.streams
            names, more = await page_of_names(
                cache, cache.archive.names, prefix=message.prefix, after=message.after, count_max=count_max
            )
        return m.StreamList([m.ListedStream(name) for name in names], int(more))

    async def _seal_stream(self, message: m.SealStream) -> m.StreamInfo:
        return self._described(await self._streams.seal(message.name, force=bool(message.force)))

    async def _truncate_stream(self, message: m.TruncateStream) -> m.StreamInfo:
        before = [self.container.segment(segment_id) for segment_id in self._streams.find(message.name).segment_ids]
        stream = await self._streams.truncate(message.name, message.positions)
        for segment in before:
            self.container.reader.forget(segment)
        return self._described(stream)

    def _described(self, stream: Stream) -> m.StreamInfo:
        """Return the first page of a stream, all of which is in memory."""
        return self._streams.describe(stream, replaced_from=0)

    async def _scale_stream(self, message: m.ScaleStream) -> m.StreamInfo:
        stream = await self._streams.scale(
            message.name, sealed_ids=message.sealed_ids, ranges=message.ranges, cause="asked for"
        )
        return self._streams.describe(stream)

    async def _update_stream(self, message: m.UpdateStream) -> m.StreamInfo:
        return self._streams.describe(await self._streams.update(message.name, configuration=message.configuration))

    async def _get_stream_history(self, message: m.GetStreamHistory) -> m.StreamHistory:
        epochs = self._streams.find(message.name).epochs
        first = bisect_left(epochs, message.first, key=lambda epoch: epoch.number)
        page = _page_of_epochs(epochs, first)
        return m.StreamHistory(page, more=int(first + len(page) < len(epochs)))

    async def _explain_stream(self, message: m.ExplainStream) -> m.Explanation:
        return m.Explanation(json.dumps(self._explain(self._streams.find(message.name))))

    async def _save_cuts(self, message: m.SaveCuts) -> m.Done:
        await self._streams.save_cuts(message.stream, message.cuts)
        return m.Done(1)

    async def _forget_cut(self, message: m.ForgetCut) -> m.Done:
        return m.Done(int(await self._streams.forget_cut(message.stream, message.name, kind=message.kind)))

    async def _list_cuts(self, message: m.ListCuts) -> m.CutList:
        cuts = self._streams.find(message.name).cuts
        return m.CutList([cuts[key] for key in sorted(cuts)])

    async def _delete_stream(self, message: m.DeleteStream) -> m.Done:
        return m.Done(int(await self._streams.delete(message.name)))

    async def _reserve_ids(self, message: m.ReserveIds) -> m.IdRange:
        return m.IdRange(await self._transactions.reserve_ids(message.count), message.count)

    def _decide_begin(self, message: m.BeginTransaction) -> Reply | None:
        admitted = self._transactions.begin_now(
            message.number,
            message.name,
            lease_ms=message.lease_ms,
            streams=message.streams,
            session_id=self._session_id,
            address=self._address,
            producer=_producer_of(message),
            parts=message.parts,
        )
        return None if admitted is None else self._told(admitted, admitted.reply)

    async def _begin(self, message: m.BeginTransaction) -> AdmittedStep:
        return await self._transactions.begin(
            message.number,
            message.name,
            lease_ms=message.lease_ms,
            streams=message.streams,
            session_id=self._session_id,
            address=self._address,
            producer=_producer_of(message),
            parts=message.parts,
        )

    def _decide_parts(self, message: m.AddParts) -> Reply:
        admitted = self._transactions.add_parts_now(message.number, message.branch, message.parts)
        return self._told(admitted, m.Done(int(admitted.decision is not None)))

    def _decide_commit(self, message: m.CommitTransaction) -> Reply | None:
        # The places of cursors have to be looked up, and what a name leads to has to be loaded.
        if message.cursors or not message.number or not self._transactions.can_commit_now(message.number):
            return None
        admitted = self._transactions.commit_now(
            message.number,
            message.branches,
            drops_others=bool(message.drops_others),
            fingerprint=message.fingerprint,
        )
        return None if admitted is None else self._told(admitted, admitted.reply)

    def _prepared(self, message: m.PrepareTransaction) -> AdmittedStep:
        return self._transactions.prepare_now(message.number, message.branches, drops_others=bool(message.drops_others))

    def _decide_prepare(self, message: m.PrepareTransaction) -> Reply:
        return self._told(self._prepared(message), None)

    def _told(self, admitted: AdmittedStep, message: m.Message | None) -> Reply:
        """Return the reply to a step: the message, or else the transaction as it is when that is durable."""
        if message is None:
            return partial(self._told_as_it_is, admitted)
        return ReadyReply(message, admitted.decision is not None)

    async def _told_as_it_is(self, admitted: AdmittedStep) -> m.TransactionReply:
        """Return a transaction as it is when a step of it is durable."""
        changed = await self._transactions.settled(admitted)
        return step_reply(admitted.transaction, changed=changed)

    async def _commit_transaction(self, message: m.CommitTransaction) -> m.TransactionReply:
        admitted = await self._transactions.commit(
            message.number,
            message.branches,
            drops_others=bool(message.drops_others),
            name=message.name,
            cursors=message.cursors,
            fingerprint=message.fingerprint,
        )
        return await self._told_as_it_is(admitted)

    async def _prepare_transaction(self, message: m.PrepareTransaction) -> m.TransactionReply:
        return await self._told_as_it_is(self._prepared(message))

    async def _abort_transaction(self, message: m.AbortTransaction) -> m.TransactionReply:
        transaction, changed = await self._transactions.abort(message.number, message.name)
        return step_reply(transaction, changed=changed)

    async def _get_transaction(self, message: m.GetTransaction) -> m.TransactionInfo:
        return await self._transactions.answers.outcome_with_names(message.number, message.name)

    async def _renew_transactions(self, message: m.RenewTransactions) -> m.Done:
        return m.Done(int(self._transactions.renew(message.numbers)))

    async def _get_producer(self, message: m.GetProducer) -> m.ProducerInfo:
        return self._transactions.producers.describe(message.producer_id)

    async def _reset_producer(self, message: m.ResetProducer) -> m.Done:
        changed = await self._transactions.producers.reset(
            message.producer_id, expected_holder=message.expected_holder, holder=message.holder
        )
        return m.Done(int(changed))

    async def _delete_producer(self, message: m.DeleteProducer) -> m.Done:
        changed = await self._transactions.producers.delete(message.producer_id, last_sequence=message.last_sequence)
        return m.Done(int(changed))

    async def _list_transactions(self, message: m.ListTransactions) -> m.TransactionList:
        return self._transactions.answers.list_open(after=message.after, count_max=_page_count(message))


def _page_of_epochs(epochs: Sequence[m.EpochRecord], first: int) -> list[m.EpochRecord]:
    """Return epochs from a place on, as many as fit a frame, at least one if there is one."""
    size_bytes = 0
    page: list[m.EpochRecord] = []
    for place in range(first, len(epochs)):
        epoch = epochs[place]
        size_bytes += EPOCH_SIZE_BYTES + len(epoch.cause.encode()) + 8 * len(epoch.sealed_ids) + 24 * len(epoch.created)
        if page and size_bytes > HISTORY_SIZE_BYTES_MAX:
            break
        page.append(epoch)
    return page


def _page_count(message: m.ListSegments | m.ListStreams | m.ListTransactions) -> int:
    return max(1, min(message.count_max or LIST_PAGE_COUNT_MAX, LIST_PAGE_COUNT_MAX))


DECIDED_IN_ORDER: Final[dict[type, Callable[[Handlers, Any], Reply | None]]] = {
    m.BeginTransaction: Handlers._decide_begin,  # noqa: SLF001  # a table of their methods
    m.AddParts: Handlers._decide_parts,  # noqa: SLF001
    m.PrepareTransaction: Handlers._decide_prepare,  # noqa: SLF001
    m.CommitTransaction: Handlers._decide_commit,  # noqa: SLF001
}


def _producer_of(message: m.BeginTransaction) -> Producer | None:
    if len(message.producers) > 1:
        raise InvalidArgumentError("a transaction has one producer, or none", subject=message.name)
    return Producer(*message.producers[0]) if message.producers else None
