"""The streams and cursors that have metrics of their own, as of one moment."""

from collections.abc import Sequence
from dataclasses import dataclass

from millrace.server.streams.cursor_lag import CursorLag
from millrace.server.streams.traffic import WriteTotals


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """The busiest streams, and the cursors that lag most.

    Attributes:
        streams: by name, what was written to each.
        others: what was written to all others.
        lags: of the cursors that lag most.
        other_lags: of all others.
    """

    streams: Sequence[tuple[str, WriteTotals]] = ()
    others: WriteTotals = WriteTotals()  # noqa: RUF009  # immutable
    lags: Sequence[CursorLag] = ()
    other_lags: Sequence[CursorLag] = ()
