"""Base64 of whole columns: binary values as JSON has them.

All values of a column are coded at once. Each is padded to whole groups of three bytes first, which are four
characters; where one was padded, `=` stands for what was too much.
"""

import binascii
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .arrays import binaries, data_of, lengths_of
from .codec import MalformedError

_PAD: Final = ord("=")


def encode_base64(array: Any) -> Any:
    """Return the texts of binary values; null for null."""
    filled = array.fill_null(b"")
    lengths, data = lengths_of(filled), data_of(filled)
    groups = -(-lengths // 3)
    padded = np.zeros(int(groups.sum()) * 3, dtype=np.uint8)
    padded[_places(lengths, groups * 3)] = data
    text = np.frombuffer(binascii.b2a_base64(padded.data, newline=False), dtype=np.uint8).copy()
    ends, missing = np.cumsum(groups) * 4, groups * 3 - lengths
    text[ends[missing >= 1] - 1] = _PAD
    text[ends[missing == 2] - 2] = _PAD
    return binaries(pa.string(), groups * 4, text, array)


def decode_base64(array: Any) -> Any:
    """Return the binary values of texts; null for null.

    Raises:
        MalformedError: one is no base64.
    """
    filled = array.fill_null("")
    lengths, text = lengths_of(filled), data_of(filled).copy()
    if (lengths % 4).any():
        raise MalformedError("a binary value is no base64: its length is no multiple of four")
    ends = np.cumsum(lengths)[lengths > 0]
    is_padded = text[ends - 1] == _PAD
    is_padded_twice = is_padded & (text[ends - 2] == _PAD)
    text[ends[is_padded] - 1] = ord("A")
    text[ends[is_padded_twice] - 2] = ord("A")
    if (text == _PAD).any():
        raise MalformedError("a binary value is no base64: it has a '=' before its end")
    try:
        data = np.frombuffer(binascii.a2b_base64(text.data, strict_mode=True), dtype=np.uint8)
    except binascii.Error as error:
        raise MalformedError(f"a binary value is no base64: {error}") from None
    capacities = lengths // 4 * 3
    decoded = capacities.copy()
    decoded[lengths > 0] -= is_padded.astype(np.int64) + is_padded_twice
    return binaries(pa.binary(), decoded, data[_places(decoded, capacities)], array)


def _places(lengths: npt.NDArray[np.int64], capacities: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return where the bytes of values are that each begin after the capacities of those before."""
    unused = capacities - lengths
    gaps: npt.NDArray[np.int64] = np.repeat(np.cumsum(unused) - unused, lengths)
    return np.arange(len(gaps), dtype=np.int64) + gaps
