"""Append frames built once and sent many times: only what depends on the request id is changed from round to round.

A load generator in Python that builds a header and a checksum for each append cannot keep a server of the same
language busy. CRC-32C is linear: when the same bits of two messages of one length are flipped, the same bits of their
checksums flip, whatever else they hold. A ring has a power of two of frames, and its first request id is a multiple of
that; so moving on to the next ids flips the same bits in every frame, and two array operations rebuild a whole ring.
"""

import os
import struct
from typing import Final

import numpy as np

from millrace.model.checksum import crc32c
from millrace.wire.framing import encode_append_header
from millrace.wire.limits import APPEND_HEADER_SIZE_BYTES

_WORD: Final = np.dtype("<u8")
_REQUEST_ID_WORD: Final = 2
_REQUEST_ID: Final = struct.Struct("<Q")
_REQUEST_ID_OFFSET: Final = 16


class AppendRing:
    """Appends to one segment with payloads of one size, ready to be sent.

    Attributes:
        frames: the bytes of all frames of the ring, for the ids from `first_request_id` on.
        frame_size: bytes of one frame.
        count: frames in the ring, a power of two.
    """

    def __init__(self, segment_id: int, *, payload_size: int, count: int, event_count: int = 1) -> None:
        assert count.bit_count() == 1, "a power of two"
        self.count = count
        self.frame_size = APPEND_HEADER_SIZE_BYTES + payload_size
        self.first_request_id = count
        data = bytearray(count * self.frame_size)
        for index in range(count):
            payload = os.urandom(payload_size)
            header = encode_append_header(
                request_id=count + index, segment_id=segment_id, payload=payload, event_count=event_count
            )
            start = index * self.frame_size
            data[start : start + len(header)] = header
            data[start + len(header) : start + self.frame_size] = payload
        self._data = data
        self.frames = memoryview(data)
        strides = (self.frame_size, _WORD.itemsize)
        self._words = np.ndarray((count, APPEND_HEADER_SIZE_BYTES // _WORD.itemsize), _WORD, data, 0, strides)
        self._flips: dict[int, int] = {}

    def advance(self) -> None:
        """Turn the frames into those of the next `count` request ids. The old ones must have been sent."""
        following = self.first_request_id + self.count
        changed = self.first_request_id ^ following
        self._words[:, _REQUEST_ID_WORD] ^= np.uint64(changed)
        # The checksum is the upper half of the first word.
        self._words[:, 0] ^= np.uint64(self._checksum_flip(changed) << 32)
        self.first_request_id = following

    def _checksum_flip(self, changed: int) -> int:
        """Return the bits of the checksum that flip with these bits of the request id."""
        flip = 0
        while changed:
            bit = changed & -changed
            if bit not in self._flips:
                self._flips[bit] = self._measured_flip(bit)
            flip ^= self._flips[bit]
            changed ^= bit
        return flip

    def _measured_flip(self, bit: int) -> int:
        frame = bytearray(self.frames[: self.frame_size])
        before = crc32c(memoryview(frame)[8:], self.frame_size)
        (request_id,) = _REQUEST_ID.unpack_from(frame, _REQUEST_ID_OFFSET)
        _REQUEST_ID.pack_into(frame, _REQUEST_ID_OFFSET, request_id ^ bit)
        return before ^ crc32c(memoryview(frame)[8:], self.frame_size)
