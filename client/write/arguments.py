"""Checks the application's arguments to a writer, before any of them is accepted."""

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any, Final

import numpy as np

from millrace.model.block_packing import Headers, Timestamps, checked_headers, size_of_single
from millrace.model.errors import EventTooLargeError, InvalidArgumentError
from millrace.model.limits import EVENT_SIZE_BYTES_MAX

from .routing import encoded_key

_INT64_LIMIT: Final = 1 << 63


def owned(value: object) -> bytes:
    """Return a copy as bytes: the caller may change a bytearray before it is sent.

    Raises:
        TypeError: not bytes.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"an event is bytes, not {type(value).__name__}")


def check_size(size: int, *, key: str | None, headers: Headers | None, append_size_max: int) -> None:
    """Check that an event fits an append.

    Args:
        size: of its value.
        append_size_max: of the server.

    Raises:
        EventTooLargeError: the value is above 8 MiB, or the event is more than one append can hold.
    """
    if size > EVENT_SIZE_BYTES_MAX:
        raise EventTooLargeError(f"an event holds at most {EVENT_SIZE_BYTES_MAX} bytes, not {size}")
    needed_bytes = size_of_single(size, key_size=None if key is None else len(encoded_key(key)), headers=headers)
    if needed_bytes > append_size_max:
        raise EventTooLargeError(
            f"an event of {size} bytes needs an append of {needed_bytes}; this server takes {append_size_max}"
        )


def checked_timestamp(timestamp_us: Any) -> int:
    """Return a timestamp of an event, as a Python integer.

    Raises:
        TypeError: not an integer.
        InvalidArgumentError: more than 64 bits.
    """
    try:
        checked: int = timestamp_us if type(timestamp_us) is int else index(timestamp_us)  # of numpy, say
    except TypeError:
        kind = type(timestamp_us).__name__
        raise TypeError(f"timestamp_us is an integer of Unix microseconds, not {kind}") from None
    if not -_INT64_LIMIT <= checked < _INT64_LIMIT:
        raise InvalidArgumentError(f"timestamp_us={checked} does not fit 64 bits")
    return checked


def checked_timestamps(timestamps_us: Timestamps) -> Timestamps:
    """Return the timestamps of many events: one for all as a Python integer, or an array with one for each.

    Raises:
        TypeError: not integers.
        InvalidArgumentError: more than 64 bits.
    """
    if timestamps_us is None:
        return None
    if not isinstance(timestamps_us, Sequence | np.ndarray) or isinstance(timestamps_us, str | bytes):
        return checked_timestamp(timestamps_us)
    array = np.asarray(timestamps_us)
    if array.ndim != 1:
        raise InvalidArgumentError(f"timestamps_us has one dimension, or is one integer; it has {array.ndim}")
    if len(array) and array.dtype.kind not in "iu":  # integers of more than 64 bits are objects
        return [checked_timestamp(each) for each in timestamps_us]
    if array.dtype.kind == "u" and len(array):
        checked_timestamp(int(array.max()))
    return array.astype(np.int64)


def headers_by_index(headers: Headers | Sequence[Headers | None], count: int) -> Mapping[int, Headers]:
    """Return the headers of many events by their index, checked.

    Args:
        headers: the same for all, or of each its own (None: none).

    Raises:
        InvalidArgumentError: of another count of events.
        TypeError, EventTooLargeError: see `checked_headers`.
    """
    if isinstance(headers, Mapping):
        return dict.fromkeys(range(count), checked_headers(headers)[0])
    if len(headers) != count:
        raise InvalidArgumentError(f"{len(headers)} headers for {count} events")
    return {index: checked_headers(each)[0] for index, each in enumerate(headers) if each}
