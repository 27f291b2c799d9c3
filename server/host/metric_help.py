"""The Prometheus name and help of a number in the statistics."""

from collections.abc import Mapping
from typing import NamedTuple


class MetricHelp(NamedTuple):
    """One metric.

    Attributes:
        name: in Prometheus.
        help: what it means, what to do about it.
    """

    name: str
    help: str

    @property
    def is_counter(self) -> bool:
        """Whether it only rises while the server runs; else it is a gauge."""
        return self.name.endswith("_total")


Figures = Mapping[tuple[str, str], MetricHelp]
"""Metrics by the part of the statistics and the field of its record."""


def figures_of(part: str, **declared: MetricHelp) -> Figures:
    """Return the metrics of one part; the names are given without the part."""
    return {(part, field): MetricHelp(f"millrace_{part}_{name}", text) for field, (name, text) in declared.items()}
