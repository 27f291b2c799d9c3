"""What is missing of a log, found out from what recovery tells."""

from millrace.server.container.log_loss import LogLoss, LossFinder
from millrace.server.wal import NOTHING_ACCEPTED, AcceptedLoss, Damage, RecoveredBatch, RecoveryReport
from tests.support.tables import table

CAPACITY_BYTES = 1 << 20


def damage(first: int, last: int, **fields: object) -> Damage:
    values: dict[str, object] = {"place": "wal-1.log", "offset": 0, "size": 100, "reason": "gone"} | fields
    return Damage(first_sequence=first, last_sequence=last, **values)  # type: ignore[arg-type]  # of its own fields


def batch(sequence: int, wall_time_us: int) -> RecoveredBatch:
    return RecoveredBatch(sequence, wall_time_us, [], "wal-1.log", 0, 64)


def found(
    *items: RecoveredBatch | Damage,
    last: int,
    checkpoint: int = 0,
    accepted: AcceptedLoss = NOTHING_ACCEPTED,
    places: tuple[str, ...] = ("wal-1.log",),
    has_log: bool = True,
) -> LogLoss | None:
    finder = LossFinder(checkpoint_sequence=checkpoint, checkpoint_time_us=7, accepted=accepted, has_log=has_log)
    for item in items:
        finder.read(item)
    return finder.loss(RecoveryReport(last_sequence=last, places=places), capacity_bytes=CAPACITY_BYTES)


@table(
    "loss",
    [
        found(last=9),
        found(last=9, checkpoint=9),
        # All appends are known by name: their ranges are damaged, and their offsets taken.
        found(damage(5, 5, is_complete=True, runs=((3, 0, 10),)), last=9),
        # No batch, but bytes that can be done without.
        found(damage(1, 0, is_complete=True), last=9),
        # What the checkpoint contains.
        found(damage(5, 8), last=9, checkpoint=8),
        found(last=5, checkpoint=8, accepted=AcceptedLoss(8, 1)),
        found(last=0, places=(), has_log=False),
        found(last=0, checkpoint=8, places=(), has_log=False, accepted=AcceptedLoss(8, 1)),
    ],
)
def test_nothing_is_missing(loss: LogLoss | None) -> None:
    """Behaviour 41: what can be named refuses its own range, and nothing else."""
    assert loss is None


@table(
    ("loss", "size_bytes"),
    [
        (found(damage(5, 8), last=9), 100),
        (found(damage(5, 8), last=9, checkpoint=7), 100),
        (found(damage(5, 8, is_bounded=False), last=9), CAPACITY_BYTES),
        # A record is among what is lost: nobody knows what it decided.
        (found(damage(5, 5, is_complete=True, runs=((3, 0, 10), (0, 0, 24))), last=9), 100),
        (found(damage(1, 1, is_end=True, is_bounded=False), last=0, checkpoint=8), CAPACITY_BYTES),
        (found(last=5, checkpoint=8), CAPACITY_BYTES),
        (found(last=8, checkpoint=9, accepted=AcceptedLoss(7, 1)), CAPACITY_BYTES),
        (found(last=0, places=()), CAPACITY_BYTES),
    ],
)
def test_something_is_missing(loss: LogLoss | None, size_bytes: int) -> None:
    """Behaviour 82: how much at most."""
    assert loss is not None
    assert loss.size_bytes == size_bytes
    assert loss.reasons


def test_a_loss_tells_since_when() -> None:
    """Behaviour 82: since the last batch before it, or since the checkpoint if that is newer."""
    loss = found(batch(4, 1_700_000_000_000_000), damage(5, 8), batch(9, 1_800_000_000_000_000), last=9)
    assert loss is not None
    assert (loss.first_sequence, loss.last_sequence) == (5, 10)
    assert "after batch 4, since 2023-11-14T22:13:20.000+00:00, at most 1 KiB of it: wal-1.log: gone" in str(loss)
    assert "millrace repair FOLDER --accept-loss" in str(loss.error())
    loss = found(batch(4, 1_700_000_000_000_000), damage(5, 8), last=9, checkpoint=6)
    assert loss is not None
    assert loss.since_us == 7
    assert loss.first_sequence == 7
