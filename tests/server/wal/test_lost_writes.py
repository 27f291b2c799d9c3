"""Logs in which writes are missing, or are in the place of others: told as damage wherever anything follows."""

import pytest

from millrace.server.wal import Damage, Ending, RecoveredBatch, Recovery, log_paths
from millrace.server.wal.batch import encode_batch
from tests.server.wal.laid_logs import FIRST, SECOND, THIRD, batches, overwrite, read, sequences
from tests.support.files import MemoryFileSystem
from tests.support.wal import FOLDER, Placed, append_run, build_log


@pytest.fixture
def files() -> MemoryFileSystem:
    return MemoryFileSystem()


@pytest.mark.parametrize("lost", [1, 2, 3, 4, 5])
def test_a_lost_write_is_corruption_when_anything_follows(files: MemoryFileSystem, lost: int) -> None:
    """Behaviour 42: whether its place is zero or holds an older batch, and also across files."""
    placed = build_log(files, batches(3), batches(3, start=3))
    batch = placed[lost - 1]
    for stands in (bytes(batch.size), stale_batch(batch)):
        overwrite(files, batch.path, batch.offset, stands)

        found, damages, report = read(files)

        assert sequences(found) == [sequence for sequence in range(1, 7) if sequence != lost]
        assert report.ending is Ending.CORRUPT
        assert [(damage.first_sequence, damage.last_sequence) for damage in damages] == [(lost, lost)]
        assert damages[0].place == batch.path.name
        assert damages[0].offset == batch.offset


def stale_batch(batch: Placed) -> bytes:
    """Return what an earlier use of the file may have left in the place of a batch."""
    encoded = encode_batch(batch.runs, sequence=batch.sequence, salt=1, previous_checksum=0, wall_time_us=0)
    return b"".join(encoded.pieces)


def test_the_last_write_lost_without_a_trace_is_the_end(files: MemoryFileSystem) -> None:
    """Nothing on the disk can tell it; closing the log writes the batch that does."""
    placed = build_log(files, batches(3))
    overwrite(files, FIRST, placed[2].offset, bytes(placed[2].size))

    found, damages, report = read(files)

    assert (sequences(found), damages, report.ending) == ([1, 2], [], Ending.ZEROED)


def test_several_lost_writes_in_a_row_are_one_hole(files: MemoryFileSystem) -> None:
    placed = build_log(files, batches(6))
    overwrite(files, FIRST, placed[2].offset, bytes(placed[4].offset - placed[2].offset))

    found, damages, _ = read(files)

    assert sequences(found) == [1, 2, 5, 6]
    assert [(damage.first_sequence, damage.last_sequence) for damage in damages] == [(3, 4)]
    assert damages[0].size == placed[4].offset - placed[2].offset


def test_a_file_that_is_missing_is_a_hole(files: MemoryFileSystem) -> None:
    """The hole is told under the name of the file that is missing; those around it are not blamed."""
    placed = build_log(files, batches(2), batches(3, start=2), batches(2, start=5))
    files.remove(SECOND)

    recovery = Recovery(files, log_paths(files, FOLDER), owner=None)
    items = list(recovery.batches())

    assert sequences([item for item in items if isinstance(item, RecoveredBatch)]) == [1, 2, 6, 7]
    assert [str(item) for item in items if isinstance(item, Damage)] == [
        f"{SECOND.name} offset=0 size=0 sequences=3-5 runs=0+unknown: this file is missing, with batches 3 to 5"
    ]
    assert not any(file.is_damaged for file in recovery.found)
    assert recovery.report.last_sequence == 7
    assert placed[-1].sequence == 7


def test_several_files_that_are_missing_are_named_by_the_first_and_the_last(files: MemoryFileSystem) -> None:
    build_log(files, batches(2), batches(3, start=2), batches(2, start=5), batches(1, start=7))
    files.remove(SECOND)
    files.remove(THIRD)

    _, (damage,), _ = read(files)

    assert (damage.place, damage.first_sequence, damage.last_sequence) == (SECOND.name, 3, 7)
    assert damage.reason == f"this file is missing, and 1 more up to {THIRD.name}, with batches 3 to 7"


def test_a_number_that_was_never_used_excuses_no_damage(files: MemoryFileSystem) -> None:
    """A file that could not be made ready leaves its number unused; what is unreadable is named all the same."""
    placed = build_log(files, batches(2), [], batches(2, start=2))
    files.remove(SECOND)
    overwrite(files, FIRST, placed[1].offset, b"\xff" * 4096)

    _, (damage,), _ = read(files)

    assert (damage.place, damage.offset) == (FIRST.name, placed[1].offset)


def test_a_batch_written_over_an_earlier_one_is_found_and_both_are_accounted_for(files: MemoryFileSystem) -> None:
    """Behaviour 42: a misdirected write destroys one batch and is missing where it belongs."""
    placed = build_log(files, batches(6))
    last, victim = placed[5], placed[2]
    data = files.content(FIRST)[last.offset : last.offset + last.size]
    for by in (0, 8, 64):
        overwrite(files, FIRST, last.offset, bytes(last.size))
        overwrite(files, FIRST, victim.offset + by, data)

        found, damages, report = read(files)

        assert report.ending is Ending.CORRUPT
        assert damages[0].first_sequence == 3
        assert sequences(found)[-1] == 6, by
        assert set(sequences(found)) >= {1, 2, 5, 6}
        lost = {number for damage in damages for number in range(damage.first_sequence, damage.last_sequence + 1)}
        assert set(sequences(found)) | lost == {1, 2, 3, 4, 5, 6}
        files.replace_content(FIRST, files.content(FIRST))


def test_a_batch_out_of_place_proves_that_the_ones_before_it_were_lost(files: MemoryFileSystem) -> None:
    placed = build_log(files, batches(6))
    data = files.content(FIRST)[placed[5].offset : placed[5].offset + placed[5].size]
    overwrite(files, FIRST, placed[4].offset, bytes(2 * placed[4].size + 8))
    overwrite(files, FIRST, placed[2].offset, data)

    found, damages, _ = read(files)

    assert sequences(found) == [1, 2, 4, 6]
    assert [(damage.first_sequence, damage.last_sequence) for damage in damages] == [(3, 3), (5, 5)]


def test_a_batch_written_too_far_on_is_taken_from_there(files: MemoryFileSystem) -> None:
    placed = build_log(files, batches(3))
    last = placed[2]
    data = files.content(FIRST)[last.offset : last.offset + last.size]
    overwrite(files, FIRST, last.offset, bytes(last.size))
    overwrite(files, FIRST, last.offset + 512, data)

    found, damages, _ = read(files)

    assert sequences(found) == [1, 2, 3]
    assert [damage.first_sequence - damage.last_sequence for damage in damages] == [1]


def test_an_old_batch_shining_through_is_unmasked_by_its_successor(files: MemoryFileSystem) -> None:
    """Behaviour 42: right salt, right sequence, sound checksum, and yet not what was acknowledged."""
    placed = build_log(files, batches(4))
    other = encode_batch(
        [append_run(7, 10, b"other-0001"), append_run(8, 10, b"other-0001")],
        sequence=2,
        salt=0x1001,
        previous_checksum=int.from_bytes(files.content(FIRST)[placed[0].offset + 8 :][:4], "little"),
        wall_time_us=0,
    )
    assert other.size == placed[1].size
    overwrite(files, FIRST, placed[1].offset, b"".join(other.pieces))

    found, damages, report = read(files)

    assert sequences(found) == [1, 3, 4]
    assert [(damage.first_sequence, damage.last_sequence, damage.offset) for damage in damages] == [
        (2, 2, placed[1].offset)
    ]
    assert report.batch_count == 3
