"""The metrics of writers."""

from typing import Final

from millrace.server.host.metric_help import Figures, MetricHelp, figures_of

FIGURES: Final[Figures] = figures_of(
    "writers",
    named_expired_total=MetricHelp(
        "named_expired_total",
        "Writers with an id that expired because they were idle. If one returns, what it has stored is unknown.",
    ),
    unnamed_expired_total=MetricHelp("unnamed_expired_total", "Writers without an id that were idle for too long."),
    marks_forgotten_total=MetricHelp(
        "marks_forgotten_total",
        "Expired writers with an id that the server has forgotten. If one returns, it may store events twice.",
    ),
)
