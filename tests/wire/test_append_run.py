from hypothesis import given
from hypothesis import strategies as st

from millrace.wire.append_run import AppendRun
from millrace.wire.append_scan import scan_run
from millrace.wire.framing import encode_append_header


def scanned(counts: list[int]) -> AppendRun:
    """A run of appends of writer 3 with so many events each, the first with number 5."""
    data, number = b"", 5
    for index, count in enumerate(counts):
        payload = b"x" * count
        data += (
            encode_append_header(
                request_id=10 + index,
                segment_id=7,
                payload=payload,
                event_count=count,
                writer_number=3,
                event_number=number,
            )
            + payload
        )
        number += count
    run = scan_run(bytearray(data), memoryview(data), start=0, end=len(data))
    assert run is not None
    return run


COUNTS = st.lists(st.integers(1, 9), min_size=2, max_size=6)


@given(counts=COUNTS, drawn=st.data())
def test_the_parts_of_a_run_are_what_their_frames_say(counts: list[int], drawn: st.DataObject) -> None:
    run = scanned(counts)
    cut = drawn.draw(st.integers(1, len(counts) - 1))
    size = sum(64 + count for count in counts[:cut])

    first, rest = run.split(size, frame_count=cut, event_count=sum(counts[:cut]))

    assert bytes(first.frames) + bytes(rest.frames) == run.frames
    assert first.last_event_number + 1 == rest.event_number
    for part in (first, rest):
        found = scan_run(bytearray(part.frames), memoryview(part.frames), start=0, end=len(part.frames))
        assert found is not None
        # Whether all have one size is known of the whole run only.
        found.frame_size = part.frame_size
        assert found == part


@given(counts=COUNTS)
def test_a_run_knows_its_payload(counts: list[int]) -> None:
    run = scanned(counts)
    run.offset = 1000

    assert run.payload_size == sum(counts)
    assert run.last_append_offset == 1000 + sum(counts[:-1])
