"""How a client reaches its server and how long it is patient."""

import math
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from millrace.model.address import Address, Addresses
from millrace.model.errors import InvalidArgumentError
from millrace.model.token_file import parse_token
from millrace.wire.limits import DATA_PORT, KIB, MIB

from .waiting import WaitInfo

ADDRESS_VARIABLE: Final = "MILLRACE_ADDRESS"
"""The environment variable of the server that a program means when it names none."""
TOKEN_VARIABLE: Final = "MILLRACE_TOKEN"  # noqa: S105  # a name, not the token
"""The environment variable of the token that goes with it."""
TOKEN_FILE_VARIABLE: Final = "MILLRACE_TOKEN_FILE"  # noqa: S105  # a name, not the token
"""The environment variable of the file that holds this token, in place of the token."""
ADDRESS_DEFAULT: Final = str(Address("127.0.0.1", DATA_PORT))
TEXT_SIZE_BYTES_MAX: Final = 7 * KIB
"""Of the token and of the name of a client: both fit the first frame of a connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How waits between attempts grow: exponentially up to a limit, each shortened by a random part (jitter).

    Clients that lost the same server do not come back in the same instant.

    Attributes:
        jitter: the part of each wait that is left to chance, 0 to 1.
    """

    first_s: float = 0.02
    factor: float = 2.0
    limit_s: float = 2.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.first_s <= self.limit_s:
            raise InvalidArgumentError(f"first_s={self.first_s} must be above 0 and not above limit_s={self.limit_s}")
        if self.factor < 1:
            raise InvalidArgumentError(f"factor={self.factor} must be at least 1")
        if not 0 <= self.jitter <= 1:
            raise InvalidArgumentError(f"jitter={self.jitter} must be between 0 and 1")

    def wait_s(self, attempt: int, *, chance: float, retry_after_s: float = 0.0) -> float:
        """Return how long to wait after `attempt` failures in a row (from 1).

        Args:
            chance: a random number in [0, 1).
            retry_after_s: what the server asked for; never waited less.
        """
        # Beyond 64 doublings every wait is at its limit; a power that large would overflow a float some day.
        wait_s = min(self.limit_s, self.first_s * self.factor ** min(attempt - 1, 64))
        return max(retry_after_s, wait_s * (1 - self.jitter * chance))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Options of a client; writers and readers have their own beside them.

    Attributes:
        token: sent in the handshake; never logged.
        tls: True for TLS with the system's certificates, or a context of your own.
        connect_timeout_s: for one attempt to connect to one address, handshake included.
        request_timeout_s: for one request, with all reconnects and retries; `math.inf` for no limit.
        outage_timeout_s: how long readers, tails and the saving of cursors wait, each time, for a server that is away
            or refuses for now; then a reader ends with `OutageTimeoutError`, which says where to resume.
        on_waiting: called in the event loop when something begins to wait for the server, with the reason, and with
            None when nothing waits any more; each time that is logged, too. Must not raise.
        keepalive_s: after so long a silence the server is asked for a sign of life; after two of them the connection
            counts as lost. A server that is throttled is heard every 5 s only.
        in_flight_bytes_max: appends of one connection that may wait for their ack, those of all writers together; each
            writer has a bound of its own, `WriterOptions.in_flight_bytes_max`.
    """

    token: str = field(default="", repr=False)
    tls: bool | ssl.SSLContext = False
    client_name: str = "millrace-python"
    connect_timeout_s: float = 5.0
    request_timeout_s: float = 30.0
    outage_timeout_s: float = math.inf
    keepalive_s: float = 10.0
    in_flight_bytes_max: int = 64 * MIB
    backoff: Backoff = field(default_factory=Backoff)
    on_waiting: Callable[[WaitInfo | None], None] | None = None

    def __post_init__(self) -> None:
        _check_text("token", self.token)
        _check_text("client_name", self.client_name)
        if not isinstance(self.tls, bool | ssl.SSLContext):
            raise InvalidArgumentError(f"tls is True, False or an ssl.SSLContext, not {type(self.tls).__name__}")
        for name in (
            "connect_timeout_s", "request_timeout_s", "outage_timeout_s", "keepalive_s", "in_flight_bytes_max",
        ):  # fmt: skip
            if not getattr(self, name) > 0:
                raise InvalidArgumentError(f"{name}={getattr(self, name)} must be above 0")

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the context to connect with, or None for plain TCP."""
        if isinstance(self.tls, ssl.SSLContext):
            return self.tls
        return ssl.create_default_context() if self.tls else None


def chosen_addresses(text: str | None) -> Addresses:
    """Return the addresses that a caller gave; without them those of MILLRACE_ADDRESS, else 127.0.0.1:9240.

    Raises:
        InvalidArgumentError: one is none; the message names the variable where that is to blame.
    """
    if text is not None:
        return parse_addresses(text)
    given = os.environ.get(ADDRESS_VARIABLE)
    try:
        return parse_addresses(ADDRESS_DEFAULT if given is None else given)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(replace(error.facts, subject=ADDRESS_VARIABLE)) from None


def chosen_options(
    options: ClientOptions | None, *, token: str | None, tls: bool | ssl.SSLContext | None
) -> ClientOptions:
    """Return the options with what a caller gave beside them; the token is else that of the environment.

    A token in `options` comes before the environment, and `token=""` sends none. May read the token file.

    Raises:
        InvalidArgumentError: the token, or the token file of the environment, is invalid.
    """
    options = options or ClientOptions()
    if token is None:
        token = options.token or _environment_token()
    return replace(options, token=token, tls=options.tls if tls is None else tls)


def read_token(path: Path) -> str:
    """Return the token in a file. Blocks.

    Raises:
        InvalidArgumentError: the file cannot be read, or does not hold one token.
    """
    try:
        return parse_token(path.read_bytes())
    except OSError as error:
        problem = f"cannot read the token file: {error.strerror or error}"
    except ValueError as error:
        problem = f"cannot use the token file: {error}"
    raise InvalidArgumentError(f"{path}: {problem}")


def _environment_token() -> str:
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    path = os.environ.get(TOKEN_FILE_VARIABLE, "")
    if not path:
        return token
    if token:
        raise InvalidArgumentError(f"{TOKEN_FILE_VARIABLE}: must not be set where {TOKEN_VARIABLE} is set")
    try:
        return read_token(Path(path))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{TOKEN_FILE_VARIABLE}: {error}") from None


def _check_text(name: str, value: object) -> None:
    """Raise if a value cannot be said in the handshake. The value itself is not shown: it may be a secret."""
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{name} is text, not {type(value).__name__}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"{name} holds a character that UTF-8 cannot express") from None
    if size > TEXT_SIZE_BYTES_MAX:
        raise InvalidArgumentError(f"{name} has {size} bytes, at most {TEXT_SIZE_BYTES_MAX} can be sent")


def parse_addresses(text: str) -> Addresses:
    """Return the addresses in a text that has commas between them; one that is there twice counts once.

    Raises:
        InvalidArgumentError: one of them is none; see `parse_address`.
    """
    parts = text.split(",") if isinstance(text, str) else [text]
    return Addresses(tuple(dict.fromkeys(map(parse_address, parts))))


def parse_address(text: str) -> Address:
    """Return the address in `host`, `host:port` or `[host]:port`; the port is 9240 where none is given.

    Raises:
        InvalidArgumentError: the text is none of these, or the host is none that can be looked up.
    """
    if not isinstance(text, str):
        raise InvalidArgumentError(f"an address is text such as 127.0.0.1:{DATA_PORT}, not {type(text).__name__}")
    address = Address.parse(text, default_port=DATA_PORT)
    if not address.host or not address.port:
        raise InvalidArgumentError(f"address {text!r} names no {'port' if address.host else 'host'}")
    try:
        is_name = "\0" not in address.host and bool(address.host.encode("idna"))  # as the look-up does
    except UnicodeError:
        is_name = False
    if not is_name:
        raise InvalidArgumentError(f"{address.host!r} is no host name: its parts are 1 to 63 characters between dots")
    return address
