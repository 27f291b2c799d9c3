"""Who may ask the console: those who have its token, and no page of another site."""

from http import HTTPStatus
from urllib.parse import urlsplit

from millrace.server.host.loopback import is_loopback
from millrace.server.host.tokens import WRONG_TOKEN_DELAY_S, TokenGate, TokenVerdict

from .listener import HttpRequest
from .requests import RefusedError


class Access:
    """What a request needs. For the thread of the console.

    Args:
        token: what a request must have; empty = anyone may ask.
        host: where the console listens.

    Attributes:
        token: the same; what the console presents to its server.
    """

    def __init__(self, *, token: str, host: str) -> None:
        self.token = token
        self._gate = TokenGate(token)
        self._demands_local_name = not token and is_loopback(host)

    def check_name(self, request: HttpRequest) -> None:
        """Check under which name the console was asked, where only that tells who asks.

        A page of any site can make its own name resolve to this machine. To a browser the console is then a part of
        that site, which may read it (DNS rebinding). But the browser still says by which name it came.

        Raises:
            RefusedError: no program of this machine would ask under this name.
        """
        name = request.headers.get("host")
        if self._demands_local_name and name is not None and not is_loopback(_host_of(name)):
            problem = (
                f"the console listens on this machine alone and is not called {name[:100]!r}: ask localhost, or "
                "127.0.0.1, or give the server a token (MILLRACE_FRONT_TOKEN)"
            )
            raise RefusedError(HTTPStatus.MISDIRECTED_REQUEST, problem)

    def knows_names(self, request: HttpRequest) -> bool:
        """Return whether a request may see what streams are called: it has the token, or none is needed.

        Raises:
            RefusedError: it has a wrong one.
        """
        # What is sent for somebody else, such as a proxy that asks for a password, is no token.
        if self.token and not _bearer_of(request):
            return False
        self.check_token(request)
        return True

    def check_token(self, request: HttpRequest, *, parameter: str | None = None) -> None:
        """Check that a request has the token.

        Args:
            parameter: the token in the query; None where it is not taken from there.

        Raises:
            RefusedError: it does not; if the token is wrong, the answer is slow.
        """
        given = _bearer_of(request)
        if given is None:
            given = (parameter or "").encode()
        verdict = self._gate.judge(given)
        if verdict is TokenVerdict.RIGHT:
            return
        problem = "the token is not accepted" if verdict is TokenVerdict.WRONG else "this server asks for its token"
        problem += ": send the header Authorization: Bearer TOKEN"
        if parameter is not None:
            problem += ", or the parameter token=TOKEN where no header can be set"
        raise RefusedError(
            HTTPStatus.UNAUTHORIZED,
            problem,
            {"WWW-Authenticate": "Bearer"},
            delay_s=WRONG_TOKEN_DELAY_S if verdict is TokenVerdict.WRONG else 0.0,
        )


def _bearer_of(request: HttpRequest) -> bytes | None:
    """Return the token of the header, None where that has none."""
    kind, _, sent = request.headers.get("authorization", "").partition(" ")
    # What was sent, byte by byte, is what was decoded as Latin-1, in which some bytes of UTF-8 are spaces.
    return sent.strip(" \t").encode("latin-1") if kind.lower() == "bearer" else None


def _host_of(name: str) -> str:
    """Return the host of a name with or without a port; empty if it is none."""
    try:
        return (urlsplit(f"//{name}").hostname or "").removesuffix(".")
    except ValueError:
        return ""
