"""`millrace stream scale`: replace segments of a stream by hand."""

import itertools
from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated

import typer

from millrace.model.figures import count_text
from millrace.model.key_range import KEY_SPACE, KeyRange
from millrace.model.stream import Border, StreamInfo, scaled_ranges

from .connecting import ServerTarget, StreamArgument
from .output import print_done, print_note

Ranges = list[tuple[Border, Border]]


def scale(
    server: ServerTarget,
    stream: StreamArgument,
    split: Annotated[int | None, typer.Option(metavar="SEGMENT", help="Split this segment in the middle.")] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FRACTION",
            help="Split it here instead: 0.6 or 1/3 of all keys. Give it several times for several parts.",
        ),
    ] = None,
    merge: Annotated[
        tuple[int, int] | None, typer.Option(metavar="SEGMENT SEGMENT", help="Merge these two neighbours.")
    ] = None,
    seal: Annotated[
        list[str] | None,
        typer.Option(metavar="SEGMENT,...", help="Replace these segments by new ones, with the keys of --ranges."),
    ] = None,
    ranges: Annotated[
        str | None,
        typer.Option(
            metavar="LOW:HIGH,...",
            help="Keys of the new segments, from 0 to 1: 0:0.25,0.25:0.5. Together they must cover the replaced ones, "
            "which without --seal are all open segments with such keys.",
        ),
    ] = None,
) -> None:
    """Split or merge segments while writers and readers continue; the order of each key is kept."""
    if sum(option is not None for option in (split, merge, ranges)) != 1:
        raise typer.BadParameter("give exactly one of --split, --merge and --ranges")
    if (seal and ranges is None) or (at and split is None):
        raise typer.BadParameter("--seal needs --ranges, --at needs --split")
    sealed_ids = _segment_ids(seal or ())
    wanted = [] if ranges is None else parse_ranges(ranges)
    borders = [parse_fraction(text) for text in at or ()]
    with server.connect() as client:
        before = client.stream_info(stream)
        if split is not None:
            sealed_ids, wanted = [split], split_ranges(_open_range(before, split), borders)
        elif merge is not None:
            sealed_ids = list(merge)
            wanted = merged_range([_open_range(before, segment_id) for segment_id in merge])
        elif not sealed_ids:
            sealed_ids = segments_with_keys(before, wanted)
        if not sealed_ids:
            print_note(f"{stream} already has such segments; nothing was changed")
            return
        after = client.scale_stream(stream, seal=sealed_ids, ranges=wanted)
    if after.epoch == before.epoch:
        print_note(f"{stream} was already scaled like this; nothing was changed")
        return
    created = [str(segment.segment_id) for segment in after.segments if segment.epoch == after.epoch]
    print_done(
        f"scaled {stream}: {', '.join(map(str, sealed_ids))} replaced by {', '.join(created)}; "
        f"{count_text(len(after.open_segments), 'open segment')} now"
    )


def parse_fraction(text: str) -> float | Fraction:
    """Parse a place in the key space, `0.25` or `1/3`.

    Raises:
        typer.BadParameter: it is invalid.
    """
    try:
        # 1/3 is exact; for 0.3333333333333333 the client finds the border that it stands for.
        value = Fraction(text.strip()) if "/" in text else float(text)
    except (ValueError, ZeroDivisionError):
        raise typer.BadParameter(f"{text!r} is not a fraction: write 0.25 or 1/3") from None
    if not 0 <= value <= 1:
        raise typer.BadParameter(f"{text} is outside of the key space, which goes from 0 to 1")
    return value


def parse_ranges(text: str) -> Ranges:
    """Parse ranges of keys, such as `0:0.25,0.25:1/2`.

    Raises:
        typer.BadParameter: they are invalid.
    """
    ranges: Ranges = []
    for part in text.split(","):
        low, colon, high = part.partition(":")
        if not colon:
            raise typer.BadParameter(f"{part!r} is not a range of keys: write 0:0.25")
        ranges.append((parse_fraction(low), parse_fraction(high)))
    return ranges


def split_ranges(keys: KeyRange, borders: Sequence[float | Fraction]) -> Ranges:
    """Return the parts of a segment: its halves, or the ranges between the given borders.

    Raises:
        typer.BadParameter: a border is outside of the segment.
    """
    inner = sorted({int(Fraction(border) * KEY_SPACE) for border in borders}) or [(keys.low + keys.high) // 2]
    if not (keys.low < inner[0] and inner[-1] < keys.high):
        low, high = keys.fractions
        raise typer.BadParameter(f"--at must be inside the segment, between {low} and {high}")
    # Whole numbers out of 2^64 are exact; 0 and 1 mean the same in both forms.
    whole = [keys.low, *inner, keys.high]
    return list(itertools.pairwise(whole))


def merged_range(parts: Sequence[KeyRange]) -> Ranges:
    """Return the joined range of neighbours.

    Raises:
        typer.BadParameter: there are keys between them.
    """
    first, last = sorted(parts, key=lambda keys: keys.low)
    if first.high != last.low:
        raise typer.BadParameter("only neighbours can be merged; `millrace stream info` shows the keys of each segment")
    return [(first.low, last.high)]


def segments_with_keys(info: StreamInfo, ranges: Ranges) -> list[int]:
    """Return the open segments that have keys in one of the ranges; none if their keys are exactly these ranges."""
    wanted = scaled_ranges(ranges, segments=info.open_segments)
    found = [each for each in info.open_segments if any(each.key_range.overlaps(keys) for keys in wanted)]
    if sorted(wanted) == sorted(each.key_range for each in found):
        return []
    return [each.segment_id for each in found]


def _open_range(info: StreamInfo, segment_id: int) -> KeyRange:
    for segment in info.open_segments:
        if segment.segment_id == segment_id:
            return segment.key_range
    known = ", ".join(str(segment.segment_id) for segment in info.open_segments)
    raise typer.BadParameter(f"{segment_id} is not an open segment of {info.name}; open are {known}")


def _segment_ids(texts: Sequence[str]) -> list[int]:
    try:
        return [int(part) for text in texts for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{','.join(texts)!r} is not a list of segments: write 2,3") from None
