"""Compares tokens with the token of the server.

The right token is always accepted, whatever else came from the same address, because all peers of a proxy share its
address. A wrong token delays its own connection only. The rate of guesses is therefore the rate of connections, so a
token has to be long and random; a guesser cannot lock anybody out.
"""

import hmac
from enum import Enum, auto
from typing import Final

WRONG_TOKEN_DELAY_S: Final = 1.0
"""Delay of the reply to a wrong token."""


class TokenVerdict(Enum):
    """The result of a comparison."""

    RIGHT = auto()
    MISSING = auto()
    WRONG = auto()


class TokenGate:
    """The token of a server.

    Args:
        token: empty = every token is right.
    """

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    def judge(self, given: bytes) -> TokenVerdict:
        """Return whether a token is right, in constant time."""
        if not self._token or hmac.compare_digest(self._token, given):
            return TokenVerdict.RIGHT
        return TokenVerdict.WRONG if given else TokenVerdict.MISSING
