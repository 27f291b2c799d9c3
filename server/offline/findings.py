"""What a check of data found: where it is, what is wrong, and what that means."""

from dataclasses import dataclass, field
from pathlib import Path

from millrace.server.container.state.segment import Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is not as it was written.

    Attributes:
        file: relative to the data folder.
        offset: where in the file it starts, None if it is all of it or cannot be told.
        size: bytes concerned, None if that cannot be told.
        lost: what of which segment that means, if it can be told.
    """

    file: str
    offset: int | None = None
    size: int | None = None
    what: str
    lost: str = ""


@dataclass(slots=True)
class Verification:
    """What was checked, and what was found."""

    findings: list[Finding] = field(default_factory=list)
    # What is no damage, but worth knowing.
    notes: list[str] = field(default_factory=list)
    containers: int = 0
    segments: int = 0
    batches: int = 0
    log_bytes: int = 0
    chunks: int = 0
    chunk_bytes: int = 0

    def find(self, file: str, what: str, *, offset: int | None = None, size: int | None = None, lost: str = "") -> None:
        """Add a finding."""
        self.findings.append(Finding(file=file, offset=offset, size=size, what=what, lost=lost))


def range_text(segment: Segment, start: int, end: int) -> str:
    """Return bytes of a segment for people."""
    return f"{segment.name} [{start}, {end})"


def relative_name(path: Path, folder: Path) -> str:
    """Return the path of a file from the data folder on, or all of it where it is elsewhere."""
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)
