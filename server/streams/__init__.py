"""Streams: named sets of segments, each with a range of the key space; scaling, retention, transactions."""

from .catalog import Catalog
from .controller import StreamController
from .exclusive_control import ExclusiveControl
from .options import MetricsOptions, StreamsOptions, TransactionsOptions, WritersOptions
from .scaling_loop import ScalingLoop, StreamsStatistics
from .transaction_answers import step_reply
from .transaction_expiry import TransactionExpiryLoop, TransactionsStatistics
from .transactions import Admitted, TransactionController
from .unused_producers import UnusedProducers
from .uptime import Uptime, boot_id
from .writer_expiry import WriterExpiryLoop, WritersStatistics

__all__ = [
    "Admitted",
    "Catalog",
    "ExclusiveControl",
    "MetricsOptions",
    "ScalingLoop",
    "StreamController",
    "StreamsOptions",
    "StreamsStatistics",
    "TransactionController",
    "TransactionExpiryLoop",
    "TransactionsOptions",
    "TransactionsStatistics",
    "UnusedProducers",
    "Uptime",
    "WriterExpiryLoop",
    "WritersOptions",
    "WritersStatistics",
    "boot_id",
    "step_reply",
]
