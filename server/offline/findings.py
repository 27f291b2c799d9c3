"""The findings of a check: the place, the problem, and its consequence."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from millrace.server.container.state.segment import Segment


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem in the data.

    Attributes:
        file: relative to the data folder.
        offset: where in the file it starts, None for the whole file or if unknown.
        size: affected bytes, None if unknown.
        lost: the affected range of a segment, if known.
    """

    file: str
    offset: int | None = field(default=None, kw_only=True)
    size: int | None = field(default=None, kw_only=True)
    what: str
    lost: str = field(default="", kw_only=True)


@dataclass(frozen=True, slots=True)
class MissingChunk(Finding):
    """A missing chunk that a checkpoint refers to; a server may have deleted it since the listing."""


@dataclass(frozen=True, slots=True)
class Note:
    """A fact that is worth knowing but not a problem."""

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
        total: total number of bytes, None if reported before.
    """

    what: str = ""
    size: int = 0
    total: int | None = None


Item = Finding | Note | Checked | Progress


@dataclass(slots=True)
class Verification:
    """The findings of a whole check, its notes, and its summed counts."""

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
        """Sum up the items of a check."""
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
    """Return a path relative to the data folder, or the whole path if it is elsewhere."""
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)
