"""Streams: named sets of segments, each with a range of the key space; scaling, retention, transactions."""

from .catalog import Catalog
from .exclusive_commands import ExclusiveCommands
from .options import MetricsOptions, StreamsOptions, TransactionsOptions, WritersOptions
from .producer_commands import ProducerCommands
from .scaling_loop import ScalingLoop, StreamsStatistics
from .stream_commands import StreamCommands
from .transaction_answers import step_reply
from .transaction_commands import AdmittedStep, TransactionCommands
from .transaction_expiry import TransactionExpiryLoop, TransactionsStatistics
from .unused_producers import UnusedProducers
from .uptime import Uptime, boot_id
from .writer_expiry import WriterExpiryLoop, WritersStatistics

__all__ = [
    "AdmittedStep",
    "Catalog",
    "ExclusiveCommands",
    "MetricsOptions",
    "ProducerCommands",
    "ScalingLoop",
    "StreamCommands",
    "StreamsOptions",
    "StreamsStatistics",
    "TransactionCommands",
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
