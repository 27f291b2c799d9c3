"""Streams as the console's JSON shows them. Pure: client results in, dictionaries out.

Times are Unix microseconds, keys are places from 0 to 1, and every list is bounded.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from millrace.client.admin.bookmarks import SavedCut
from millrace.client.transactions.outcome import ListedTransaction
from millrace.model.lineage import Epoch, parts_of_history
from millrace.model.quantities import unix_us_of
from millrace.model.stream import StreamInfo, StreamSegment

SEGMENTS_COUNT_MAX: Final = 1000
"""The most segments in one answer."""
EPOCHS_COUNT_MAX: Final = 200
"""The most scalings in one answer."""


def summary(info: StreamInfo) -> dict[str, Any]:
    """Return a stream as a row of a list."""
    return {
        "stream": info.name,
        "sealed": info.sealed,
        "epoch": info.epoch,
        "open_segment_count": len(info.open_segments),
        "size_bytes": info.size_bytes,
        # Over all segments that still have content, including truncated events: rates are the growth of these.
        "event_count": sum(segment.event_count for segment in info.segments),
        "written_bytes": sum(segment.length for segment in info.segments),
    }


def description(info: StreamInfo, *, now_us: int) -> dict[str, Any]:
    """Return a stream with its policies and its open segments, the first ones by their keys."""
    owner = info.exclusive_writer
    retention = info.configuration.retention
    return {
        **summary(info),
        "now_us": now_us,
        "created_us": info.created_us,
        "scaling": info.configuration.scaling.to_dict(),
        "retention": None if retention is None else retention.to_dict(),
        "tags": list(info.configuration.tags),
        "exclusive_writer": None if owner is None else {"writer_id": owner.writer_id, "since_us": owner.since_us},
        "segments": [
            {"segment_id": segment.segment_id, "low": segment.low, "high": segment.high, **_counts(segment)}
            for segment in info.open_segments[:SEGMENTS_COUNT_MAX]
        ],
    }


def segments_over_time(
    info: StreamInfo, epochs: Sequence[Epoch], *, now_us: int, count_max: int = SEGMENTS_COUNT_MAX
) -> dict[str, Any]:
    """Return the segments that a stream ever had as rectangles, keys times time; at most the newest ones.

    Counts are given for segments that still have content.
    """
    started_us = {epoch.number: epoch.started_us for epoch in epochs}
    known = {segment.segment_id: segment for segment in info.segments}
    parts = sorted(parts_of_history(epochs), key=lambda part: (part.sealed_epoch == 0, part.epoch, part.key_range.low))
    shown = parts[-count_max:]
    scalings = [epoch for epoch in epochs if epoch.number]
    return {
        "stream": info.name,
        "epoch": info.epoch,
        "sealed": info.sealed,
        "now_us": now_us,
        "omitted_segment_count": len(parts) - len(shown),
        "segments": [
            {
                "segment_id": part.segment_id,
                "low": part.key_range.fractions[0],
                "high": part.key_range.fractions[1],
                "created_us": started_us[part.epoch],
                "sealed_us": started_us.get(part.sealed_epoch) if part.sealed_epoch else None,
                **_counts(known.get(part.segment_id)),
            }
            for part in shown
        ],
        "scalings": [
            {
                "epoch": epoch.number,
                "at_us": epoch.started_us,
                "cause": epoch.cause,
                "sealed_ids": list(epoch.sealed_ids),
                "created_ids": [segment_id for segment_id, _ in epoch.created],
            }
            for epoch in scalings[-EPOCHS_COUNT_MAX:]
        ],
    }


def saved_cuts(
    cursors: Iterable[SavedCut],
    bookmarks: Iterable[SavedCut],
    *,
    lags: Iterable[Mapping[str, Any]],
    unread_events: Mapping[str, int],
) -> dict[str, Any]:
    """Return the cursors with their lag, and the bookmarks, by name.

    Args:
        lags: of cursors, by `name`, from `explain`.
        unread_events: of cursors, by name, where they were counted.
    """
    by_name = {lag["name"]: lag for lag in lags}
    return {
        "cursors": [
            {
                "name": cursor.name,
                "saved_us": cursor.saved_us,
                "hold_s": cursor.hold_s,
                "unread_bytes": by_name.get(cursor.name, {}).get("unread_bytes"),
                "unread_events": unread_events.get(cursor.name),
                "holds_bytes": by_name.get(cursor.name, {}).get("holds_bytes"),
            }
            for cursor in cursors
        ],
        "bookmarks": [{"name": bookmark.name, "saved_us": bookmark.saved_us} for bookmark in bookmarks],
    }


def transaction(listed: ListedTransaction) -> dict[str, Any]:
    """Return a transaction as a row of a list."""
    return {
        "number": listed.number,
        "name": listed.name,
        "state": listed.state.value,
        "begun_us": unix_us_of(listed.begun_at),
        "lease_s": listed.lease_s,
        "part_count": listed.part_count,
        "size_bytes": listed.size_bytes,
    }


def _counts(segment: StreamSegment | None) -> dict[str, int | None]:
    """Return the counts of a segment; None for each if it has no content any more."""
    if segment is None:
        return {"event_count": None, "written_bytes": None, "size_bytes": None}
    return {
        "event_count": segment.event_count,
        "written_bytes": segment.length,
        "size_bytes": segment.length - segment.start_offset,
    }
