"""Durable stream storage for Python and Spark.

Names are loaded when they are first used: `import millrace` is quick, and loads neither the server nor PySpark.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from . import blocking, client, spark_source, testing
    from .client.read.splits import SegmentRange
    from .client.blocks import Event, Position
    from .client.byte_stream import ByteReader, ByteWriter
    from .client.client import Client, connect
    from .client.compression import Compression
    from .client.cuts import HEAD, TAIL, Cut, StreamCut, parse_cut
    from .client.read.epochs import StreamSegment
    from .client.errors import (
        AttributeConditionFailedError,
        AuthenticationError,
        BlockCorruptError,
        BufferFullError,
        ClientClosedError,
        ConditionFailedError,
        ConnectionLostError,
        CutInvalidError,
        CutTruncatedError,
        EventNumberError,
        EventTooLargeError,
        ForkedClientError,
        InvalidArgumentError,
        InvalidNameError,
        MillraceError,
        NoSpaceError,
        OffsetBeyondEndError,
        OutcomeUnknownError,
        PipelineBrokenError,
        RequestError,
        RequestTimeoutError,
        SegmentDamagedError,
        SegmentExistsError,
        SegmentNotFoundError,
        SegmentSealedError,
        SegmentTruncatedError,
        ServerFailedError,
        ServerUnreachableError,
        StreamExistsError,
        StreamNotFoundError,
        StreamNotSealedError,
        StreamSealedError,
        ThrottledError,
        WriterExpiredError,
        WriterFencedError,
    )
    from .client.write.segment_writer import Stored
    from .client.options import ClientOptions
    from .client.read.reader import Reader, ReaderOptions
    from .client.admin.bookmarks import SavedCut
    from .client.read.cut_resolution import Distance
    from .client.admin.segments import ReadResult, SegmentInfo
    from .client.admin.streams import Epoch, RetentionPolicy, ScalingPolicy, StreamConfig, StreamInfo
    from .client.write.writer import Writer, WriterOptions
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
    "read.splits": ("SegmentRange",),
    "blocks": ("Event", "Position"),
    "byte_stream": ("ByteReader", "ByteWriter"),
    "client": ("Client", "connect"),
    "compression": ("Compression",),
    "cuts": ("HEAD", "TAIL", "Cut", "StreamCut", "parse_cut"),
    "read.epochs": ("StreamSegment",),
    "write.segment_writer": ("Stored",),
    "options": ("ClientOptions",),
    "read.reader": ("Reader", "ReaderOptions"),
    "admin.bookmarks": ("SavedCut",),
    "read.cut_resolution": ("Distance",),
    "admin.segments": ("ReadResult", "SegmentInfo"),
    "admin.streams": ("Epoch", "RetentionPolicy", "ScalingPolicy", "StreamConfig", "StreamInfo"),
    "write.writer": ("Writer", "WriterOptions"),
    "write.writer_info": ("Outcome", "WriterInfo"),
}
_PLACE_OF_NAME: Final = {name: place for place, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name in _PLACE_OF_NAME:
        value = getattr(import_module(f"{__name__}.client.{_PLACE_OF_NAME[name]}"), name)
    elif name.endswith("Error") and name in __all__:
        value = getattr(import_module(f"{__name__}.client.errors"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
