"""The streams and cursors with metrics of their own, as of one moment."""

from collections.abc import Sequence
from dataclasses import dataclass

from millrace.server.streams.cursor_lag import CursorLag
from millrace.server.streams.traffic import WriteTotals


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """The busiest streams, and the cursors with the largest lag.

    Attributes:
        streams: bytes and events written, by stream name.
        others: the sum over all other streams.
        lags: of the cursors with the largest lag.
        other_lags: of all other cursors.
    """

    streams: Sequence[tuple[str, WriteTotals]] = ()
    others: WriteTotals = WriteTotals()  # noqa: RUF009  # immutable
    lags: Sequence[CursorLag] = ()
    other_lags: Sequence[CursorLag] = ()
