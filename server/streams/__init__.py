"""Streams: named sets of segments, each with a range of the key space; scaling, retention, transactions."""

from .catalog import Catalog
from .controller import StreamController
from .exclusive_control import ExclusiveControl
from .expiry_loop import ExpiryRunner, WritersStatistics
from .lease_loop import TransactionsRunner, TransactionsStatistics
from .options import MetricsOptions, StreamsOptions, TransactionsOptions, WritersOptions
from .policy_loop import StreamsRunner, StreamsStatistics
from .transaction_answers import step_reply
from .transactions import Admitted, TransactionController
from .unused_producers import UnusedProducers
from .uptime import Uptime, boot_id

__all__ = [
    "Admitted",
    "Catalog",
    "ExclusiveControl",
    "ExpiryRunner",
    "MetricsOptions",
    "StreamController",
    "StreamsOptions",
    "StreamsRunner",
    "StreamsStatistics",
    "TransactionController",
    "TransactionsOptions",
    "TransactionsRunner",
    "TransactionsStatistics",
    "UnusedProducers",
    "Uptime",
    "WritersOptions",
    "WritersStatistics",
    "boot_id",
    "step_reply",
]
