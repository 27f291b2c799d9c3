"""Policies of streams: scaling and retention."""

from .options import MetricsOptions, StreamsOptions
from .scaling_loop import ScalingLoop, StreamsStatistics

__all__ = ["MetricsOptions", "ScalingLoop", "StreamsOptions", "StreamsStatistics"]
