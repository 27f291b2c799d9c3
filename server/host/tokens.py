"""Compares tokens with the token of the server.

The right token is accepted whatever else came from the same address: all peers of one proxy share it. A wrong
token costs its own connection a delay. So guessing is as fast as connections are, and a token has to be long and
random; but a guesser locks out nobody.
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
        """Return whether a token is right; the time that it takes does not depend on the token of the server."""
        if not self._token or hmac.compare_digest(self._token, given):
            return TokenVerdict.RIGHT
        return TokenVerdict.WRONG if given else TokenVerdict.MISSING
