"""The service that scales and truncates streams: no kind of its own, but what works on all streams of a container."""

from typing import Final

from millrace.server.container.container import SegmentContainer
from millrace.server.container.service import Collaborators, RunningService, Service
from millrace.server.host.metric_help import Figures, MetricHelp, figures_of
from millrace.server.kinds.streams.catalog import Catalog
from millrace.server.kinds.streams.commands import StreamCommands
from millrace.server.kinds.streams.requests import Explain
from millrace.server.kinds.writers.uptime import Uptime

from .options import MetricsOptions, StreamsOptions
from .scaling_loop import ScalingLoop

_FIGURES: Final[Figures] = figures_of(
    "streams",
    scaling_streams=MetricHelp("scaling_streams", "Streams that scale by themselves."),
    retaining_streams=MetricHelp("retaining_streams", "Streams with a retention policy."),
    splits_total=MetricHelp("splits_total", "Times that a busy segment was split."),
    merges_total=MetricHelp(
        "merges_total",
        "Times that quiet neighbours were merged. If it rises together with the splits, change the policies.",
    ),
    truncations_total=MetricHelp("truncations_total", "Times that retention deleted events of a stream."),
    truncated_bytes_total=MetricHelp("truncated_bytes_total", "Bytes that retention has deleted."),
    refusals_total=MetricHelp(
        "refusals_total",
        "Scaling and retention decisions that were outdated or not stored; they are retried later. If it keeps "
        "rising, read the log messages.",
    ),
)


def _scaling_loop(made: Collaborators) -> ScalingLoop:
    return ScalingLoop(
        container=made.get(SegmentContainer),
        streams=made.get(StreamCommands),
        catalog=made.get(Catalog),
        uptime=made.get(Uptime),
        options=made.get(StreamsOptions),
        metrics=made.get(MetricsOptions),
    )


def _begin(made: Collaborators) -> RunningService:
    scaling = made.get(ScalingLoop)
    return RunningService(loops={"streams": scaling.run}, statistics={"streams": lambda: scaling.statistics})


SCALING: Final = Service(
    factories={ScalingLoop: _scaling_loop, Explain: lambda made: Explain(made.get(ScalingLoop).explain)},
    begin=_begin,
    figures=_FIGURES,
)
