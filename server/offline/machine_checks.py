"""Checks whether a machine, a disk and an object store are suitable for data."""

import platform
import resource
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, Literal

from millrace.model.extras import DISTRIBUTION
from millrace.model.figures import duration_text, rate_text, size_text
from millrace.server.container.local import CHECKPOINT_NAME, LOG_FOLDER
from millrace.server.errors import ConfigurationError, StorageError, StoreBusyError
from millrace.server.folder import CONTAINERS_FOLDER
from millrace.server.host.clock import SystemClock
from millrace.server.host.files import OsFileSystem
from millrace.server.host.room import DiskRoom
from millrace.server.object_store import StoreUrl, probe
from millrace.server.object_store.opening import OWNER_KEY
from millrace.server.object_store.probe import AT_ONCE
from millrace.server.wal import TIER2_BYTES_MIN, WalOptions, needed_bytes
from millrace.wire.limits import MIB

from .disk import MEMORY_FILE_SYSTEMS, SyncedWrites, file_system_of
from .owners import OwnerRow, owners
from .prefix_owner import owner_problem
from .remote_history import connect_store

SLOW_SYNC_S: Final = 0.010
STALL_S: Final = 0.100
OPEN_FILES_MIN: Final = 4096
STORE_PATIENCE_S: Final = 15.0
PACKAGES: Final = (DISTRIBUTION, "uvloop", "numpy", "crc32c", "pyarrow", "pyspark", "obstore")

TokenVerdict = Literal["good", "warning", "bad", ""]


@dataclass(frozen=True, slots=True)
class Check:
    """A check and its result; without a verdict if it is information only."""

    name: str
    found: str
    verdict: TokenVerdict = ""
    advice: str = ""


def disk_checks(folder: Path, small: SyncedWrites, large: SyncedWrites) -> Iterator[Check]:
    """Assess the disk under a folder from measurements."""
    kind, mount = file_system_of(folder)
    if kind in MEMORY_FILE_SYSTEMS:
        advice = "nothing here survives a restart of the machine; keep data elsewhere"
        yield Check("file system", f"{kind} on {mount}", "bad", advice)
    else:
        yield Check("file system", f"{kind} on {mount}" if kind else "unknown")
    yield sync_check(small)
    p99_s = small.percentile_s(99)
    stalls = p99_s > STALL_S
    yield Check(
        "sync of 4 KiB, p99",
        f"{duration_text(p99_s)} (slowest {duration_text(small.latencies_s[-1])})",
        "warning" if stalls else "good",
        "the disk stalls: acknowledgements will, too" if stalls else "",
    )
    yield Check(
        "synced writes of 1 MiB", f"{size_text(large.rate * MIB)}/s, p50 {duration_text(large.percentile_s(50))}"
    )
    yield room_check(folder)


def room_check(folder: Path) -> Check:
    """Assess the free space on the volume of a folder, which may already contain the data of a server."""
    files, options = OsFileSystem(), WalOptions()
    room = DiskRoom(files, has_tier2=True)
    containers = folder / CONTAINERS_FOLDER
    for path in [*containers.glob(f"*/{CHECKPOINT_NAME}")] or [containers / CHECKPOINT_NAME]:
        room.reserve_for(path)
    log_bytes = sum(files.size(path) for path in containers.glob(f"*/{LOG_FOLDER}/*.log"))
    free_bytes, reserve_bytes = files.free_bytes(folder), room.reserve_bytes
    needed = needed_bytes(options, reserve_bytes=reserve_bytes, has_tier2=True)
    log_max = options.files_max * options.file_size_bytes
    check = partial(Check, "free space", size_text(free_bytes))
    if free_bytes + log_bytes < needed and not log_bytes:
        return check(
            "bad",
            f"a server needs {size_text(needed)}, or smaller wal.run_size_bytes_max and wal.headroom_bytes",
        )
    if log_bytes and free_bytes < reserve_bytes + TIER2_BYTES_MIN:
        return check("bad", "the volume is full, appends are refused: truncate or delete streams")
    if free_bytes + log_bytes < 2 * log_max:
        return check("warning", f"the log alone may take {size_text(log_max)}")
    return check("good")


def sync_check(small: SyncedWrites) -> Check:
    """Judge the usual time of a sync: too slow is a pity, too fast is a lie."""
    p50_s = small.percentile_s(50)
    found = f"{duration_text(p50_s)}, {rate_text(small.rate)}"
    name = "sync of 4 KiB, p50"
    if small.is_suspicious:
        advice = "suspiciously fast: is this a real disk, and does it keep synced data when power fails?"
        return Check(name, found, "warning", advice)
    if p50_s > SLOW_SYNC_S:
        advice = f"slow: one append at a time gets at most {rate_text(1 / p50_s)}; many at once share a sync"
        return Check(name, found, "warning", advice)
    return Check(name, found, "good")


async def store_checks(url: StoreUrl, *, patience_s: float = STORE_PATIENCE_S) -> tuple[list[Check], list[OwnerRow]]:
    """Probe an object store: its guarantees, its latency, and the owners of its containers."""
    clock = SystemClock()
    name = f"object store {url}"
    started_s = clock.monotonic_s()
    try:
        opened = await connect_store(url, patience_s=patience_s)
        try:
            honesty = await probe(opened)
            containers = await owners(opened, url=str(url))
            problem = await owner_problem(opened, url=str(url))
        finally:
            await opened.close()
    except StoreBusyError as error:
        return [Check(name, str(error), "bad", "a server might not start with it now: try again later")], []
    except (StorageError, ConfigurationError) as error:
        return [Check(name, str(error), "bad", "a server would not start with it")], []
    found = (
        f"{honesty.created} of {AT_ONCE} concurrent puts created, {honesty.replaced} of {AT_ONCE} replaced, in "
        f"{duration_text(clock.monotonic_s() - started_s)}"
    )
    fault = f"it {honesty.fault}: it cannot keep the history of a server" if honesty.fault else ""
    checks = [Check(name, found, "bad" if fault else "good", fault)]
    if problem is not None:
        verdict: TokenVerdict = "warning" if problem.is_rebuilt else "bad"
        checks.append(Check(OWNER_KEY, problem.what, verdict, problem.advice))
    advice = "no server can start with it; `millrace inspect --store` shows its content"
    checks += [Check(f"container {each.container}", each.problem, "bad", advice) for each in containers if each.problem]
    return checks, containers


def machine_checks() -> Iterator[Check]:
    """Check limits and versions."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_low = soft != resource.RLIM_INFINITY and soft < OPEN_FILES_MIN
    hard_text = "no limit" if hard == resource.RLIM_INFINITY else f"{hard:,}"
    yield Check(
        "open files",
        "no limit" if soft == resource.RLIM_INFINITY else f"{soft:,} (may be raised to {hard_text})",
        "warning" if is_low else "good",
        "each connection takes one: raise it with `ulimit -n`" if is_low else "",
    )
    yield Check("system", f"{platform.system()} {platform.release()}, {platform.machine()}")
    yield Check("Python", platform.python_version(), "good")
    for package in PACKAGES:
        yield Check(package, _version(package))
    java = shutil.which("java")
    yield Check("Java", java or "not found", "" if java else "warning", "" if java else "only Spark needs it: Java 17")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
