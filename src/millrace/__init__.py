"""Durable stream storage for Python and Spark.

Names are loaded when they are first used: `import millrace` is quick, and loads neither the server nor PySpark.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from . import blocking, client, spark_source, testing
    from .client.read.splits import SegmentRange
    from .model.event import Event, EventPosition
    from .model.position import Position
    from .client.read.byte_reader import ByteReader
    from .client.write.byte_writer import ByteWriter
    from .client.client import Client, connect
    from .model.compression import Compression
    from .model.cut import HEAD, TAIL, Cut, StreamCut, parse_cut
    from .model.stream import StreamSegment
    from .client.errors import AttributeConditionFailedError, AuthenticationError, BufferFullError, ClientClosedError, ConditionFailedError, ConnectionLostError, CutTruncatedError, EventNumberError, ForkedClientError, NoSpaceError, OffsetBeyondEndError, OutcomeUnknownError, PipelineBrokenError, RequestTimeoutError, SegmentDamagedError, SegmentExistsError, SegmentNotFoundError, SegmentSealedError, SegmentTruncatedError, ServerFailedError, ServerUnreachableError, StreamExistsError, StreamNotFoundError, StreamNotSealedError, StreamSealedError, ThrottledError, WriterExpiredError, WriterFencedError
    from .model.errors import BlockCorruptError, CutInvalidError, EventTooLargeError, InvalidArgumentError, InvalidNameError, MillraceError, RequestError
    from .client.write.accumulator import Stored
    from .client.options import ClientOptions
    from .client.read.reader import Reader, ReaderOptions
    from .client.admin.bookmarks import SavedCut
    from .client.read.cut_resolution import Distance
    from .client.admin.segments import ReadResult, SegmentInfo
    from .model.policy import RetentionPolicy, ScalingPolicy, StreamConfig
    from .model.stream import StreamInfo
    from .model.lineage import Epoch
    from .client.write.options import WriterOptions
    from .client.write.writer import Writer
    from .client.write.writer_info import Outcome, WriterInfo

__all__ = [
    "HEAD",
    "TAIL",
    "AttributeConditionFailedError",
    "AuthenticationError",
    "BlockCorruptError",
    "BufferFullError",
    "ByteReader",
    "ByteWriter",
    "Client",
    "ClientClosedError",
    "ClientOptions",
    "Compression",
    "ConditionFailedError",
    "ConnectionLostError",
    "Cut",
    "CutInvalidError",
    "CutTruncatedError",
    "Distance",
    "Epoch",
    "Event",
    "EventNumberError",
    "EventPosition",
    "EventTooLargeError",
    "ForkedClientError",
    "InvalidArgumentError",
    "InvalidNameError",
    "MillraceError",
    "NoSpaceError",
    "OffsetBeyondEndError",
    "Outcome",
    "OutcomeUnknownError",
    "PipelineBrokenError",
    "Position",
    "ReadResult",
    "Reader",
    "ReaderOptions",
    "RequestError",
    "RequestTimeoutError",
    "RetentionPolicy",
    "SavedCut",
    "ScalingPolicy",
    "SegmentDamagedError",
    "SegmentExistsError",
    "SegmentInfo",
    "SegmentNotFoundError",
    "SegmentRange",
    "SegmentSealedError",
    "SegmentTruncatedError",
    "ServerFailedError",
    "ServerUnreachableError",
    "Stored",
    "StreamConfig",
    "StreamCut",
    "StreamExistsError",
    "StreamInfo",
    "StreamNotFoundError",
    "StreamNotSealedError",
    "StreamSealedError",
    "StreamSegment",
    "ThrottledError",
    "Writer",
    "WriterExpiredError",
    "WriterFencedError",
    "WriterInfo",
    "WriterOptions",
    "blocking",
    "client",
    "connect",
    "parse_cut",
    "spark_source",
    "testing",
]

_MODULES: Final = ("blocking", "client", "spark_source", "testing")
_PLACES: Final = {
    "client.admin.bookmarks": ("SavedCut",),
    "client.admin.segments": ("ReadResult", "SegmentInfo"),
    "client.client": ("Client", "connect"),
    "client.options": ("ClientOptions",),
    "client.read.byte_reader": ("ByteReader",),
    "client.read.cut_resolution": ("Distance",),
    "client.read.reader": ("Reader", "ReaderOptions"),
    "client.read.splits": ("SegmentRange",),
    "client.write.accumulator": ("Stored",),
    "client.write.byte_writer": ("ByteWriter",),
    "client.write.options": ("WriterOptions",),
    "client.write.writer": ("Writer",),
    "client.write.writer_info": ("Outcome", "WriterInfo"),
    "model.compression": ("Compression",),
    "model.cut": ("HEAD", "TAIL", "Cut", "StreamCut", "parse_cut"),
    "model.errors": (
        "BlockCorruptError", "CutInvalidError", "EventTooLargeError", "InvalidArgumentError", "InvalidNameError",
        "MillraceError", "RequestError",
    ),
    "model.event": ("Event", "EventPosition"),
    "model.lineage": ("Epoch",),
    "model.policy": ("RetentionPolicy", "ScalingPolicy", "StreamConfig"),
    "model.position": ("Position",),
    "model.stream": ("StreamInfo", "StreamSegment"),
}  # fmt: skip
_PLACE_OF_NAME: Final = {name: place for place, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name in _PLACE_OF_NAME:
        value = getattr(import_module(f"{__name__}.{_PLACE_OF_NAME[name]}"), name)
    elif name.endswith("Error") and name in __all__:
        value = getattr(import_module(f"{__name__}.client.errors"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
