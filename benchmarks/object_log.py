"""The log of a container in an object store of 5 and 30 ms: how fast appends are durable, and what that costs."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from millrace.server.object_store import StoreUrl
from millrace.server.options import ServerOptions
from millrace.server.ownership.lease import RENEWALS_COUNT
from millrace.server.wal import WalOptions

from .child import measured
from .log_appender import LogAppenderOptions, LogAppenderResult
from .log_reader import OBJECT_SIZE_BYTES, LogReaderOptions, LogReaderResult
from .report import Bound, Quantity, Row, SyncRate, Target, Unit
from .rounds import ROUNDS, interleaved, median_by, spread
from .s3_gateway import Gateway, s3_gateway
from .session import Session

LIMITS_S: Final = {0.005: 0.008, 0.03: 0.04}
"""The median that is promised, by what the store adds to each PUT."""
CLIENTS_LIMITED: Final = (1, 16)
"""So many clients are promised that median, if PUTs have no bound."""
RECOVERY_LIMIT_S: Final = 3.0
RECOVERY_BYTES: Final = 256 * 1000 * 1000
DOLLARS_A_PUT: Final = 5e-6
MONTH_S: Final = 365.25 / 12 * 24 * 3600
_PUTS_PER_S_MAX: Final = WalOptions().puts_per_s_max
_WARM_UP_S: Final = 1.5
"""Long enough to use up the PUTs that an idle log has gained."""
_LIFETIME_S: Final = 1800.0
_NO_SYNCS: Final = SyncRate(0.0, "none made")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One closed loop; `clients` 0: bare PUTs."""

    latency_s: float
    clients: int
    payload_size: int
    puts_per_s_max: float

    @property
    def is_limited(self) -> bool:
        """Whether a median is promised."""
        return not self.puts_per_s_max and self.clients in CLIENTS_LIMITED


_BARE: Final = {
    latency_s: Case(latency_s=latency_s, clients=0, payload_size=100, puts_per_s_max=0.0) for latency_s in LIMITS_S
}
CASES: Final = (
    *_BARE.values(),
    *(
        Case(latency_s=latency_s, clients=clients, payload_size=payload_size, puts_per_s_max=puts_per_s_max)
        for latency_s, puts_per_s_max, clients, payload_size in itertools.product(
            LIMITS_S, (0.0, _PUTS_PER_S_MAX), (1, 16, 256), (100, 4096)
        )
    ),
)


def measure(session: Session) -> Iterator[Row]:
    """Yield a bare PUT, then appends beside it or beside what is promised, then costs, then the recovery."""
    part = Session(session.directory, effort=session.effort / ROUNDS)
    with s3_gateway(session.directory, lifetime_s=_LIFETIME_S) as gateway:
        work: dict[Case, Callable[[], LogAppenderResult]] = {
            case: partial(_load, part, gateway, case) for case in CASES
        }
        results = interleaved(work)
        yield from append_rows(results, gateway=gateway.program)
        yield from cost_rows(results)
        for latency_s in LIMITS_S:
            yield recovery_row(_recover(session, gateway, latency_s), latency_s=latency_s, gateway=gateway.program)


def append_rows(results: dict[Case, list[LogAppenderResult]], *, gateway: str) -> Iterator[Row]:
    """Yield a row of each case: the median of its rounds, beside what is promised, or beside a bare PUT."""
    for case, rounds in results.items():
        result = median_by(rounds, _p50_s)
        bare_s = median_by(results[_BARE[case.latency_s]], _p50_s).p50_s
        reference_name, reference_s, target = "a bare PUT", bare_s, None
        if case.is_limited:
            reference_name, reference_s = "the design", LIMITS_S[case.latency_s]
            target = Target(Bound.AT_MOST, 1.0)
        conditions = (
            f"p99 {Quantity(result.p99_s, Unit.SECONDS)}, {result.appends:,} samples; "
            f"{result.puts_per_s:.1f} PUTs a second, {Quantity(result.bytes_per_s, Unit.BYTES_PER_SECOND)}; "
        )
        if case.clients:
            conditions += (
                f"{result.p50_s / bare_s:.2f} x a bare PUT; {dollars_a_month(result.puts_per_s)} if it is always so; "
            )
        conditions += f"{gateway}; processors {result.processors:.2f}; {spread(rounds, _p50_s)}"
        yield Row(
            name=_name(case),
            figure=Quantity(result.p50_s, Unit.SECONDS),
            reference_name=reference_name if case.clients else "",
            reference=Quantity(reference_s, Unit.SECONDS) if case.clients else None,
            target=target,
            syncs=_NO_SYNCS,
            conditions=conditions,
        )


def cost_rows(results: dict[Case, list[LogAppenderResult]]) -> Iterator[Row]:
    """Yield what the PUTs of a server cost: without appends, and with the most PUTs that were seen under the bound."""
    lease_per_s = lease_puts_per_s()
    yield Row(
        name="PUTs of an idle server with its log in a store",
        figure=dollars_a_month(lease_per_s),
        syncs=_NO_SYNCS,
        conditions=f"{lease_per_s:.1f} PUTs a second for its lease, none for its log; 5 $ for a million PUTs",
    )
    bounded = [result.puts_per_s for case, rounds in results.items() if case.puts_per_s_max for result in rounds]
    yield Row(
        name="PUTs of a busy server with its log in a store",
        figure=dollars_a_month(lease_per_s + max(bounded)),
        reference_name=f"its bound, {_PUTS_PER_S_MAX:g} PUTs a second, and the lease",
        reference=dollars_a_month(lease_per_s + _PUTS_PER_S_MAX),
        syncs=_NO_SYNCS,
        conditions=f"the most PUTs of any round above with the bound: {max(bounded):.1f} a second, all month",
    )


def recovery_row(result: LogReaderResult, *, latency_s: float, gateway: str) -> Row:
    """Return how long the next owner reads, beside what is promised for as many bytes."""
    size = Quantity(result.size_bytes, Unit.BYTES)
    return Row(
        name=f"recovery of {size} of log in a store of {Quantity(latency_s, Unit.SECONDS)} a request",
        figure=Quantity(result.elapsed_s, Unit.SECONDS),
        reference_name="3 s for 256 MB",
        reference=Quantity(RECOVERY_LIMIT_S * result.size_bytes / RECOVERY_BYTES, Unit.SECONDS),
        target=Target(Bound.AT_MOST, 1.0),
        syncs=_NO_SYNCS,
        conditions=(
            f"{result.objects:,} objects of {Quantity(OBJECT_SIZE_BYTES, Unit.BYTES)} or less, {result.gets:,} GETs; "
            f"read, checked and closed, not applied; {gateway}; processors {result.cpu_s / result.elapsed_s:.2f}"
        ),
    )


def dollars_a_month(puts_per_s: float) -> Quantity:
    """Return what PUTs cost that never stop."""
    return Quantity(puts_per_s * MONTH_S * DOLLARS_A_PUT, Unit.DOLLARS_A_MONTH)


def lease_puts_per_s() -> float:
    """Return how often a server with its log in a store renews its lease."""
    options = ServerOptions(store=StoreUrl.parse("s3://bucket/prefix"), wal=WalOptions(place="object"))
    return RENEWALS_COUNT / options.for_storage().objects.lease_s


def _name(case: Case) -> str:
    far = f"a store of {Quantity(case.latency_s, Unit.SECONDS)} a PUT"
    if not case.clients:
        return f"bare PUT of {case.payload_size:,} B, {far}: p50"
    bound = f"at most {case.puts_per_s_max:g} PUTs a second" if case.puts_per_s_max else "PUTs without a bound"
    clients = f"{case.clients} client{'s' * (case.clients > 1)}"
    return f"durable append of {case.payload_size:,} B, log in {far}, {clients}, {bound}: p50"


def _load(session: Session, gateway: Gateway, case: Case) -> LogAppenderResult:
    options = LogAppenderOptions(
        url=gateway.new_url(),
        latency_s=case.latency_s,
        clients=case.clients,
        payload_size=case.payload_size,
        puts_per_s_max=case.puts_per_s_max,
        warm_up_s=_WARM_UP_S if case.puts_per_s_max else 0.5,
        duration_s=session.seconds(6.0),
    )
    return measured("log_appender", options, LogAppenderResult, environment=gateway.environment)


def _recover(session: Session, gateway: Gateway, latency_s: float) -> LogReaderResult:
    options = LogReaderOptions(url=gateway.new_url(), latency_s=latency_s, log_bytes=session.count(RECOVERY_BYTES))
    return measured("log_reader", options, LogReaderResult, environment=gateway.environment)


def _p50_s(result: LogAppenderResult) -> float:
    return result.p50_s
