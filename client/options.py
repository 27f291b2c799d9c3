"""Options of a client: address, authentication, time limits and retries."""

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
"""Environment variable with the default address of the server."""
TOKEN_VARIABLE: Final = "MILLRACE_TOKEN"  # noqa: S105  # a name, not the token
"""Environment variable with the token for the server."""
TOKEN_FILE_VARIABLE: Final = "MILLRACE_TOKEN_FILE"  # noqa: S105  # a name, not the token
"""Environment variable with the path of a file that contains the token."""
ADDRESS_DEFAULT: Final = str(Address("127.0.0.1", DATA_PORT))
TEXT_SIZE_BYTES_MAX: Final = 7 * KIB
"""Size limit of the token and of the client name, so that both fit in the first frame of a connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential backoff with jitter between attempts, so that many clients do not reconnect at the same moment.

    Attributes:
        first_s, factor, limit_s: the first wait, its growth with each failure, and the longest wait.
        jitter: the random fraction of each wait, 0 to 1.
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
        """Return the wait after `attempt` consecutive failures (from 1), in seconds.

        Args:
            chance: a random number in [0, 1).
            retry_after_s: the shortest wait, as requested by the server.
        """
        # After 64 doublings every wait is at its limit; larger powers would overflow a float.
        wait_s = min(self.limit_s, self.first_s * self.factor ** min(attempt - 1, 64))
        return max(retry_after_s, wait_s * (1 - self.jitter * chance))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Options of a client; see also `WriterOptions` and `ReaderOptions`.

    Attributes:
        token: sent in the handshake; never logged.
        tls: True for TLS with the system's certificates, or a context of your own.
        connect_timeout_s: time limit of one attempt to connect to one address, including the handshake.
        request_timeout_s: time limit of one request, including reconnects and retries; `math.inf` for no limit.
        outage_timeout_s: how long readers, tails and the saving of cursors wait out an outage of the server, each time.
            Then a reader raises `OutageTimeoutError`, which has the cut to resume from.
        on_waiting: called in the event loop with the reason when the client begins to wait for the server, and with
            None when it no longer waits. Both are logged, too. Must not raise.
        keepalive_s: after this long without data from the server, the client sends a ping; after twice as long, the
            connection counts as lost. While the server throttles the client, it sends data only every 5 s.
        in_flight_bytes_max: unacknowledged appends of one connection, over all writers; each writer has a limit of its
            own, `WriterOptions.in_flight_bytes_max`.
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
    """Return the given addresses; by default those in MILLRACE_ADDRESS, else 127.0.0.1:9240.

    Raises:
        InvalidArgumentError: an address is invalid; the message names the environment variable if it comes from there.
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
    """Return the options, overridden by the arguments; the token defaults to that of the environment.

    A token in `options` takes precedence over the environment; `token=""` sends none. May read the token file.

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
        InvalidArgumentError: the file cannot be read, or does not contain exactly one token.
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
        raise InvalidArgumentError(f"{TOKEN_FILE_VARIABLE}: must not be set together with {TOKEN_VARIABLE}")
    try:
        return read_token(Path(path))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{TOKEN_FILE_VARIABLE}: {error}") from None


def _check_text(name: str, value: object) -> None:
    """Raise if the handshake cannot carry a value. The error does not contain the value, which may be a secret."""
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{name} must be text, not {type(value).__name__}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"{name} holds a character that UTF-8 cannot express") from None
    if size > TEXT_SIZE_BYTES_MAX:
        raise InvalidArgumentError(f"{name} has {size} bytes; the limit is {TEXT_SIZE_BYTES_MAX}")


def parse_addresses(text: str) -> Addresses:
    """Return the addresses in a comma-separated text, without duplicates.

    Raises:
        InvalidArgumentError: an address is invalid; see `parse_address`.
    """
    parts = text.split(",") if isinstance(text, str) else [text]
    return Addresses(tuple(dict.fromkeys(map(parse_address, parts))))


def parse_address(text: str) -> Address:
    """Return the address in `host`, `host:port` or `[host]:port`; the port defaults to 9240.

    Raises:
        InvalidArgumentError: the text has another form, or the host name is invalid.
    """
    if not isinstance(text, str):
        raise InvalidArgumentError(f"an address must be text such as 127.0.0.1:{DATA_PORT}, not {type(text).__name__}")
    address = Address.parse(text, default_port=DATA_PORT)
    if not address.host or not address.port:
        raise InvalidArgumentError(f"address {text!r} has no {'port' if address.host else 'host'}")
    try:
        is_name = "\0" not in address.host and bool(address.host.encode("idna"))  # as the look-up does
    except UnicodeError:
        is_name = False
    if not is_name:
        raise InvalidArgumentError(f"{address.host!r} is not a host name: parts between dots have 1 to 63 characters")
    return address
