from hypothesis import given
from hypothesis import strategies as st

from millrace.model.checksum import crc32c


def bit_by_bit(data: bytes, initial: int) -> int:
    """The definition: the reflected polynomial 0x1EDC6F41, all ones before and after."""
    state = initial ^ 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


def test_the_published_check_value() -> None:
    assert crc32c(b"123456789") == 0xE3069283


@given(st.binary(max_size=200), st.integers(0, 2**32 - 1))
def test_it_equals_the_definition(data: bytes, initial: int) -> None:
    assert crc32c(data, initial) == bit_by_bit(data, initial)


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_it_continues_from_what_came_before(head: bytes, tail: bytes) -> None:
    assert crc32c(tail, crc32c(head)) == crc32c(head + tail)


@given(st.binary(min_size=1, max_size=100))
def test_any_buffer_will_do(data: bytes) -> None:
    assert crc32c(data) == crc32c(bytearray(data)) == crc32c(memoryview(b"?" + data)[1:])
