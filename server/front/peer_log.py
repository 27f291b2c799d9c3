"""Rate-limited log of protocol errors and refused peers: one line per kind, peer and ten seconds.

Any peer that can reach the port decides how often it happens, so each line is written once; the same of that peer is
counted from then on, and told at the end of the ten seconds if there was any.
"""

import asyncio
import logging
from typing import Final

logger = logging.getLogger(__name__)

WINDOW_S: Final = 10.0
PEERS_COUNT_MAX: Final = 1000
"""So many pairs of kind and peer are told apart at once; of each kind, all other peers are one."""
OTHER_PEERS: Final = "others"


class PeerLog:
    """Writes the lines; belongs to one event loop."""

    def __init__(self, *, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        # By kind and address, how many lines were left out since the one that was written.
        self._suppressed: dict[tuple[str, str], int] = {}

    def log(self, kind: str, *, peer: str, address: str, detail: str = "", level: int = logging.WARNING) -> None:
        """Write, or count, that a peer did something.

        Args:
            kind: what, in a few words; not from the peer.
            peer: address and port.
            address: of which lines are counted.
            detail: more about this time.
        """
        key = (kind, address)
        if key not in self._suppressed and len(self._suppressed) >= PEERS_COUNT_MAX:
            key = (kind, OTHER_PEERS)
        if key in self._suppressed:
            self._suppressed[key] += 1
            return
        self._suppressed[key] = 0
        if detail:
            logger.log(level, "%s peer=%s detail=%s", kind, peer, detail)
        else:
            logger.log(level, "%s peer=%s", kind, peer)
        asyncio.get_running_loop().call_later(self._window_s, self._end, key, level)

    def _end(self, key: tuple[str, str], level: int) -> None:
        suppressed = self._suppressed.pop(key)
        if suppressed:
            kind, address = key
            logger.log(level, "%s peer=%s suppressed=%d", kind, address, suppressed)
