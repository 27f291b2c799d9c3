import random
import uuid
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millrace.server.errors import FolderVersionError
from millrace.server.wal import (
    Damage,
    Ending,
    LogOwner,
    RecoveredBatch,
    Recovery,
    RecoveryReport,
    log_paths,
)
from millrace.server.wal.batch import FileHeader, encode_batch, encode_file_header
from tests.server.wal.laid_logs import FIRST, SECOND, THIRD, batches, overwrite, read, sequences
from tests.support.files import MemoryFileSystem
from tests.support.wal import FOLDER, OWNER, append_run, build_log, contents_of, control_run, recover

HEADER_FIELDS = {
    "magic": (0, 4),
    "size": (4, 4),
    "checksum": (8, 4),
    "table_checksum": (12, 4),
    "sequence": (16, 8),
    "salt": (24, 8),
    "previous_checksum": (32, 4),
    "run_count": (36, 4),
    "wall_time_us": (40, 8),
    "reserved": (48, 16),
}
# Batches whose table does not survive damage to these fields, or whose place in the log they decide.
UNREADABLE_FIELDS = {"sequence", "salt", "previous_checksum", "run_count", "wall_time_us", "reserved"}


@pytest.fixture
def files() -> MemoryFileSystem:
    return MemoryFileSystem()


def test_a_sound_log_is_read_back_whole(files: MemoryFileSystem) -> None:
    placed = build_log(files, batches(4), batches(3, start=4))

    found, damages, report = read(files)

    assert damages == []
    assert sequences(found) == [1, 2, 3, 4, 5, 6, 7]
    assert [(batch.place, batch.offset, batch.size) for batch in found] == [
        (batch.path.name, batch.offset, batch.size) for batch in placed
    ]
    assert contents_of(found)[8] == [(10 * index, b"eight-%04d" % index) for index in range(7)]
    assert [batch.wall_time_us for batch in found] == [1000 * sequence for sequence in range(1, 8)]
    assert report == RecoveryReport(
        ending=Ending.ZEROED,
        torn_bytes=0,
        damages=[],
        first_sequence=1,
        last_sequence=7,
        batch_count=7,
        size_bytes=sum(batch.size for batch in placed),
        places=(FIRST.name, SECOND.name),
        end_offset=(placed[-1].offset + placed[-1].size + 7) // 8 * 8,
        used_file_number=2,
    )


def test_an_empty_folder_is_an_empty_log(files: MemoryFileSystem) -> None:
    files.make_directories(FOLDER)

    found, damages, report = read(files)

    assert (found, damages) == ([], [])
    assert (report.ending, report.last_sequence, report.end_offset) == (Ending.END, 0, 0)


def test_a_new_log_without_batches_is_zeroed(files: MemoryFileSystem) -> None:
    build_log(files, [], [])

    found, damages, report = read(files)

    assert (found, damages) == ([], [])
    assert (report.ending, report.end_offset) == (Ending.ZEROED, 4096)


def test_only_what_is_asked_for_is_handed_out(files: MemoryFileSystem) -> None:
    build_log(files, batches(4), batches(3, start=4))

    found, damages, report = read(files, from_sequence=6)

    assert (sequences(found), damages) == ([6, 7], [])
    assert (report.first_sequence, report.batch_count) == (1, 7)


@pytest.mark.parametrize("is_truncated", [False, True])
def test_a_write_cut_at_any_byte_leaves_all_before_it(files: MemoryFileSystem, is_truncated: bool) -> None:
    """Behaviour 39: the torn tail is dropped and its size named."""
    placed = build_log(files, batches(3))
    whole = files.content(FIRST)
    ends = [batch.offset + batch.size for batch in placed]
    for cut in range(4096, ends[-1] + 1):
        files.replace_content(FIRST, whole[:cut] if is_truncated else whole[:cut].ljust(len(whole), b"\0"))

        found, damages, report = read(files)

        assert damages == []
        assert sequences(found) == [index + 1 for index, end in enumerate(ends) if end <= cut], cut
        rest = whole[:cut][(found[-1].offset + found[-1].size + 7) // 8 * 8 if found else 4096 :]
        remains = rest.rstrip(b"\0")
        if is_truncated and len(rest) < 64:
            assert (report.ending, report.torn_bytes) == (Ending.END, 0)
        else:
            assert report.torn_bytes == len(remains), cut
            assert report.ending is (Ending.TORN if remains else Ending.ZEROED)


def test_stale_batches_of_a_recycled_file_are_the_end(files: MemoryFileSystem) -> None:
    """Behaviour 42: an older salt is not part of the log."""
    stale = b"".join(
        b"".join(encode_batch(runs, sequence=100 + index, salt=5, previous_checksum=0, wall_time_us=0).pieces)
        for index, runs in enumerate(batches(3))
    )
    build_log(files, batches(2), remains=stale, is_recycled=True)

    found, damages, report = read(files)

    assert (sequences(found), damages, report.ending) == ([1, 2], [], Ending.END)


@pytest.mark.parametrize("field", HEADER_FIELDS)
@pytest.mark.parametrize("kind", ["flip", "zero"])
def test_damage_to_any_header_field_refuses_no_more_than_that_batch(
    files: MemoryFileSystem, field: str, kind: str
) -> None:
    """Behaviour 41: only the range concerned is refused, with file and offset; everything else is served."""
    placed = build_log(files, batches(5))
    batch = placed[2]
    start, size = HEADER_FIELDS[field]
    offset = batch.offset + start
    old = files.content(FIRST)[offset : offset + size]
    new = bytes(size) if kind == "zero" else bytes([old[0] ^ 4]) + old[1:]
    overwrite(files, FIRST, offset, new)

    found, damages, report = read(files)

    if new == old:
        assert damages == []
        return
    assert report.ending is Ending.CORRUPT
    assert [(damage.place, damage.offset) for damage in damages] == [(FIRST.name, batch.offset)]
    assert report.damages == damages
    if field in UNREADABLE_FIELDS:
        assert sequences(found) == [1, 2, 4, 5]
        assert (damages[0].first_sequence, damages[0].last_sequence, damages[0].is_complete) == (3, 3, False)
        assert damages[0].size == placed[3].offset - batch.offset
    else:
        assert sequences(found) == [1, 2, 3, 4, 5]
        assert len(contents_of(found)[7]) == 5
        assert (damages[0].runs, damages[0].is_complete) == ((), True)
        assert damages[0].first_sequence > damages[0].last_sequence


def test_a_flip_in_any_byte_of_a_batch_is_found_and_costs_at_most_that_batch(files: MemoryFileSystem) -> None:
    """Behaviour 41."""
    placed = build_log(files, batches(4))
    batch = placed[1]
    whole = files.content(FIRST)
    expected = {segment_id: set(runs) for segment_id, runs in contents_of(read(files)[0]).items()}
    table_end = 64 + 2 * 80
    frames_size = len(batch.runs[0].frames)
    for position in range(batch.size):
        overwrite(files, FIRST, batch.offset + position, bytes([whole[batch.offset + position] ^ 0x10]))

        found, damages, report = read(files)

        assert report.ending is Ending.CORRUPT
        assert len(damages) == 1
        assert set(sequences(found)) >= {1, 3, 4}
        for segment_id, runs in contents_of(found).items():
            assert set(runs) <= expected[segment_id], position
        if position >= table_end:
            is_first = position < table_end + frames_size
            assert damages[0].runs == (((7, 10, 10),) if is_first else ((8, 10, 10),)), position
            assert damages[0].is_complete
            assert [run.segment_id for batch in found if batch.sequence == 2 for run in batch.runs] == [
                8 if is_first else 7
            ]
        files.replace_content(FIRST, whole)


def test_damage_follows_what_was_salvaged(files: MemoryFileSystem) -> None:
    placed = build_log(files, batches(3))
    files.flip_bit(FIRST, 8 * (placed[1].offset + placed[1].size - 1))

    items, _ = recover(files)

    assert [type(item) for item in items] == [RecoveredBatch, RecoveredBatch, Damage, RecoveredBatch]


def test_a_lost_control_record_is_named_by_segment_zero(files: MemoryFileSystem) -> None:
    placed = build_log(files, [[control_run(b"create")], [append_run(7, 0, b"x")]])
    files.flip_bit(FIRST, 8 * (placed[0].offset + placed[0].size - 1))

    _, damages, _ = read(files)

    assert damages[0].runs == ((0, 0, 24 + 6),)


@pytest.mark.parametrize("path", [FIRST, SECOND, THIRD])
@pytest.mark.parametrize("kind", ["flip", "zero", "of another file"])
def test_a_damaged_file_header_costs_no_batch(files: MemoryFileSystem, path: Path, kind: str) -> None:
    build_log(files, batches(2), batches(3, start=2), batches(2, start=5))
    if kind == "flip":
        files.flip_bit(path, 8 * 45)
    elif kind == "zero":
        overwrite(files, path, 0, bytes(4096))
    else:
        header = FileHeader(
            recycled=False, container_id=1, server_id=OWNER.server_id, file_number=77, salt=77, sequence_floor=0
        )
        overwrite(files, path, 0, encode_file_header(header))

    found, damages, report = read(files)

    assert sequences(found) == [1, 2, 3, 4, 5, 6, 7]
    assert [(damage.place, damage.offset, damage.runs, damage.is_complete) for damage in damages] == [
        (path.name, 0, (), True)
    ]
    assert report.ending is Ending.CORRUPT


def test_a_damaged_header_of_an_unused_file_is_named_too(files: MemoryFileSystem) -> None:
    build_log(files, batches(2), [])
    files.flip_bit(SECOND, 0)

    found, damages, _ = read(files)

    assert sequences(found) == [1, 2]
    assert [damage.place for damage in damages] == [SECOND.name]


def test_stale_batches_under_a_damaged_header_are_not_taken(files: MemoryFileSystem) -> None:
    build_log(files, batches(2), batches(2, start=50), first_sequence=1)
    stale = [
        encode_batch(runs, sequence=3 + index, salt=9, previous_checksum=1, wall_time_us=0).pieces
        for index, runs in enumerate(batches(2, start=70))
    ]
    overwrite(files, SECOND, 0, bytes(4096) + b"".join(piece for pieces in stale for piece in pieces))

    found, _, _ = read(files)

    assert sequences(found)[:2] == [1, 2]
    assert not any(payload.endswith((b"0070", b"0071")) for _, payload in contents_of(found)[7])


def test_a_torn_tail_followed_by_the_next_file_is_not_damage(files: MemoryFileSystem) -> None:
    """The log continued in the next file because this one was damaged: its torn tail was left as it was."""
    placed = build_log(files, batches(3), batches(2, start=3))
    remains = encode_batch(batches(1)[0], sequence=4, salt=0x1001, previous_checksum=1, wall_time_us=0)
    end = (placed[2].offset + placed[2].size + 7) // 8 * 8
    overwrite(files, FIRST, end, b"".join(remains.pieces)[:-20])

    found, damages, report = read(files)

    assert (sequences(found), damages, report.ending) == ([1, 2, 3, 4, 5], [], Ending.ZEROED)


def test_a_log_that_starts_later_than_is_needed_is_damaged(files: MemoryFileSystem) -> None:
    build_log(files, batches(3), first_sequence=10)

    assert read(files)[1] == []
    assert read(files, from_sequence=10)[1] == []
    _, damages, _ = read(files, from_sequence=8)

    assert [(damage.first_sequence, damage.last_sequence) for damage in damages] == [(8, 9)]


def test_damage_below_what_is_needed_is_reported_and_not_handed_out(files: MemoryFileSystem) -> None:
    placed = build_log(files, batches(4))
    files.flip_bit(FIRST, 8 * (placed[0].offset + placed[0].size - 1))

    found, damages, report = read(files, from_sequence=3)

    assert (sequences(found), damages) == ([3, 4], [])
    assert [damage.first_sequence for damage in report.damages] == [1]


def test_a_newer_version_is_refused_with_both_named(files: MemoryFileSystem) -> None:
    """Behaviour 47."""
    build_log(files, batches(1))
    header = FileHeader(
        version=3, recycled=False, container_id=1, server_id=OWNER.server_id, file_number=1, salt=1, sequence_floor=0
    )
    overwrite(files, FIRST, 0, encode_file_header(header))

    with pytest.raises(FolderVersionError, match="written in version 3; this server reads version 2"):
        read(files)


def test_reading_offline_needs_no_owner_and_takes_single_files(files: MemoryFileSystem) -> None:
    build_log(files, batches(2), batches(3, start=2))

    recovery = Recovery(files, [SECOND], owner=None)

    assert [item.sequence for item in recovery.batches() if isinstance(item, RecoveredBatch)] == [3, 4, 5]
    assert recovery.report.ending is Ending.ZEROED
    with pytest.raises(FolderVersionError):
        list(Recovery(files, log_paths(files, FOLDER), owner=LogOwner(1, uuid.UUID(int=1))).batches())


def test_a_damage_speaks_for_itself(files: MemoryFileSystem) -> None:
    placed = build_log(files, batches(3))
    overwrite(files, FIRST, placed[1].offset, bytes(placed[1].size))

    _, damages, _ = read(files)

    assert str(damages[0]) == (
        f"wal-0000000000000001.log offset={placed[1].offset} size={placed[2].offset - placed[1].offset} "
        "sequences=2-2 runs=0+unknown: valid batches follow unreadable bytes"
    )


@example(seed=855)  # a file without header and batches, before one that has some
@given(seed=st.integers(0, 2**32 - 1))
def test_whatever_is_damaged_nothing_false_is_told_and_nothing_is_missing_unsaid(seed: int) -> None:
    """Behaviour 41, 42: any bytes of any file overwritten by noise, zeros or other parts of the log."""
    choices = random.Random(seed)
    files = MemoryFileSystem()
    build_log(files, batches(4), batches(4, start=4), batches(3, start=8))
    expected = {segment_id: set(runs) for segment_id, runs in contents_of(read(files)[0]).items()}
    end = read(files)[0][-1]
    for _ in range(choices.randint(1, 4)):
        path = choices.choice((FIRST, SECOND, THIRD))
        content = files.content(path)
        size = choices.choice((1, 8, 60, 300, 700))
        # The last batch of all stays, as the proof of what came before it.
        limit = (end.offset if path == THIRD else 4096 + 1500) - size
        offset = choices.randrange(max(1, limit))
        source = choices.choice(
            (bytes(size), choices.randbytes(size), content[4096 + 8 * choices.randrange(50) :][:size])
        )
        overwrite(files, path, offset, source)

    found, damages, report = read(files)

    lost = {number for damage in damages for number in range(damage.first_sequence, damage.last_sequence + 1)}
    assert sequences(found) == sorted(set(sequences(found)))
    assert set(sequences(found)) | lost == set(range(1, 12)), seed
    for segment_id, runs in contents_of(found).items():
        assert set(runs) <= expected[segment_id]
    named = {run for damage in damages for run in damage.runs}
    for batch in found:
        if batch.sequence not in lost:
            assert len(batch.runs) == 2
        else:
            assert len(batch.runs) + sum(run[1] == 10 * (batch.sequence - 1) for run in named) == 2
    assert report.batch_count <= 11
