"""All settings of a server, composed of those of its parts; `millrace.server.settings` finds their values.

Each is declared once: by a field, whose name has its unit (`_bytes`, `_s`), and a line in the docstring of its class.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from millrace.model.address import Address
from millrace.server.console.options import FeedOptions
from millrace.server.container.options import ContainerOptions
from millrace.server.front.options import FrontOptions
from millrace.server.host.loopback import is_loopback
from millrace.server.kinds.transactions.options import TransactionsOptions
from millrace.server.kinds.writers.options import WritersOptions
from millrace.wire.limits import CONSOLE_PORT, DATA_PORT

from .bounds import demand, demand_above_zero
from .cache import CacheOptions
from .errors import ConfigurationError
from .object_store import ObjectStoreOptions, StoreUrl
from .streams import MetricsOptions, StreamsOptions
from .tier2 import Tier2Options
from .wal import WalOptions

COPY_INTERVAL_S: Final = 60.0
"""Default interval of checkpoint copies in an object store: after the loss of the machine only the copy is left."""
LEASE_S: Final = 10.0
LEASE_OF_LOG_S: Final = 3.0
"""Default of a server whose log is in the store: another one can continue at once where it has ended."""
ANYWHERE: Final = "0.0.0.0"  # noqa: S104  # what `:PORT` asks for, in so many words
LogFormat = Literal["text", "json"]
LogLevel = Literal["auto", "debug", "info", "warning", "error"]


def parse_listen(text: str, *, default_port: int) -> Address:
    """Parse where to listen: `host`, `host:port`, `:port` (of every interface) or `[v6]:port`; port 0 is any free one.

    Raises:
        ConfigurationError: the text has none of these forms.
    """
    try:
        address = Address.parse(text, default_port=default_port)
    except ValueError:
        raise ConfigurationError(
            f"{text!r} is not an address; write HOST:PORT, for instance 127.0.0.1:{default_port}"
        ) from None
    return address if address.host else Address(ANYWHERE, address.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """The server's log messages on standard error.

    Attributes:
        level: log messages of this level and above: debug, info, warning or error; auto: warning on a terminal, else
            info.
        format: text: lines for people; json: one JSON object per line, for programs.
    """

    level: LogLevel = "auto"
    format: LogFormat = "text"

    def level_name(self, *, is_terminal: bool) -> str:
        """Return the level as `logging` names it."""
        chosen = ("warning" if is_terminal else "info") if self.level == "auto" else self.level
        return chosen.upper()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Settings of one server.

    Attributes:
        data_folder: the folder with all data of the server, made if missing; only one server can use it at a time.
        listen: the address where clients connect, HOST:PORT.
        console: the HTTP address for the web page, metrics, health and feeds, HOST:PORT; none turns it off.
        store: the object store for history, s3://BUCKET/PREFIX; none keeps it in the data folder. It cannot change once
            there is history.
        standby: while another server has the history, wait, and take over when that has ended; needs a log in the
            object store.
        insecure: whether a server without a token may listen on addresses that other machines can reach.
        shutdown_s: how long a server that is stopped waits for running requests.
    """

    data_folder: Path = Path("millrace-data")
    listen: Address = field(default=Address("127.0.0.1", DATA_PORT))
    console: Address | None = field(default=Address("127.0.0.1", CONSOLE_PORT))
    store: StoreUrl | None = None
    standby: bool = False
    insecure: bool = False
    shutdown_s: float = 10.0
    log: LogOptions = field(default_factory=LogOptions)
    wal: WalOptions = field(default_factory=WalOptions)
    tier2: Tier2Options = field(default_factory=Tier2Options)
    objects: ObjectStoreOptions = field(default_factory=ObjectStoreOptions)
    cache: CacheOptions = field(default_factory=CacheOptions)
    container: ContainerOptions = field(default_factory=ContainerOptions)
    front: FrontOptions = field(default_factory=FrontOptions)
    streams: StreamsOptions = field(default_factory=StreamsOptions)
    transactions: TransactionsOptions = field(default_factory=TransactionsOptions)
    writers: WritersOptions = field(default_factory=WritersOptions)
    feed: FeedOptions = field(default_factory=FeedOptions)
    metrics: MetricsOptions = field(default_factory=MetricsOptions)

    def __post_init__(self) -> None:
        demand_above_zero(self, "shutdown_s")
        self._demand_token()
        is_apart = self.console != self.listen or not self.listen.port
        demand(is_apart, self, "console", "another address than listen")
        demand(
            self.store is not None or self.wal.place == "local",
            self,
            "store",
            "a URL such as s3://BUCKET/PREFIX where the log is in the object store; for a log on the local disk, set"
            " --log local",
        )
        demand(
            not self.standby or self.has_remote_log,
            self,
            "standby",
            "false where the log is on a local disk: a server that takes over would not have what was acknowledged; set"
            " --store URL --log object",
        )

    def _demand_token(self) -> None:
        """Raise SettingError about a port that other machines can reach, without a token and without `insecure`."""
        if self.front.has_token or self.insecure:
            return
        for name in ("listen", "console"):
            address: Address | None = getattr(self, name)
            demand(
                address is None or is_loopback(address.host),
                self,
                name,
                "a loopback address, such as 127.0.0.1, unless clients have to send a token (front.token_file, or"
                " MILLRACE_FRONT_TOKEN) or --insecure allows access without a token",
            )

    @property
    def has_remote_log(self) -> bool:
        """Whether the log is in the object store."""
        return self.wal.place == "object"

    def for_storage(self) -> "ServerOptions":
        """Return the options as they apply to tier 2: unchanged in a folder, with those of `objects` in a store.

        A store is far away and counts requests: reads are larger and more of them run at once, and so do flushes, which
        have a budget. Half of the puts are left to copies of the checkpoint and to retried puts.
        """
        if self.store is None:
            return self
        objects = self.objects
        return replace(
            self,
            objects=replace(objects, lease_s=objects.lease_s or (LEASE_OF_LOG_S if self.has_remote_log else LEASE_S)),
            container=replace(
                self.container,
                small_flushes_per_s_max=objects.small_puts_per_s_max,
                flushes_at_once=max(1, objects.puts_count_max // 2),
                copy_interval_s=self.container.copy_interval_s or COPY_INTERVAL_S,
            ),
            cache=replace(
                self.cache,
                page_size_bytes=min(objects.read_size_bytes, self.cache.budget_bytes // 4),
                read_ahead_bytes=objects.read_ahead_bytes,
                fetches_max=objects.reads_count_max,
            ),
        )
