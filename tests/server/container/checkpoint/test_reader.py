import pytest

from millrace.model.key_range import KEY_SPACE
from millrace.model.policy import StreamConfig
from millrace.server.container.checkpoint.store import CheckpointStore
from millrace.server.container.state.labels import tag_label
from millrace.server.errors import StorageError
from millrace.server.kinds.streams.tables import StreamArchive
from millrace.server.kinds.writers.tables import WriterArchive
from millrace.wire import messages as m
from tests.server.container.checkpoint.stores import empty_state, save
from tests.server.container.histories import apply


def test_idle_writers_are_found_a_page_at_a_time(store: CheckpointStore) -> None:
    state = empty_state(store)
    for number in range(1, 8):
        apply(state, m.UptimeCounted(number, 0, 0, ""))
        apply(state, m.WriterRecorded(writer_number=number, writer_epoch=1, opened_us=1, writer_id=""))
    state.writers[2].seen_uptime_us = 50
    save(store, state, 1)

    writers = store.archive(WriterArchive)
    pages = []
    after = 0
    while page := writers.idle(before_uptime_us=6, marks_before_uptime_us=0, after=after, count_max=3):
        pages.append(page)
        after = page[-1]

    assert pages == [[1, 3, 4], [5]]


def test_marks_have_a_border_of_their_own(store: CheckpointStore) -> None:
    state = empty_state(store)
    for number in range(1, 8):
        apply(state, m.UptimeCounted(number, 0, 0, ""))
        apply(state, m.WriterRecorded(writer_number=number, writer_epoch=1, opened_us=1, writer_id=f"w{number}"))
    for number in (4, 2, 6):
        apply(state, m.UptimeCounted(10 * (8 - number), 0, 0, ""))
        apply(state, m.WritersExpired(expired_us=1, marked=[number], forgotten=[]))
    save(store, state, 1)

    writers = store.archive(WriterArchive)
    idle = writers.idle(before_uptime_us=6, marks_before_uptime_us=60, after=0, count_max=9)

    assert [writers.marks_seen_from(newest_count=count) for count in (1, 2, 3, 4)] == [
        60,
        60,
        40,
        0,
    ]
    assert idle == [1, 3, 4, 5]


def test_streams_are_found_by_label_and_prefix(store: CheckpointStore) -> None:
    state = empty_state(store)
    for name, tags in (("a/1", "xy"), ("a/2", "y"), ("b/1", "x"), ("b/\N{SNOWMAN}", "x"), ("c/1", "")):
        apply(
            state,
            m.StreamCreated(
                stream_id=state.take_id(),
                created_us=0,
                name=name,
                configuration=StreamConfig(tags=tuple(tags)).to_json(),
                segments=[m.SegmentRangeRecord(state.take_id(), 0, KEY_SPACE - 1)],
                cursors=[],
            ),
        )
    save(store, state, 1)

    def names(tag: str, prefix: str, after: str, count_max: int) -> list[str]:
        found = store.archive(StreamArchive).labelled(tag_label(tag), prefix=prefix, after=after, count_max=count_max)
        assert all(state.streams[stream_id].name == name for name, stream_id in found)
        return [name for name, _ in found]

    assert names("x", "", "", 9) == ["a/1", "b/1", "b/\N{SNOWMAN}"]
    assert names("x", "", "", 2) == ["a/1", "b/1"]
    assert names("x", "b/", "", 9) == ["b/1", "b/\N{SNOWMAN}"]
    assert names("x", "b/", "b/1", 9) == ["b/\N{SNOWMAN}"]
    assert names("y", "b/", "", 9) == []
    assert names("z", "", "", 9) == []


def test_nothing_is_told_of_a_closed_checkpoint(store: CheckpointStore) -> None:
    """What is not known must not be taken for absent."""
    store.load()
    assert store.segments.load(1) is None
    store.close()
    with pytest.raises(StorageError, match="closed"):
        store.segments.load(1)
