import asyncio
import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.server.errors import StorageError
from millrace.server.host.files import Buffer, OsFileSystem
from millrace.server.tier2 import ChunkInfo, LocalStorage, Tier2Options
from millrace.server.tier2.local import TEMPORARY_SUFFIX
from tests.support.examples import examples
from tests.support.files import MemoryFile, MemoryFileSystem

FOLDER = Path("/data/tier2")
NAME = "segments/07/a.chunk"
PATH = FOLDER / NAME
CONTENT = bytes(range(256)) * 8


class Killed(BaseException):
    """The process is dead: no line of code runs after this."""


class MortalFileSystem(MemoryFileSystem):
    """Dies before the n-th change of the disk; its later lives are immortal."""

    def __init__(self, deaths_at: int = -1) -> None:
        super().__init__()
        self.changes_left = deaths_at
        self.failing_folder_syncs = 0
        self.folder_syncs: list[Path] = []

    def live_on(self) -> None:
        self.changes_left = -1

    def step(self) -> None:
        if self.changes_left == 0:
            raise Killed
        self.changes_left -= 1

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False, read_only: bool = False) -> MemoryFile:
        if create:
            self.step()
        return super().open(path, create=create, exclusive=exclusive, read_only=read_only)

    def rename(self, source: Path, target: Path) -> None:
        self.step()
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self.step()
        super().remove(path)

    def sync_directory(self, path: Path) -> None:
        self.step()
        if self.failing_folder_syncs:
            self.failing_folder_syncs -= 1
            raise OSError(errno.EIO, "Input/output error", str(path))
        self.folder_syncs.append(path)
        super().sync_directory(path)

    def _write(self, file: MemoryFile, data: bytes, offset: int) -> None:
        self.step()
        super()._write(file, data, offset)

    def _datasync(self, file: MemoryFile) -> None:
        self.step()
        super()._datasync(file)


def storage_on(files: MemoryFileSystem) -> LocalStorage:
    return LocalStorage(files, FOLDER, Tier2Options())


async def publish_until_death(files: MortalFileSystem, *, name: str = NAME, content: Buffer = CONTENT) -> bool:
    """Return whether the publish was acknowledged. The kill is caught in the thread's future, outside the storage."""
    storage = storage_on(files)
    try:
        await storage.publish(name, [content])
        return True
    except Killed:
        return False
    finally:
        await storage.close()


def temporaries(files: MemoryFileSystem) -> list[str]:
    return [name for name in files.list_directory(PATH.parent) if name.endswith(TEMPORARY_SUFFIX)]


@settings(max_examples=examples(100))
@given(st.integers(0, 9), st.integers(0, 2**32), st.booleans())
@pytest.mark.asyncio
async def test_a_crash_leaves_a_whole_chunk_or_none(death: int, seed: int, power_loss: bool) -> None:
    """Behaviour 46: a crash anywhere in a publish; then publishing again, and another crash, leaves one whole copy."""
    files = MortalFileSystem(death)
    acknowledged = await publish_until_death(files)
    files.live_on()
    if power_loss:
        files.crash(seed)

    storage = storage_on(files)
    found = await storage.list()
    if found or acknowledged:
        assert found == [ChunkInfo(NAME, len(CONTENT))]
        assert await storage.read(NAME, offset=0, size=len(CONTENT) + 1) == CONTENT
    await storage.publish(NAME, [CONTENT])
    await storage.close()
    files.crash(seed + 1)

    storage = storage_on(files)
    assert await storage.list() == [ChunkInfo(NAME, len(CONTENT))]
    assert await storage.read(NAME, offset=0, size=len(CONTENT) + 1) == CONTENT
    await storage.close()


@pytest.mark.asyncio
async def test_a_chunk_found_in_place_is_made_durable_before_it_counts() -> None:
    """A process killed between rename and sync leaves a name which the next loss of power could take away."""
    files = MortalFileSystem(4)  # create, write, datasync, rename pass
    assert not await publish_until_death(files)
    assert files.exists(PATH)
    files.live_on()

    storage = storage_on(files)
    await storage.publish(NAME, [CONTENT])
    await storage.close()

    assert files.folder_syncs == [PATH.parent, FOLDER / "segments", FOLDER]


@pytest.mark.asyncio
async def test_folders_above_are_synced_once() -> None:
    files = MortalFileSystem()
    storage = storage_on(files)

    for number in range(3):
        await storage.publish(f"segments/07/{number}.chunk", [CONTENT])
    await storage.close()

    assert files.folder_syncs == [PATH.parent, FOLDER / "segments", FOLDER, PATH.parent, PATH.parent]


def fail_folder_syncs(files: MortalFileSystem) -> None:
    files.failing_folder_syncs = 1


@pytest.mark.asyncio
@pytest.mark.parametrize("fail", [MortalFileSystem.fail_writes, MortalFileSystem.fail_syncs, fail_folder_syncs])
async def test_what_fails_is_an_error_and_leaves_no_file(fail: Callable[[MortalFileSystem], None]) -> None:
    """Behaviour 43: no success for bytes whose sync failed; the next publish writes all of them to another file."""
    files = MortalFileSystem()
    storage = storage_on(files)
    fail(files)

    with pytest.raises(StorageError):
        await storage.publish(NAME, [CONTENT])

    assert files.list_directory(PATH.parent) == []
    await storage.publish(NAME, [CONTENT])
    await storage.close()
    files.crash(1)
    assert files.content(PATH) == CONTENT


@pytest.mark.asyncio
async def test_what_a_crash_has_left_under_a_prefix_is_deleted_and_nothing_else() -> None:
    """Behaviour 46: temporary files of a publish that died."""
    files = MortalFileSystem(3)
    assert not await publish_until_death(files)  # before the rename
    files.live_on()
    files.open(FOLDER / "notes.txt", create=True)
    files.make_directories(FOLDER / "other")
    files.open(FOLDER / "other" / "a.0.temporary", create=True)
    assert len(temporaries(files)) == 1
    storage = storage_on(files)
    await storage.publish("segments/07/b.chunk", [CONTENT])

    assert await storage.list() == [ChunkInfo("segments/07/b.chunk", len(CONTENT))]
    assert await storage.delete_temporary_files("segments/") == 1
    assert files.list_directory(PATH.parent) == ["b.chunk"]
    assert files.exists(FOLDER / "notes.txt")
    assert files.exists(FOLDER / "other" / "a.0.temporary")
    await storage.close()


@pytest.mark.asyncio
async def test_the_temporary_file_of_a_publish_under_way_is_left_alone() -> None:
    """Behaviour 45: a disk that stalls for seconds."""
    files = MemoryFileSystem()
    storage = storage_on(files)
    files.stall()
    publish = asyncio.ensure_future(storage.publish(NAME, [CONTENT]))
    await asyncio.to_thread(files.stalled.wait)

    assert await storage.delete_temporary_files() == 0
    assert len(temporaries(files)) == 1
    files.resume()
    await publish
    assert files.list_directory(PATH.parent) == ["a.chunk"]
    await storage.close()


@pytest.mark.asyncio
async def test_a_cancelled_publish_continues_and_the_next_one_waits_for_it() -> None:
    files = MemoryFileSystem()
    storage = storage_on(files)
    files.stall()
    first = asyncio.ensure_future(storage.publish(NAME, [CONTENT]))
    await asyncio.to_thread(files.stalled.wait)
    first.cancel()
    await asyncio.wait([first])
    second = asyncio.ensure_future(storage.publish(NAME, [CONTENT]))
    await asyncio.sleep(0)
    files.resume()

    await second
    await storage.close()

    assert first.cancelled()
    assert files.write_count == 1


@pytest.mark.asyncio
async def test_close_waits_for_a_cancelled_publish_whatever_comes_of_it() -> None:
    files = MemoryFileSystem()
    storage = storage_on(files)
    files.stall()
    files.fail_syncs()
    publish = asyncio.ensure_future(storage.publish(NAME, [CONTENT]))
    await asyncio.to_thread(files.stalled.wait)
    publish.cancel()
    close = asyncio.ensure_future(storage.close())
    await asyncio.sleep(0)
    assert not close.done()
    files.resume()

    await close

    assert files.list_directory(PATH.parent) == []


@pytest.mark.asyncio
async def test_a_folder_where_the_chunk_should_be_is_an_error_with_its_name(tmp_path: Path) -> None:
    storage = LocalStorage(OsFileSystem(), tmp_path, Tier2Options())
    (tmp_path / "a.chunk").mkdir()

    with pytest.raises(StorageError) as caught:
        await storage.read("a.chunk", offset=0, size=1)

    assert caught.value.subject == "a.chunk"
    await storage.close()
