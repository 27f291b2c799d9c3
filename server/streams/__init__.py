"""What streams and their writers do by themselves: scaling, retention, the expiry of writers, and the clock of ages."""

from .exclusive_commands import ExclusiveCommands
from .options import MetricsOptions, StreamsOptions, WritersOptions
from .scaling_loop import ScalingLoop, StreamsStatistics
from .uptime import Uptime, boot_id
from .writer_expiry import WriterExpiryLoop, WritersStatistics

__all__ = [
    "ExclusiveCommands",
    "MetricsOptions",
    "ScalingLoop",
    "StreamsOptions",
    "StreamsStatistics",
    "Uptime",
    "WriterExpiryLoop",
    "WritersOptions",
    "WritersStatistics",
    "boot_id",
]
