"""Steps of random histories that are about transactions."""

from abc import ABC, abstractmethod

from millrace.model.commit_plan import plan_commit
from millrace.model.key_range import KeyRange
from millrace.model.transaction import TransactionPart, TransactionState
from millrace.server.container.state.container_state import ContainerState
from millrace.server.container.state.segment import Segment
from millrace.server.container.state.transaction import Transaction
from millrace.wire import messages as m
from millrace.wire.append_run import AppendRun

TRANSACTION_KINDS = (
    "begin_transaction", "begin_transaction", "add_parts", "add_parts", "append_to_part", "append_to_part", "prepare",
    "commit", "commit", "end_transactions", "forget_outcomes", "take_over", "take_over", "reset_producer",
    "forget_producers",
)  # fmt: skip


class TransactionSteps(ABC):
    """A history that transactions happen in."""

    state: ContainerState
    clock_us: int

    @abstractmethod
    def apply(self, item: AppendRun | m.Record) -> None: ...

    @abstractmethod
    def _append(
        self, segment: Segment, *, amount: int, gap: int, writer_number: int, last_event_number: int
    ) -> None: ...

    def begin_transaction(self, choice: int, amount: int) -> None:
        streams = [stream for stream in self.state.streams.values() if not stream.sealed][: 1 + choice % 2]
        name = f"überweisung-{amount % 4}" if amount % 2 else ""
        known = self.state.transactions.find(name)
        if streams and (known is None or known.state.is_final):
            number = self.state.take_ids(1 + amount % 3)
            self.apply(m.IdsReserved(number, 1 + amount % 3))
            routes = [
                m.TransactionStream(
                    stream.stream_id,
                    stream.epoch,
                    [
                        m.SegmentRangeRecord(part.segment_id, part.key_range.low, part.key_range.last)
                        for part in stream.open_parts
                    ],
                )
                for stream in streams
            ]
            claim = m.ProducerClaim(f"abfrage-{choice % 3}", f"halter-{amount % 2}", f"lauf-{amount % 9}", amount)
            self.apply(
                m.TransactionBegun(
                    number=number,
                    begun_us=self.clock_us,
                    lease_ms=amount,
                    name=name,
                    streams=routes,
                    producers=[claim] if amount % 3 else [],
                )
            )

    def add_parts(self, choice: int, amount: int) -> None:
        if transaction := self._open_transaction(choice):
            stream = transaction.streams[amount % len(transaction.streams)]
            branch = amount % 3
            present = {part.key_range for part in transaction.parts.values() if part.branch == branch}
            parts = [
                m.PartRecord(self.state.take_id(), stream.stream_id, low, last)
                for _, low, last in stream.ranges
                if KeyRange.inclusive(low, last) not in present
            ]
            self.apply(m.PartsAdded(number=transaction.number, branch=branch, added_us=self.clock_us, parts=parts))

    def append_to_part(self, choice: int, amount: int) -> None:
        transaction = self._open_transaction(choice)
        if transaction and (segments := self._parts_of(transaction)):
            segment = segments[amount % len(segments)][1]
            self._append(segment, amount=amount % 99, gap=0, writer_number=0, last_event_number=0)

    def prepare(self, choice: int, amount: int) -> None:
        transaction = self._open_transaction(choice)
        if transaction and transaction.state is TransactionState.OPEN:
            dropped = [part.segment_id for part in transaction.parts.values() if part.branch == amount % 3]
            self.apply(
                m.TransactionPrepared(
                    number=transaction.number,
                    branches=[m.BranchCount(amount % 2, amount)],
                    digest=choice.to_bytes(16),
                    dropped=dropped,
                )
            )

    def commit(self, choice: int, amount: int) -> None:
        transaction = self._open_transaction(choice)
        if transaction is None:
            return
        record = m.TransactionCommitted(
            number=transaction.number,
            committed_us=self.clock_us,
            name=transaction.name,
            digest=amount.to_bytes(16),
            epochs=[],
            parts=[],
            dropped=[],
            cuts=[],
            cursors=[],
        )
        kept = [each for each in self._parts_of(transaction) if each[0].branch != amount % 3 and each[1].length]
        for stream in transaction.streams:
            self._commit_to(record, stream.stream_id, [each for each in kept if each[0].stream_id == stream.stream_id])
        for read in self.state.streams.values():
            positions = [m.SavedPosition(part.segment_id, amount, amount % 3) for part in read.open_parts]
            record.cursors.append(m.MovedCursor(read.stream_id, f"zeiger-{amount % 2}", positions))
        if transaction.producer is not None:
            number = self._producer_number(transaction.producer.writer_id)
            if number % 2:
                sequence = transaction.producer.sequence
                described = m.SequenceDescribed(
                    number=number,
                    producer_id=transaction.producer.writer_id,
                    sequence=sequence,
                    fingerprint=f"streu-{sequence}",
                )
                self.apply(described)
            record.producers.append(m.CommittedProducer(number, *transaction.producer))
        taken = {part.source_id for part in record.parts}
        record.dropped.extend(sorted(transaction.parts.keys() - taken))
        self.apply(record)

    def _commit_to(
        self, record: m.TransactionCommitted, stream_id: int, sources: list[tuple[TransactionPart, Segment]]
    ) -> None:
        stream = self.state.streams.get(stream_id)
        if stream is None or stream.sealed or not sources:
            return
        targets = [self.state.segments.get(part.segment_id) for part in stream.open_parts]
        if any(target is None or target.link is not None for target in targets):
            return
        plan = plan_commit(
            [part for part, _ in sources],
            open_parts=stream.open_parts,
            epoch=stream.epoch,
            take_id=self.state.take_id,
        )
        ends: dict[int, int] = {}
        for part, segment in sources:
            target_id = plan.targets[part.segment_id]
            target = self.state.segments.get(target_id)
            start = ends.setdefault(target_id, 0 if target is None else target.length)
            record.parts.append(m.CommittedPart(part.segment_id, target_id, start, segment.length, segment.event_count))
            ends[target_id] += segment.length
        for epoch in plan.epochs:
            created = [m.SegmentRangeRecord(number, keys.low, keys.last) for number, keys in epoch.created]
            record.epochs.append(m.CommitEpochRecord(stream_id, epoch.number, list(epoch.sealed_ids), created))
        record.cuts.append(
            m.TransactionCut(stream_id, stream.epoch, [m.CutPosition(*end) for end in sorted(ends.items())])
        )

    def take_over(self, choice: int, amount: int) -> None:
        writer_id = f"abfrage-{choice % 3}"
        record = m.ProducerTaken(
            number=self._producer_number(writer_id),
            producer_id=writer_id,
            holder=f"hälter-{choice % 2}",
            run=f"lauf-{amount}",
        )
        self.apply(record)

    def reset_producer(self, choice: int, amount: int) -> None:
        writer_id = f"abfrage-{choice % 3}"
        holder = f"halter-{amount % 2}" if amount % 3 else ""
        self.apply(m.ProducerReset(number=self._producer_number(writer_id), producer_id=writer_id, holder=holder))

    def forget_producers(self, choice: int, amount: int) -> None:
        if known := self.state.caches["producers"].find(f"abfrage-{choice % 3}"):
            self.apply(m.ProducersForgotten([known.number, 2**40]))

    def _producer_number(self, writer_id: str) -> int:
        known = self.state.caches["producers"].find(writer_id)
        return self.state.take_id() if known is None else known.number

    def end_transactions(self, choice: int, amount: int) -> None:
        if transaction := self._open_transaction(choice):
            state = TransactionState.ABORTED if amount % 2 else TransactionState.EXPIRED
            self.apply(m.TransactionsEnded(ended_us=self.clock_us, state=state, numbers=[transaction.number, 2**40]))

    def forget_outcomes(self, choice: int, amount: int) -> None:
        ended = [each.number for each in self.state.transactions.values() if each.state.is_final]
        self.apply(m.OutcomesForgotten(ended[: 1 + amount % 2]))

    def _open_transaction(self, choice: int) -> Transaction | None:
        numbers = sorted(self.state.open_transactions.by_number)
        return self.state.open_transactions.by_number[numbers[choice % len(numbers)]] if numbers else None

    def _parts_of(self, transaction: Transaction) -> list[tuple[TransactionPart, Segment]]:
        """Return the parts that nothing has deleted or merged."""
        segments = [(part, self.state.segments.get(part.segment_id)) for part in transaction.parts.values()]
        return [(part, segment) for part, segment in segments if segment is not None and segment.link is None]
