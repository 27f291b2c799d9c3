"""The machine that a server runs on, through interfaces that tests replace."""

from dataclasses import dataclass, field

from .clock import Clock, SystemClock
from .files import FileSystem, OsFileSystem
from .metrics import Metrics
from .threads import SYSTEM_THREADS, Threads


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What all parts of one server share of its machine."""

    files: FileSystem = field(default_factory=OsFileSystem)
    clock: Clock = field(default_factory=SystemClock)
    threads: Threads = SYSTEM_THREADS
    metrics: Metrics = field(default_factory=Metrics)
