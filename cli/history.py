"""`millrace stream history`: the splits and merges of a stream, as a table and as a picture."""

import time
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from millrace.model.figures import duration_text, time_text
from millrace.model.key_range import KeyRange
from millrace.model.lineage import Epoch

from .connecting import JsonOption, ServerTarget, StreamArgument
from .history_picture import change_text, draw_history, periods
from .output import console, print_json, print_table, print_text

PICTURE_WIDTH_MAX: Final = 100
NOTE_WIDTH: Final = 32
PICTURE_HEIGHT_MIN: Final = 12
LINES_PER_EPOCH: Final = 3
"""Two are needed; a third one each leaves enough to show their durations."""


def history(
    server: ServerTarget,
    stream: StreamArgument,
    with_picture: Annotated[bool, typer.Option("--picture/--no-picture", help="Draw the segments over time.")] = True,
    with_table: Annotated[bool, typer.Option("--table/--no-table", help="List the epochs.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Show how a stream was scaled: its segments over time, and when and why they were split or merged."""
    with server.connect() as client:
        epochs = client.stream_history(stream)
        sealed = client.stream_info(stream).sealed
    # The server's clock timed the epochs; the local one may be slow.
    end_us = max(time.time_ns() // 1000, *(epoch.started_us for epoch in epochs))
    if as_json:
        print_json([_json(epoch) for epoch in epochs])
        return
    if with_picture:
        print_picture(epochs, end_us=end_us, end_text="now, sealed" if sealed else "now")
    if with_picture and with_table:
        print_text("")
    if with_table:
        print_table(
            ("epoch", "started", "lasted", "segments", "change", "keys of the new ones", "cause"),
            [
                (
                    period.epoch.number,
                    time_text(period.epoch.started_us),
                    duration_text(period.duration_us / 1e6),
                    len(period.open_segments),
                    change_text(period.epoch),
                    ", ".join(_keys_text(keys) for _, keys in period.epoch.created),
                    period.epoch.cause,
                )
                for period in periods(epochs, end_us=end_us)
            ],
            right=("lasted",),
        )


def print_picture(epochs: Sequence[Epoch], *, end_us: int, end_text: str = "now") -> None:
    """Draw the segments over time, at a width that suits the terminal."""
    target = console()
    width = target.width if target.is_terminal else PICTURE_WIDTH_MAX
    lines = draw_history(
        epochs,
        end_us=end_us,
        end_text=end_text,
        width=min(width, PICTURE_WIDTH_MAX) - NOTE_WIDTH,
        height=max(PICTURE_HEIGHT_MIN, LINES_PER_EPOCH * len(epochs)),
        ascii_only=target.options.ascii_only,
    )
    for line in lines:
        print_text(line)


def _keys_text(keys: KeyRange) -> str:
    low, high = keys.fractions
    return f"{low:.4g} to {high:.4g}"


def _json(epoch: Epoch) -> dict[str, Any]:
    return {
        "epoch": epoch.number,
        "started_us": epoch.started_us,
        "cause": epoch.cause,
        "sealed_ids": list(epoch.sealed_ids),
        "created": [
            {"segment_id": segment_id, "low": keys.fractions[0], "high": keys.fractions[1]}
            for segment_id, keys in epoch.created
        ],
    }
