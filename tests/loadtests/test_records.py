import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtests.records import RecordStream
from loadtests.workload import EventSource, Producers, SequenceChecker
from millrace.model.block_packing import pack_block
from millrace.model.errors import BlockCorruptError

EVENT_SIZE = 40


def segment_bytes(*, appends: int, blocks: bool) -> bytes:
    source = EventSource(1, Producers(keys=2, events_per_append=3 if blocks else 1, event_size=EVENT_SIZE))
    payloads = (source.next_append(0)[1] for _ in range(appends))
    return b"".join(bytes(pack_block(values)) if blocks else values[0] for values in payloads)


@settings(deadline=None, print_blob=True)
@given(appends=st.integers(1, 12), blocks=st.booleans(), data=st.data())
def test_events_come_whole_however_their_bytes_are_cut(appends: int, blocks: bool, data: st.DataObject) -> None:
    content = segment_bytes(appends=appends, blocks=blocks)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=8)))
    stream, checker = RecordStream(event_size=EVENT_SIZE, blocks=blocks), SequenceChecker()
    for start, end in zip([0, *cuts], [*cuts, len(content)], strict=True):
        assert list(checker.check(stream.feed(memoryview(content)[start:end]))) == []

    assert checker.events == appends * (3 if blocks else 1)
    assert stream.pending_bytes == 0


def test_what_is_no_block_is_an_error() -> None:
    with pytest.raises(BlockCorruptError):
        RecordStream(event_size=EVENT_SIZE, blocks=True).feed(memoryview(b"x" * 100))
