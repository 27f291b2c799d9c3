"""Names and bytes of the objects of a log."""

import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.server.errors import FolderVersionError
from millrace.server.wal.batch import FileHeader, encode_batch, encode_object_header
from millrace.server.wal.log_objects import (
    LogPoint,
    decode_log_object,
    encode_fence,
    encode_log_object,
    is_fence_size,
    parse_log_name,
)
from millrace.server.wal.report import LogOwner
from tests.support.tables import table
from tests.support.wal import OWNER, append_run

POINT = LogPoint(epoch=7, sequence=12345)


def encoded(point: LogPoint = POINT, *, sequence: int | None = None) -> bytes:
    batch = encode_batch(
        [append_run(3, 0, b"payload")],
        sequence=point.sequence if sequence is None else sequence,
        salt=99,
        previous_checksum=5,
        wall_time_us=1,
    )
    return b"".join(encode_log_object(batch, point, owner=OWNER, salt=99, acknowledged=12340))


@given(st.integers(0, 10**8 - 1), st.integers(0, 10**16 - 1))
def test_names_are_sorted_as_the_log_is(epoch: int, sequence: int) -> None:
    point = LogPoint(epoch, sequence)
    assert parse_log_name(point.name) == point
    assert point.name < LogPoint(epoch, sequence + 1).name or sequence == 10**16 - 1


@table("name", ["", "7/1", "00000007/0000000000012345.tmp", "00000007", "manifest"])
def test_other_names_are_none_of_a_log(name: str) -> None:
    assert parse_log_name(name) is None


def test_an_object_is_read_as_it_was_written() -> None:
    content = encoded()
    found = decode_log_object(content, POINT, owner=OWNER, place="x")
    assert not is_fence_size(len(content))
    assert not found.is_fence
    assert found.batch is not None
    assert (found.batch.sequence, found.batch.previous_checksum) == (12345, 5)
    assert found.header is not None
    assert (found.header.file_number, found.header.sequence_floor) == (7, 12340)


def test_whoever_puts_a_fence_puts_the_same_bytes() -> None:
    """Behaviour 90: two that close an epoch at the same place do not disturb each other."""
    fence = encode_fence(POINT, owner=OWNER)
    assert fence == encode_fence(POINT, owner=OWNER)
    assert is_fence_size(len(fence))
    found = decode_log_object(fence, POINT, owner=OWNER, place="x")
    assert found.is_fence
    assert found.batch is None
    assert found.header is not None
    assert found.header.sequence_floor == 12344


def test_the_bytes_of_a_fence_do_not_change() -> None:
    """All that will ever put a fence at this place must put these."""
    assert encode_fence(POINT, owner=OWNER).hex(" ", 8) == (
        "4d52574c02000200 0100000000000000 0000000000000000 0000000000000003 "
        "0700000000000000 0000000000000000 3830000000000000 0000000071e01445"
    )


@given(st.data())
def test_a_flipped_bit_is_noticed(data: st.DataObject) -> None:
    content = bytearray(encoded())
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= 1 << data.draw(st.integers(0, 7))
    found = decode_log_object(content, POINT, owner=OWNER, place="x")
    assert found.batch is None


@given(st.integers(0, 400))
def test_a_cut_object_is_noticed(size: int) -> None:
    content = encoded()[:-1][:size]
    assert decode_log_object(content, POINT, owner=OWNER, place="x").batch is None


def test_an_object_with_the_name_of_another_is_damaged() -> None:
    content = encoded(sequence=1)
    assert decode_log_object(content, POINT, owner=OWNER, place="x").batch is None
    other = LogPoint(8, 12345)
    assert decode_log_object(encoded(), other, owner=OWNER, place="x").header is None


def test_what_belongs_to_others_is_refused_by_name() -> None:
    other = LogOwner(container_id=1, server_id=uuid.UUID(int=4))
    with pytest.raises(FolderVersionError, match="belongs to container 1 of server"):
        decode_log_object(encoded(), POINT, owner=other, place="bucket/key")
    header = FileHeader(version=9, container_id=1, server_id=OWNER.server_id, file_number=7, salt=1, sequence_floor=0)
    with pytest.raises(FolderVersionError, match="written in version 9"):
        decode_log_object(encode_object_header(replace(header)), POINT, owner=OWNER, place="bucket/key")
