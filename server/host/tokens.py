"""Compares tokens with that of the server, so that nobody can try one after the other.

An address that has given some wrong ones has to wait, also with the right one: an answer would tell it apart. A token
that was wrong before is no new try, so a client that repeats an old one, again and again, keeps nobody out.
"""

import hmac
import os
from collections import OrderedDict, deque
from enum import Enum, auto
from hashlib import blake2b
from typing import Final

WRONG_COUNT_MAX: Final = 10
"""Wrong tokens of one address that are compared at once, and"""
WRONG_PER_S: Final = 1.0
"""so many further ones a second."""
RETRY_AFTER_S: Final = 1
ADDRESSES_COUNT_MAX: Final = 1000
"""Addresses that are remembered; of more, the one that tried least lately is forgotten."""
_MARK_SIZE_BYTES: Final = 8


class Verdict(Enum):
    """What becomes of a token."""

    RIGHT = auto()
    WRONG = auto()
    LATER = auto()  # it was not compared


class TokenGate:
    """The token of a server, and who has guessed at it. For one thread.

    Args:
        token: empty = every token is right.
    """

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        # Wrong tokens may be right elsewhere, or nearly right here: none is kept.
        self._key = os.urandom(_MARK_SIZE_BYTES)
        self._tries: OrderedDict[str, _Tries] = OrderedDict()

    def judge(self, given: bytes, *, address: str, now_s: float) -> Verdict:
        """Return whether a token is right. It takes as long for each that is compared.

        Args:
            given: empty for none, which is wrong, and no try.
            address: where it comes from.
            now_s: by a monotonic clock.
        """
        if not self._token:
            return Verdict.RIGHT
        if not given:
            return Verdict.WRONG
        is_right = hmac.compare_digest(self._token, given)
        tries = self._tries.get(address)
        if tries is None:
            if is_right:
                return Verdict.RIGHT
            tries = self._tries[address] = _Tries(now_s)
            if len(self._tries) > ADDRESSES_COUNT_MAX:
                self._tries.popitem(last=False)
        mark = blake2b(given, digest_size=_MARK_SIZE_BYTES, key=self._key).digest()
        if mark in tries.marks:
            return Verdict.WRONG
        if not tries.has_room(now_s):
            return Verdict.LATER
        if is_right:
            return Verdict.RIGHT
        tries.add(mark)
        self._tries.move_to_end(address)
        return Verdict.WRONG


class _Tries:
    """The wrong tokens of one address: their marks, and how many are still counted."""

    __slots__ = ("_count", "_counted_at_s", "marks")

    def __init__(self, now_s: float) -> None:
        self.marks: deque[bytes] = deque(maxlen=WRONG_COUNT_MAX)
        self._count = 0.0
        self._counted_at_s = now_s

    def has_room(self, now_s: float) -> bool:
        self._count = max(0.0, self._count - (now_s - self._counted_at_s) * WRONG_PER_S)
        self._counted_at_s = now_s
        return self._count <= WRONG_COUNT_MAX - 1

    def add(self, mark: bytes) -> None:
        self.marks.append(mark)
        self._count += 1
