from typing import Any

from hypothesis import given, settings

from millrace.client.read.arrow import batch_of, batch_of_many
from millrace.client.read.block_stream import PlacedBlock
from millrace.model.block_packing import pack_block
from millrace.model.compression import Compression
from millrace.model.errors import BlockCorruptError
from millrace.model.event_block import unpack_block
from tests.support.event_blocks import COMPRESSIONS, EVENTS, HEADERS, strangers_blocks
from tests.support.examples import examples

Events = list[tuple[bytes, str | None, int]]


def placed(data: bytearray, start: int = 0, end: int | None = None) -> PlacedBlock:
    block = unpack_block(data)
    count = block.fields.event_count
    return PlacedBlock(
        7, 64, block, min(start, count), count if end is None else max(min(start, count), min(end, count))
    )


def columns(batch: Any) -> dict[str, list[Any]]:
    """The columns as lists; times as numbers, for Python's own end before those of 64 bits."""
    batch.validate(full=True)
    times = batch.column("timestamp").cast("int64").to_pylist()
    headers = [dict(each) for each in batch.column("headers").to_pylist()]
    others = {name: batch.column(name).to_pylist() for name in ("value", "key", "segment", "offset", "index")}
    return {**others, "timestamp": times, "headers": headers}


@given(events=EVENTS, headers=HEADERS, compression=COMPRESSIONS)
def test_arrow_sees_the_same_events(
    events: Events, headers: dict[int, dict[str, bytes]], compression: Compression
) -> None:
    values, keys, times = (list(column) for column in zip(*events, strict=True))
    headers = {index: each for index, each in headers.items() if index < len(values)}
    data = pack_block(values, keys=keys, timestamps_us=times, headers=headers, compression=compression)
    count = len(values)
    expected = {
        "value": values,
        "key": keys,
        "timestamp": times,
        "segment": [7] * count,
        "offset": [64] * count,
        "index": list(range(count)),
        "headers": [headers.get(index, {}) for index in range(count)],
    }

    assert columns(batch_of(placed(data))) == expected
    assert columns(batch_of(placed(data, 1, 3))) == {name: column[1:3] for name, column in expected.items()}
    assert columns(batch_of_many([placed(data), placed(data)])) == {
        name: column * 2 for name, column in expected.items()
    }


def test_columns_that_were_not_given_are_null_and_headers_are_empty() -> None:
    batch = batch_of(placed(pack_block([b"a", b"b"])))

    assert batch.column("key").to_pylist() == batch.column("timestamp").to_pylist() == [None, None]
    assert batch.column("headers").to_pylist() == [[], []]


@settings(max_examples=examples(500))
@given(strangers_blocks())
def test_a_strangers_block_with_a_right_checksum_is_a_valid_batch_or_refused(data: bytearray) -> None:
    try:
        batch_of(placed(data)).validate(full=True)
    except BlockCorruptError:
        pass
