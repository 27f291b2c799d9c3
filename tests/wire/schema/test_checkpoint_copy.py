import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from millrace.model.checksum import crc32c
from millrace.wire.codec import Codec
from millrace.wire.schema import checkpoint_copy
from millrace.wire.schema.checkpoint_copy import CopyPartHeader

UNSIGNED_32 = st.integers(0, 2**32 - 1)
UNSIGNED_64 = st.integers(0, 2**64 - 1)


def test_the_example_in_the_docstring_is_the_part_it_describes() -> None:
    assert checkpoint_copy.__doc__ is not None
    text = checkpoint_copy.__doc__.partition("Example:")[2].partition("\n")[2]
    data = bytes.fromhex(re.sub(r"\s", "", text))
    header = CopyPartHeader.parse(data)

    assert (header.sequence, header.container_epoch, header.replay_from) == (7, 2, 5)
    assert (header.number, header.part, header.part_count, header.size) == (3, 0, 1, 5)
    assert (header.server_id, header.container_id) == (bytes(range(16)), 0)
    assert data[80:] == b"hello"
    assert crc32c(data[80:]) == header.content_checksum
    assert crc32c(data[:76]) == header.checksum


@given(
    st.tuples(st.binary(min_size=16, max_size=16), *[UNSIGNED_32] * 2, *[UNSIGNED_64] * 2, *[UNSIGNED_32] * 3,
              UNSIGNED_64, *[UNSIGNED_32] * 2)
)  # fmt: skip
def test_the_derived_codec_equals_the_declaration(values: tuple[Any, ...]) -> None:
    codec = Codec(CopyPartHeader, name="CopyPartHeader")

    data = codec.pack(*values)

    assert data == CopyPartHeader.build(dict(zip(codec.names, values, strict=True)))
    assert codec.unpack(data) == values
    assert len(data) == CopyPartHeader.sizeof() == 80
