"""Rate-limited log of protocol violations and rejected peers: one line per kind, peer and ten seconds.

Any peer that can reach the port decides how often these happen, so each line is written once; later ones of the same
kind and peer are counted, and reported at the end of the ten seconds, if any.
"""

import asyncio
import logging
from typing import Final

logger = logging.getLogger(__name__)

WINDOW_S: Final = 10.0
PEERS_COUNT_MAX: Final = 1000
"""The most pairs of kind and peer that are distinguished; of each kind, all other peers count as one."""
OTHER_PEERS: Final = "others"


class PeerLog:
    """Writes the lines; belongs to one event loop."""

    def __init__(self, *, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        # By kind and address, the number of lines left out since the last written one.
        self._suppressed: dict[tuple[str, str], int] = {}

    def log(self, kind: str, *, peer: str, address: str, detail: str = "", level: int = logging.WARNING) -> None:
        """Write, or count, a line about a peer.

        Args:
            kind: a fixed phrase; not from the peer.
            peer: address and port.
            address: by which lines are counted.
            detail: about this occurrence.
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
