import dataclasses
import re
import uuid

from hypothesis import given
from hypothesis import strategies as st

from millrace.model.checksum import crc32c
from millrace.server.wal.batch import (
    FileHeader,
    aligned,
    decode_batch,
    decode_damaged_batch,
    decode_file_header,
    decode_runs,
    encode_batch,
    encode_file_header,
    is_run_intact,
)
from millrace.wire.append_run import KIND_CONTROL, AppendRun, Sequences
from millrace.wire.schema import log as schema
from tests.support.tables import table
from tests.support.wal import append_run, control_run, payload_of

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
I63 = st.integers(0, 2**63 - 1)
RUNS = st.builds(
    AppendRun,
    segment_id=U64,
    offset=U64,
    frames=st.binary(max_size=200),
    frame_count=U32,
    frame_size=U32,
    event_count=U32,
    writer_number=U64,
    last_event_number=U64,
    writer_epoch=U32,
    kind=st.integers(0, 255),
    sequences=st.none() | st.builds(Sequences, I63, I63, I63),
)
HEADERS = st.builds(
    FileHeader,
    recycled=st.booleans(),
    container_id=U64,
    server_id=st.uuids(),
    file_number=U64,
    salt=U64,
    sequence_floor=U64,
)


def encoded(runs: list[AppendRun], *, sequence: int = 1, salt: int = 5, previous: int = 0) -> bytes:
    batch = encode_batch(runs, sequence=sequence, salt=salt, previous_checksum=previous, wall_time_us=0)
    return b"".join(batch.pieces)


@given(runs=st.lists(RUNS, max_size=5), sequence=U64, salt=U64, previous=U32, wall=st.integers(-(2**63), 2**63 - 1))
def test_a_batch_is_what_the_declaration_builds(
    runs: list[AppendRun], sequence: int, salt: int, previous: int, wall: int
) -> None:
    batch = encode_batch(runs, sequence=sequence, salt=salt, previous_checksum=previous, wall_time_us=wall)
    data = b"".join(batch.pieces)
    header = schema.BatchHeader.parse(data)
    table_end = 64 + 80 * len(runs)

    assert (header.size, header.run_count, header.sequence, header.salt) == (len(data), len(runs), sequence, salt)
    assert (header.previous_checksum, header.wall_time_us) == (previous, wall)
    assert header.table_checksum == crc32c(data[16:table_end])
    assert header.checksum == crc32c(data[12:], len(data)) == batch.checksum
    assert schema.BatchHeader.build(header) == data[:64]
    position = table_end
    for index, run in enumerate(runs):
        entry = schema.RunEntry.parse(data[64 + 80 * index : 64 + 80 * (index + 1)])
        for field in dataclasses.fields(run):
            if field.name not in {"frames", "sequences", "request_id", "expected_offset"}:
                assert entry[field.name] == getattr(run, field.name), field.name
        stored = (entry.first_sequence, entry.last_sequence, entry.stored_below)
        assert stored == (run.sequences or (-1, -1, -1))
        assert data[position : position + entry.frames_size] == run.frames
        position += entry.frames_size
    assert position == len(data)


@given(runs=st.lists(RUNS, max_size=5), offset=st.sampled_from([0, 8, 4096]))
def test_a_batch_is_read_back_as_it_was(runs: list[AppendRun], offset: int) -> None:
    data = memoryview(bytes(offset) + encoded(runs, sequence=9, previous=3) + b"after")

    batch = decode_batch(data, offset, 5)

    assert batch is not None
    assert (batch.sequence, batch.previous_checksum, batch.run_count) == (9, 3, len(runs))
    assert batch.end == aligned(offset + batch.size)
    decoded = [run for run, _ in decode_runs(data, batch)]
    assert decoded == runs
    assert decode_batch(data, offset, 6) is None
    assert decode_batch(data, offset, None) is not None


@given(run=RUNS, cut=st.integers(0, 400), noise=st.binary(max_size=300))
def test_no_cut_and_no_noise_is_a_batch(run: AppendRun, cut: int, noise: bytes) -> None:
    data = encoded([run])

    assert decode_batch(memoryview(data[: min(cut, len(data) - 1)]), 0, 5) is None
    assert decode_batch(memoryview(noise), 0, None) is None
    decode_damaged_batch(memoryview(noise), 0, None)


def test_every_flipped_bit_is_noticed() -> None:
    """Behaviour 41."""
    data = bytearray(encoded([append_run(7, 0, b"hello"), append_run(8, 3, b"world")]))
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        assert decode_batch(memoryview(data), 0, 5) is None, bit
        data[bit // 8] ^= 1 << bit % 8


def test_whatever_bit_is_flipped_the_table_survives_unless_it_was_hit() -> None:
    runs = [append_run(7, 0, b"hello"), append_run(8, 3, b"world")]
    whole = encoded(runs)
    batch = decode_batch(memoryview(whole), 0, 5)
    data = bytearray(whole)
    table_end = 64 + 80 * 2
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        damaged = decode_damaged_batch(memoryview(data), 0, 5)
        is_table_hit = 16 <= bit // 8 < table_end
        assert (damaged is None) == is_table_hit, bit
        if damaged is not None:
            lost = [run.segment_id for run, _ in decode_runs(memoryview(data), damaged) if not is_run_intact(run)]
            frame = bit // 8 - table_end
            assert lost == ([] if frame < 0 else [7] if frame < len(runs[0].frames) else [8]), bit
            if frame < 0:
                assert damaged == batch
        data[bit // 8] ^= 1 << bit % 8


def test_a_damaged_batch_that_extends_past_the_data_keeps_its_table() -> None:
    data = memoryview(encoded([append_run(7, 0, b"hello"), append_run(8, 3, b"world")]))[:-3]

    damaged = decode_damaged_batch(data, 0, 5)

    assert damaged is not None
    runs = decode_runs(data, damaged)
    assert [(run.segment_id, len(run.frames), size) for run, size in runs] == [(7, 69, 69), (8, 66, 69)]
    assert [is_run_intact(run) for run, _ in runs] == [True, False]


@table(
    "run",
    [
        append_run(7, 0, b"one", b"two", b"three"),
        control_run(b"record"),
        append_run(7, 0, b"x"),
    ],
)
def test_intact_runs_are_intact(run: AppendRun) -> None:
    assert is_run_intact(run)
    assert not is_run_intact(dataclasses.replace(run, frame_count=run.frame_count + 1))
    assert not is_run_intact(dataclasses.replace(run, frames=bytes(run.frames) + b"x"))
    assert not is_run_intact(dataclasses.replace(run, frames=bytes(len(run.frames))))


@table("sizes", [[10] * 3000, [40_000, 10, 10, 300_000, 10, 40_000], [300_000], [5000] * 70])
def test_large_frames_are_not_copied_and_small_ones_are_joined(sizes: list[int]) -> None:
    runs = [AppendRun(index, 0, bytes([index % 256]) * size, 1, size, 1) for index, size in enumerate(sizes)]

    batch = encode_batch(runs, sequence=1, salt=5, previous_checksum=0, wall_time_us=0)

    data = b"".join(batch.pieces)
    decoded = decode_batch(memoryview(data), 0, 5)
    assert decoded is not None
    assert [bytes(run.frames) for run, _ in decode_runs(memoryview(data), decoded)] == [run.frames for run in runs]
    assert len(batch.pieces) <= 7
    if sum(sizes) > 280 * 1024:
        large = [run.frames for run in runs if len(run.frames) >= 32 * 1024]
        assert all(any(piece is frames for piece in batch.pieces) for frames in large)


@given(header=HEADERS)
def test_a_file_header_is_what_the_declaration_builds(header: FileHeader) -> None:
    block = encode_file_header(header)
    parsed = schema.LogFileHeader.parse(block)

    assert len(block) == schema.LOG_FILE_HEADER_BLOCK_BYTES
    assert schema.LogFileHeader.build(parsed) == block[:64]
    assert parsed.checksum == crc32c(block[:60])
    assert parsed.server_id == header.server_id.bytes
    assert decode_file_header(block) == header


def test_every_flipped_bit_of_a_file_header_is_noticed() -> None:
    header = FileHeader(
        recycled=True, container_id=1, server_id=uuid.UUID(int=7), file_number=3, salt=9, sequence_floor=2
    )
    block = bytearray(encode_file_header(header))
    for bit in range(8 * 64):
        block[bit // 8] ^= 1 << bit % 8
        assert decode_file_header(block) is None, bit
        block[bit // 8] ^= 1 << bit % 8
    assert decode_file_header(block) == header
    assert decode_file_header(block[:63]) is None


def test_a_newer_version_is_read_as_such() -> None:
    header = FileHeader(
        version=3, recycled=False, container_id=1, server_id=uuid.UUID(int=7), file_number=3, salt=9, sequence_floor=2
    )

    assert decode_file_header(encode_file_header(header)) == header


def test_the_example_in_the_format_is_what_it_says() -> None:
    assert schema.__doc__ is not None
    example = schema.__doc__.partition("Example:")[2].partition("\n\n")[2]
    data = bytes.fromhex("".join(re.findall(r"[0-9a-f]+", example)))

    header = decode_file_header(data[:64])
    batch = decode_batch(memoryview(data), 64, 0x0123456789ABCDEF)

    assert header == FileHeader(
        recycled=False,
        container_id=1,
        server_id=uuid.UUID(bytes=bytes(range(16))),
        file_number=3,
        salt=0x0123456789ABCDEF,
        sequence_floor=7,
    )
    assert batch is not None
    assert (batch.sequence, batch.wall_time_us, batch.size) == (9, 1_000_000, len(data) - 64)
    ((run, _),) = decode_runs(memoryview(data), batch)
    assert (run.segment_id, run.kind, bytes(run.frames)) == (0, KIND_CONTROL, b"millrace")
    again = encode_batch([run], sequence=9, salt=batch.salt, previous_checksum=0x0FFEF00D, wall_time_us=1_000_000)
    assert b"".join(again.pieces) == data[64:]


def test_payloads_are_told_apart_by_the_support() -> None:
    assert payload_of(append_run(7, 0, b"ab", b"cd")) == b"abcd"
    assert payload_of(control_run(b"xyz")) == b"xyz"


def test_a_run_knows_its_payload_and_where_its_last_append_starts() -> None:
    alike, different = append_run(7, 100, b"abc", b"abc", b"abc"), append_run(7, 100, b"abc", b"abcde", b"x")
    assert (alike.payload_size, alike.last_append_offset) == (9, 106)
    assert (different.payload_size, different.last_append_offset) == (9, 108)
    assert append_run(7, 100, b"abc").last_append_offset == 100
