"""All settings of a server, composed of those of its parts.

Settings come from arguments of `serve`, or from the environment: `MILLRACE_<PART>_<OPTION>`, for instance
`MILLRACE_WAL_FILE_SIZE_BYTES=134217728` or `MILLRACE_CONTAINER_FLUSH_AGE_S=1.5`. Nothing else reads the environment.
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from millrace.model.address import Address
from millrace.server.console.options import FeedOptions
from millrace.server.container.options import ContainerOptions
from millrace.server.front.options import FrontOptions
from millrace.server.streams.options import StreamsOptions, TransactionsOptions, WritersOptions
from millrace.wire.limits import CONSOLE_PORT, DATA_PORT

from .cache import CacheOptions
from .errors import ConfigurationError
from .tier2 import Tier2Options
from .wal import WalOptions

logger = logging.getLogger(__name__)

PREFIX = "MILLRACE_"

ANYWHERE = "0.0.0.0"  # noqa: S104  # what `:PORT` asks for, in so many words


def parse_listen(text: str, *, default_port: int) -> Address:
    """Return where to listen: `host`, `host:port`, `:port` (of every interface) or `[v6]:port`; port 0 is any free one.

    Raises:
        ConfigurationError: it is none of these.
    """
    try:
        address = Address.parse(text, default_port=default_port)
    except ValueError:
        raise ConfigurationError(
            f"{text!r} is not an address; write HOST:PORT, for instance 127.0.0.1:{default_port}"
        ) from None
    return address if address.host else Address(ANYWHERE, address.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Settings of one server.

    Attributes:
        data_folder: everything that the server keeps; owned by one server at a time.
        listen: where clients connect.
        console: where metrics, health and feeds are served over HTTP; None = nowhere.
        shutdown_s: how long SIGTERM waits for what is under way.
    """

    data_folder: Path
    listen: Address = field(default=Address("127.0.0.1", DATA_PORT))
    console: Address | None = field(default=Address("127.0.0.1", CONSOLE_PORT))
    shutdown_s: float = 10.0
    wal: WalOptions = field(default_factory=WalOptions)
    tier2: Tier2Options = field(default_factory=Tier2Options)
    cache: CacheOptions = field(default_factory=CacheOptions)
    container: ContainerOptions = field(default_factory=ContainerOptions)
    front: FrontOptions = field(default_factory=FrontOptions)
    streams: StreamsOptions = field(default_factory=StreamsOptions)
    transactions: TransactionsOptions = field(default_factory=TransactionsOptions)
    writers: WritersOptions = field(default_factory=WritersOptions)
    feed: FeedOptions = field(default_factory=FeedOptions)

    def __post_init__(self) -> None:
        if self.shutdown_s <= 0:
            raise ConfigurationError("shutdown_s must be above 0")


_PARTS: dict[str, Any] = {
    part.name: part.default_factory for part in fields(ServerOptions) if part.default_factory is not MISSING
}


def options_from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the option objects of all parts that the environment sets, by the name of the part.

    Raises:
        ConfigurationError: an unknown option of a part that we have, or a value of the wrong kind.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, text in environment.items():
        if not name.startswith(PREFIX):
            continue
        part, _, option = name.removeprefix(PREFIX).lower().partition("_")
        if part not in _PARTS:
            # Not ours: Kubernetes, for one, names the ports of a service called millrace in this way.
            logger.warning("environment variable ignored name=%s parts=%s", name, ",".join(_PARTS))
            continue
        kinds: dict[str, Any] = {item.name: item.type for item in fields(_PARTS[part])}
        if option not in kinds:
            raise ConfigurationError(f"{name} is not a setting; see `millrace serve --help`")
        try:
            value = kinds[option](text)
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(text)
            found.setdefault(part, {})[option] = value
        except ValueError:
            raise ConfigurationError(f"{name}={text!r} is not a number") from None
    return {part: _PARTS[part](**values) for part, values in found.items()}
