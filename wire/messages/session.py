"""Messages of the connection itself, and the replies that many requests share."""

from typing import ClassVar

from construct import Const

from .declaration import I64, U8, U16, U32, U64, Bytes16, FromBoth, FromServer, Request, Text, message


@message(2, kw_only=True)
class HelloReply(FromServer):
    """First frame of a server: the negotiated version, and its limits."""

    magic: ClassVar = Const(b"MLRC")
    version: U16
    features: U64
    frame_size_max: U32
    append_size_max: U32
    appends_in_flight_max: U32
    server_id: Bytes16
    server: Text


@message(1, kw_only=True)
class Hello(Request[HelloReply]):
    """First frame of a client: versions, features, identity."""

    magic: ClassVar = Const(b"MLRC")
    version_min: U16
    version_max: U16
    features: U64
    frame_size_max: U32
    session_id: Bytes16  # random; the same on all connections of a client; a new one when it is started again
    client: Text
    token: Text


@message(3, kw_only=True)
class ErrorReply(FromServer):
    """A request failed; the facts. -1, 0 and empty mean facts that do not apply."""

    code: U16
    retriable: U8 = 0
    retry_after_ms: U32 = 0
    start_offset: I64 = -1
    length: I64 = -1
    start_index: U32 = 0  # of the first event that is left, in the block at `start_offset`
    subject: Text = ""
    message: Text


@message(4)
class Ping(FromBoth):
    """Request a PONG."""


@message(5)
class Pong(FromBoth):
    """Answer to PING."""


@message(6)
class Throttle(FromServer):
    """Notice of backpressure: the server stops reading from this connection until the resource has space."""

    retry_after_ms: U32
    reason: Text


@message(7)
class Done(FromServer):
    """The request was carried out; `changed` is 0 if there was nothing to change."""

    changed: U8
