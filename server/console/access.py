"""Access control of the console: requires its token, and keeps out pages of other sites."""

from http import HTTPStatus
from urllib.parse import urlsplit

from millrace.server.host.loopback import is_loopback
from millrace.server.host.tokens import WRONG_TOKEN_DELAY_S, TokenGate, TokenVerdict

from .listener import HttpRequest
from .requests import RefusedError


class Access:
    """The conditions that a request must meet. For the thread of the console.

    Args:
        token: required of each request; empty: no token is required.
        host: where the console listens.

    Attributes:
        token: the same; the console presents it to its server.
    """

    def __init__(self, *, token: str, host: str) -> None:
        self.token = token
        self._gate = TokenGate(token)
        self._demands_local_name = not token and is_loopback(host)

    def check_name(self, request: HttpRequest) -> None:
        """Check the host name of a request if it is the only protection.

        A page of any site can make its own name resolve to this machine (DNS rebinding). To a browser the console is
        then part of that site, which may read it. But the browser still sends the name in the Host header.

        Raises:
            RefusedError: no program on this machine would use this name.
        """
        name = request.headers.get("host")
        if self._demands_local_name and name is not None and not is_loopback(_host_of(name)):
            problem = (
                f"the console listens on this machine only and is not called {name[:100]!r}: use localhost or "
                "127.0.0.1, or give the server a token (MILLRACE_FRONT_TOKEN)"
            )
            raise RefusedError(HTTPStatus.MISDIRECTED_REQUEST, problem)

    def knows_names(self, request: HttpRequest) -> bool:
        """Return whether a request may see stream names: it has the token, or none is required.

        Raises:
            RefusedError: its token is wrong.
        """
        # An Authorization header of another kind, such as for a proxy with a password, is not a token.
        if self.token and not _bearer_of(request):
            return False
        self.check_token(request)
        return True

    def check_token(self, request: HttpRequest, *, parameter: str | None = None) -> None:
        """Check that a request has the token.

        Args:
            parameter: the token in the query; None where the query does not count.

        Raises:
            RefusedError: the token is missing or wrong; if it is wrong, the answer is delayed.
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
    """Return the bearer token of the Authorization header, None if it has none."""
    kind, _, sent = request.headers.get("authorization", "").partition(" ")
    # The header was decoded as Latin-1, which preserves each byte; some bytes of UTF-8 are spaces in it.
    return sent.strip(" \t").encode("latin-1") if kind.lower() == "bearer" else None


def _host_of(name: str) -> str:
    """Return the host of a name with or without a port; empty if it is invalid."""
    try:
        return (urlsplit(f"//{name}").hostname or "").removesuffix(".")
    except ValueError:
        return ""
