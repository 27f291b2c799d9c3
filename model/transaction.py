"""Transactions, and the branches that a commit takes.

The events of a transaction are in *parts*: segments of their own, which nobody reads before the commit. Each part holds
events for one range of keys of one stream. The ranges are those of the open segments when the transaction began; so all
who write to it agree on them, whatever the stream is scaled to meanwhile.

Parts belong to *branches*: each branch is filled by one process, and is taken or dropped as a whole. The commit names
how many events each branch has. An append that was refused, or that never arrived, is then missing from the count, and
cannot become half a commit.
"""

from collections.abc import Mapping
from enum import IntEnum
from hashlib import blake2b
from itertools import starmap
from struct import Struct
from typing import Final, NamedTuple

from .key_range import KeyRange

_BRANCH: Final = Struct("<QQ")
BRANCHES_DIGEST_SIZE_BYTES: Final = 16
IMPLICIT_BRANCH: Final = 0
"""The branch that every transaction has."""


class TransactionState(IntEnum):
    """Where a transaction is; the numbers are stored.

    UNKNOWN      it never was, or how it ended was forgotten; never stored
    OPEN         takes events; ends by itself when its lease runs out
    PREPARED     takes no more; its branches are fixed, and it never ends by itself
    COMMITTED    its events are in its streams
    ABORTED      they are nowhere: somebody said so, or a stream was sealed
    EXPIRED      they are nowhere: its lease ran out
    """

    UNKNOWN = 0
    OPEN = 1
    PREPARED = 2
    COMMITTED = 3
    ABORTED = 4
    EXPIRED = 5

    @property
    def is_final(self) -> bool:
        """Whether it is an outcome: nothing follows."""
        return self >= TransactionState.COMMITTED


class TransactionPart(NamedTuple):
    """A segment that holds events of a transaction.

    Attributes:
        segment_id: its own.
        branch: which it belongs to; 0 is the one that every transaction has.
        stream_id: the stream that its events are for.
        key_range: of their keys; one of those that were open when the transaction began.
    """

    segment_id: int
    branch: int
    stream_id: int
    key_range: KeyRange


class BranchesError(ValueError):
    """What a commit says of the branches is not what was stored."""


def check_branches(
    named: Mapping[int, int], *, stored: Mapping[int, int], drops_others: bool, may_have: int = 0
) -> list[int]:
    """Return the branches that a commit drops, ascending.

    Args:
        named: how many events each branch has, as the commit says.
        stored: how many events each branch with parts has.
        drops_others: whether the commit drops the branches that it does not name; else there must be none.
        may_have: a branch that may be left out if it has no events: the one that every transaction has.

    Raises:
        BranchesError: a branch has another number of events than named, or was left out.
    """
    for branch, event_count in named.items():
        found = stored.get(branch, 0)
        if found != event_count:
            raise BranchesError(f"branch {branch} has {found} events, and {event_count} are to be committed")
    others = sorted(stored.keys() - named.keys())
    left_out = [branch for branch in others if branch != may_have or stored[branch]]
    if left_out and not drops_others:
        raise BranchesError(f"branches {left_out} are left out: finish and name them, or drop them")
    return others


def digest_of_branches(named: Mapping[int, int]) -> bytes:
    """Return 16 bytes that tell one choice of branches and counts from another, in whatever order it was given."""
    packed = b"".join(starmap(_BRANCH.pack, sorted(named.items())))
    return blake2b(packed, digest_size=BRANCHES_DIGEST_SIZE_BYTES).digest()
