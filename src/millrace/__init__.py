"""Durable stream storage for Python and Spark.

Names are loaded when they are first used: `import millrace` is quick, and loads neither the server nor PySpark.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from . import blocking, client, spark_source, testing
    from .client.batch import SegmentRange
    from .client.blocks import Event, Position
    from .client.client import Client, connect
    from .client.compression import Compression
    from .client.cuts import HEAD, TAIL, Cut, StreamCut, parse_cut
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
        WriterFencedError,
    )
    from .client.lane import Stored
    from .client.options import ClientOptions
    from .client.reader import Reader, ReaderOptions
    from .client.segments import ReadResult, SegmentInfo
    from .client.streams import ScalingPolicy, StreamConfig, StreamInfo
    from .client.writer import Writer, WriterOptions

__all__ = [
    "HEAD",
    "TAIL",
    "AttributeConditionFailedError",
    "AuthenticationError",
    "BlockCorruptError",
    "BufferFullError",
    "Client",
    "ClientClosedError",
    "ClientOptions",
    "Compression",
    "ConditionFailedError",
    "ConnectionLostError",
    "Cut",
    "CutInvalidError",
    "CutTruncatedError",
    "Event",
    "EventNumberError",
    "EventTooLargeError",
    "ForkedClientError",
    "InvalidArgumentError",
    "InvalidNameError",
    "MillraceError",
    "NoSpaceError",
    "OffsetBeyondEndError",
    "OutcomeUnknownError",
    "PipelineBrokenError",
    "Position",
    "ReadResult",
    "Reader",
    "ReaderOptions",
    "RequestError",
    "RequestTimeoutError",
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
    "ThrottledError",
    "Writer",
    "WriterFencedError",
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
    "batch": ("SegmentRange",),
    "blocks": ("Event", "Position"),
    "client": ("Client", "connect"),
    "compression": ("Compression",),
    "cuts": ("HEAD", "TAIL", "Cut", "StreamCut", "parse_cut"),
    "lane": ("Stored",),
    "options": ("ClientOptions",),
    "reader": ("Reader", "ReaderOptions"),
    "segments": ("ReadResult", "SegmentInfo"),
    "streams": ("ScalingPolicy", "StreamConfig", "StreamInfo"),
    "writer": ("Writer", "WriterOptions"),
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
