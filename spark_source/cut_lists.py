"""Cuts of several streams as one text: with semicolons between, as in offsets and in the options of cuts."""

from collections.abc import Iterable
from typing import Final

from millrace.model.cut import StreamCut
from millrace.model.errors import CutInvalidError

BETWEEN: Final = ";"
"""Occurs in no cut and in no stream name."""


def cuts_text(cuts: Iterable[StreamCut]) -> str:
    """Return the text for `parse_cuts`."""
    return BETWEEN.join(map(str, cuts))


def parse_cuts(text: str) -> tuple[StreamCut, ...]:
    """Parse a list of cuts, each of another stream.

    Raises:
        CutInvalidError: a cut is invalid, or two are of one stream.
    """
    cuts = tuple(StreamCut.parse(part.strip()) for part in text.split(BETWEEN))
    if len({cut.stream for cut in cuts}) < len(cuts):
        raise CutInvalidError(f"{text[:200]!r} has two cuts of one stream")
    return cuts
