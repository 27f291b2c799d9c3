"""Which segments are shown of very many."""

from millrace.model.key_range import KEY_SPACE, KeyRange
from millrace.model.lineage import Epoch
from millrace.model.policy import StreamConfig
from millrace.model.stream import StreamInfo, StreamSegment
from millrace.server.console.stream_facts import EPOCHS_COUNT_MAX, description, segments_over_time, summary

HALF = KEY_SPACE // 2
WHOLE = KeyRange(0, KEY_SPACE)


def segment(segment_id: int, keys: KeyRange = WHOLE, *, epoch: int = 0, sealed_epoch: int = 0) -> StreamSegment:
    return StreamSegment(
        segment_id=segment_id, key_range=keys, epoch=epoch, sealed_epoch=sealed_epoch,
        start_offset=10, length=100, event_count=7, sealed=bool(sealed_epoch),
    )  # fmt: skip


def stream(*segments: StreamSegment, epoch: int = 0) -> StreamInfo:
    return StreamInfo(
        name="shop/orders", stream_id=1, created_us=5, epoch=epoch, sealed=False, configuration=StreamConfig(),
        segments=segments,
    )  # fmt: skip


def test_a_row_counts_what_is_there_and_a_description_names_what_is_open() -> None:
    low, high = KeyRange(0, HALF), KeyRange(HALF, KEY_SPACE)
    info = stream(segment(1, sealed_epoch=1), segment(2, low, epoch=1), segment(3, high, epoch=1), epoch=1)
    row = summary(info)
    assert (row["open_segment_count"], row["size_bytes"], row["event_count"]) == (2, 270, 21)
    told = description(info, now_us=9)
    assert [(each["segment_id"], each["low"], each["high"]) for each in told["segments"]] == [(2, 0, 0.5), (3, 0.5, 1)]
    assert (told["exclusive_writer"], told["retention"], told["now_us"]) == (None, None, 9)


def test_of_very_many_segments_the_open_and_the_newest_are_shown() -> None:
    count = EPOCHS_COUNT_MAX + 50
    epochs = [
        Epoch(
            number=number,
            started_us=100 + number,
            cause="asked for",
            sealed_ids=(number,) if number else (),
            created=((number + 1, WHOLE),),
        )
        for number in range(count)
    ]
    told = segments_over_time(stream(segment(count, epoch=count - 1)), epochs, now_us=9, count_max=3)
    assert [each["segment_id"] for each in told["segments"]] == [count - 2, count - 1, count]
    assert told["omitted_segment_count"] == count - 3
    assert [each["sealed_us"] for each in told["segments"]] == [100 + count - 2, 100 + count - 1, None]
    # What they held was truncated, but of the last.
    assert [each["event_count"] for each in told["segments"]] == [None, None, 7]
    assert [each["epoch"] for each in told["scalings"]] == list(range(count - EPOCHS_COUNT_MAX, count))
