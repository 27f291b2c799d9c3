"""One picture of a load, the segments that it makes, and the tasks that follow them."""

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from millrace.cli.history_picture import Period
from millrace.model.key_range import KEY_SPACE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STEP_S: Final = 1.0


class Batch(NamedTuple):
    """What a batch of a query took.

    Attributes:
        began_s: Unix seconds.
        tasks: those that had events.
    """

    query: str
    began_s: float
    took_s: float
    events: int
    tasks: int

    @classmethod
    def of(cls, told: dict[str, object]) -> "Batch":
        """Return what a line of the program of the queries says."""
        began_s = datetime.fromisoformat(str(told["began"])).timestamp()
        return cls(
            str(told["query"]),
            began_s,
            float(str(told["took_ms"])) / 1000,
            int(str(told["events"])),
            int(str(told["tasks"])),
        )


class Sample(NamedTuple):
    """How much was written, and was counted at the end of the chain, by a moment in Unix seconds."""

    at_s: float
    written: int
    counted: int


def draw(path: Path, *, raw: Sequence[Period], batches: Sequence[Batch], samples: Sequence[Sample]) -> None:
    """Draw segments, tasks and rates over time, into a file whose suffix says its format (svg, png, pdf)."""
    from matplotlib.figure import Figure

    begin_s = samples[0].at_s
    figure = Figure(figsize=(10, 9), layout="constrained")
    segments, counts, rates = figure.subplots(3, 1, sharex=True, height_ratios=(3, 2, 2))
    _draw_segments(segments, raw, begin_s)
    _draw_counts(counts, raw, batches, begin_s)
    _draw_rates(rates, samples, begin_s)
    rates.set_xlabel("seconds")
    figure.savefig(path)


def _draw_segments(axes: "Axes", raw: Sequence[Period], begin_s: float) -> None:
    axes.set_title("segments of the raw stream: each takes the events of a range of keys")
    for period in raw:
        start_s = period.epoch.started_us / 1e6 - begin_s
        for segment_id, keys in period.open_segments:
            low, high = keys.low / KEY_SPACE, keys.high / KEY_SPACE
            axes.fill_between(
                (start_s, start_s + period.duration_us / 1e6),
                low,
                high,
                color=f"C{segment_id % 10}",
                alpha=0.5,
                linewidth=0,
            )
    axes.set_ylabel("keys")
    axes.set_ylim(0, 1)


def _draw_counts(axes: "Axes", raw: Sequence[Period], batches: Sequence[Batch], begin_s: float) -> None:
    axes.set_title("open segments, and tasks of Spark that read them")
    starts_s = [period.epoch.started_us / 1e6 - begin_s for period in raw]
    axes.step(starts_s, [len(period.open_segments) for period in raw], where="post", label="segments", color="black")
    for query in sorted({batch.query for batch in batches}):
        own = [batch for batch in batches if batch.query == query]
        moments_s = [batch.began_s - begin_s for batch in own]
        axes.plot(moments_s, [batch.tasks for batch in own], ".", markersize=3, label=f"tasks of the query {query!r}")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper right")


def _draw_rates(axes: "Axes", samples: Sequence[Sample], begin_s: float) -> None:
    axes.set_title("events per second")
    for name in ("written", "counted"):
        rates = [
            (getattr(after, name) - getattr(before, name)) / (after.at_s - before.at_s)
            for before, after in pairwise(samples)
        ]
        axes.plot([sample.at_s - begin_s for sample in samples[1:]], rates, label=name)
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper right")
