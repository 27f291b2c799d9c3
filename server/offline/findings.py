"""Findings of a check of data: where it is, what is wrong, and what that means."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from millrace.server.container.state.segment import Segment


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it was written.

    Attributes:
        file: relative to the data folder.
        offset: where in the file it starts, None if it is all of it or cannot be told.
        size: bytes concerned, None if that cannot be told.
        lost: what of which segment that means, if it can be told.
    """

    file: str
    offset: int | None = field(default=None, kw_only=True)
    size: int | None = field(default=None, kw_only=True)
    what: str
    lost: str = field(default="", kw_only=True)


@dataclass(frozen=True, slots=True)
class MissingChunk(Finding):
    """A chunk that a checkpoint refers to and that was not there; a server may have deleted it since the listing."""


@dataclass(frozen=True, slots=True)
class Note:
    """A fact that is no damage, but worth knowing."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Data that was gone through, counted."""

    containers: int = 0
    segments: int = 0
    batches: int = 0
    log_bytes: int = 0
    chunks: int = 0
    chunk_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """Bytes of the log or of tier 2 that were read since the last such item.

    Attributes:
        total: bytes of all of it, None if that was said before.
    """

    what: str = ""
    size: int = 0
    total: int | None = None


Item = Finding | Note | Checked | Progress


@dataclass(slots=True)
class Verification:
    """The findings of a whole check, its notes, and the sums of its counts."""

    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    containers: int = 0
    segments: int = 0
    batches: int = 0
    log_bytes: int = 0
    chunks: int = 0
    chunk_bytes: int = 0

    @classmethod
    def of(cls, items: Iterable[Item], *, on_progress: Callable[[Progress], None] = lambda _: None) -> "Verification":
        """Return the sum of what a check yields."""
        result = cls()
        for item in items:
            match item:
                case Finding():
                    result.findings.append(item)
                case Note():
                    result.notes.append(item.text)
                case Progress():
                    on_progress(item)
                case Checked():
                    for name, count in asdict(item).items():
                        setattr(result, name, getattr(result, name) + count)
        return result


def range_text(segment: Segment, start: int, end: int) -> str:
    """Return bytes of a segment for people."""
    return f"{segment.name} [{start}, {end})"


def relative_name(path: Path, folder: Path) -> str:
    """Return the path of a file from the data folder on, or all of it where it is elsewhere."""
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)
