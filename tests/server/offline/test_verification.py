"""Behaviours 81 and 85 as `verify` sees them: files that are sound, and not the ones that belong where they are."""

import asyncio
import json
import re
import shutil
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.server.app import Server
from millrace.server.errors import FolderLockedError, FolderVersionError
from millrace.server.host.files import OsFileSystem
from millrace.server.offline.findings import Finding, Note, Progress, Verification
from millrace.server.offline.inspect_path import inspect_path
from millrace.server.offline.verification import verify, verify_folder
from millrace.server.wal import read_log_head
from millrace.wire import messages as m
from tests.server.tier2.chunks import forged
from tests.support.protocol import Peer
from tests.support.servers import QUIET, SMALL_WAL, server_options


async def fill(folder: Path, *, older: Path) -> None:
    """Make two segments with chunks of the same sizes, three log files and two copies of the checkpoint.

    A checkpoint from before the newest copy is put beside the folder.
    """
    # So large that the flusher sees no reason to copy the checkpoint by itself.
    options = server_options(
        folder, container=replace(QUIET, chunk_size_bytes_small=0), wal=replace(SMALL_WAL, files_max=64)
    )
    async with Server(options) as server, await Peer.connect(server.address) as peer:
        flusher = server.opened.flusher
        one, other = await peer.create_segment("raw/one"), await peer.create_segment("raw/other")
        for number in range(2):
            for _ in range(3):
                await peer.store(one, bytes([1 + number]) * 32_000)
                await peer.store(other, bytes([101 + number]) * 32_000)
            await flusher.flush()
            await flusher.checkpoint()
            if number == 0:
                shutil.copyfile(folder / "containers/0000/checkpoint.db", older)
            # As `Flusher.copy` does, but without recycling the log.
            await flusher._checkpointer.copy()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "data"
    asyncio.run(fill(folder, older=folder.with_name("older.db")))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "data"))


def chunks(folder: Path) -> list[Path]:
    """The chunks of both segments, by segment and place."""
    found = sorted((folder / "tier2/c0000/segments").rglob("*.chunk"))
    assert len({path.stat().st_size for path in found}) == 1
    return found


def copies(folder: Path) -> list[Path]:
    return sorted((folder / "tier2/c0000/checkpoints").iterdir())


def logs(folder: Path) -> list[Path]:
    return sorted((folder / "containers/0000/wal").glob("wal-*.log"))


def swap(one: Path, other: Path) -> None:
    """Let two files change places."""
    first, second = one.read_bytes(), other.read_bytes()
    assert first != second
    one.write_bytes(second)
    other.write_bytes(first)


def findings(folder: Path) -> dict[str, str]:
    """Return what `verify` says of each file, joined."""
    result: Verification = Verification.of(verify_folder(folder))
    return {
        finding.file: " ".join(each.what + each.lost for each in result.findings if each.file == finding.file)
        for finding in result.findings
    }


def test_files_in_their_places_are_fine(folder: Path) -> None:
    assert findings(folder) == {}
    assert (len(chunks(folder)), len(copies(folder))) == (4, 2)
    assert len(logs(folder)) > 2


@pytest.mark.parametrize(("one", "other"), [(0, 1), (0, 2), (1, 3)])
def test_chunks_that_changed_places_are_told(folder: Path, one: int, other: int) -> None:
    """Behaviour 81: of one segment, or of two; each with what it holds, what it should hold, and what is lost."""
    paths = [chunks(folder)[one], chunks(folder)[other]]
    swap(*paths)

    found = findings(folder)

    assert sorted(found) == sorted(path.relative_to(folder).as_posix() for path in paths)
    for text in found.values():
        assert "the file holds bytes [" in text
        assert "raw/" in text


@pytest.mark.parametrize("fields", [{"container_epoch": 9}, {"start_offset": 7}, {"end_wall_time_us": 5}])
def test_a_chunk_of_another_time_is_told(folder: Path, fields: dict[str, int]) -> None:
    """Behaviour 81: an older epoch, another place, or the chunk of another server under the same name."""
    path = chunks(folder)[1]
    path.write_bytes(forged(path.read_bytes(), b"", **fields))

    assert list(findings(folder)) == [path.relative_to(folder).as_posix()]


def test_what_lies_outside_of_all_scopes_is_told(folder: Path) -> None:
    """Behaviour 81: a chunk in the folder of a container that is not there."""
    path = chunks(folder)[0]
    target = folder / "tier2/c0007" / path.relative_to(folder / "tier2/c0000")
    target.parent.mkdir(parents=True)
    path.rename(target)

    found = findings(folder)

    assert found[target.relative_to(folder).as_posix()] == "belongs to no container of this folder"
    assert "is missing" in found[path.relative_to(folder).as_posix()]


def test_copies_that_changed_places_are_told(folder: Path) -> None:
    """Behaviour 81."""
    swap(*copies(folder))

    found = findings(folder)

    assert sorted(found) == sorted(path.relative_to(folder).as_posix() for path in copies(folder))
    assert all("the file holds part 0 of 1 of copy" in text for text in found.values())


def test_a_copy_of_another_server_is_told(folder: Path) -> None:
    """Behaviour 81: as its log is."""
    identity = json.loads((folder / "identity.json").read_text())
    (folder / "identity.json").write_text(json.dumps({**identity, "server_id": str(uuid.uuid4())}))

    found = findings(folder)

    for path in copies(folder):
        assert f"of container 0 of server {identity['server_id']}" in found[path.relative_to(folder).as_posix()]


def test_a_file_among_the_copies_with_a_foreign_name_is_told(folder: Path) -> None:
    path = copies(folder)[0]
    path.rename(path.with_name("backup.chunk"))

    assert "not that of a part" in findings(folder)["tier2/c0000/checkpoints/backup.chunk"]


def test_copies_that_are_gone_are_told_if_the_log_needs_them(folder: Path) -> None:
    """Behaviour 81: the log is recycled after a copy only, so there was one."""
    logs(folder)[0].unlink()
    assert findings(folder) == {}

    for path in copies(folder):
        path.unlink()

    assert "no copy of the checkpoint exists" in findings(folder)["tier2/c0000/checkpoints"]


def test_an_older_checkpoint_is_told_and_its_newest_copy_used(folder: Path, made: Path) -> None:
    """Behaviour 85."""
    shutil.copyfile(made.with_name("older.db"), folder / "containers/0000/checkpoint.db")

    result = Verification.of(verify_folder(folder))

    (finding,) = result.findings
    assert finding.file == "containers/0000/checkpoint.db"
    assert "it is older than its copy: sequence" in finding.what
    newest = copies(folder)[-1].name.removesuffix("-00000-00001.chunk")
    assert f"the next start restores it from tier2/c0000/checkpoints/{newest}" in " ".join(result.notes)


def test_log_files_that_changed_places_are_told(folder: Path) -> None:
    """Behaviour 81."""
    first, second, *_ = logs(folder)
    swap(first, second)

    found = findings(folder)

    for path in (first, second):
        assert "the file header is damaged" in found[path.relative_to(folder).as_posix()]


@pytest.mark.parametrize("is_newest", [False, True], ids=["in the middle", "newest"])
def test_a_deleted_log_file_is_told(folder: Path, is_newest: bool) -> None:
    """Behaviours 81 and 82."""
    named = read_log_head(OsFileSystem(), folder / "containers/0000/wal").named
    assert named is not None
    path = logs(folder)[named.number - 1 if is_newest else 1]
    path.unlink()

    found = findings(folder)

    assert "this file is missing" in found[path.relative_to(folder).as_posix()]


@pytest.mark.parametrize("change", ["deleted", "older"])
def test_a_wrong_name_of_the_newest_log_file_is_told(folder: Path, change: str) -> None:
    """Behaviours 81 and 82."""
    path = folder / "containers/0000/wal/newest"
    data = path.read_bytes()
    if change == "deleted":
        path.unlink()
    else:
        older = bytearray(data)
        newest = max((0, 4096), key=lambda slot: older[slot + 8 : slot + 16][::-1])
        older[newest : newest + 4096] = bytes(4096)
        path.write_bytes(older)

    assert "containers/0000/wal/newest" in findings(folder)


def other_server(folder: Path) -> str:
    """Put the whole checkpoint of another server into the folder, with as much in it; return what it belongs to."""
    other = folder.with_name("other")
    asyncio.run(fill(other, older=folder.with_name("unused.db")))
    path = "containers/0000/checkpoint.db"
    shutil.copyfile(other / path, folder / path)
    return f"belongs to container 0 of server {json.loads((other / 'identity.json').read_text())['server_id']}"


@pytest.mark.asyncio
async def test_the_checkpoint_of_another_server_is_told(folder: Path) -> None:
    """Behaviour 81: at the start, by `verify` and by `inspect`; it is neither used nor set aside."""
    whose = await asyncio.to_thread(other_server, folder)
    expected = (
        f"{whose}, not to container 0 of server {json.loads((folder / 'identity.json').read_text())['server_id']}"
    )
    path = folder / "containers/0000/checkpoint.db"
    data = path.read_bytes()

    with pytest.raises(FolderVersionError, match=re.escape(expected)):
        async with Server(server_options(folder)):
            pass
    result = await asyncio.to_thread(lambda: Verification.of(verify_folder(folder)))

    assert [(each.file, each.what) for each in result.findings] == [
        ("containers/0000/checkpoint.db", f"the checkpoint cannot be used: {expected}")
    ]
    assert any("a start without this file restores it from" in note for note in result.notes)
    assert f"checkpoint.db: {expected}" in (await asyncio.to_thread(inspect_path, folder)).problems
    assert path.read_bytes() == data
    path.unlink()
    async with Server(server_options(folder)) as server, await Peer.connect(server.address) as peer:
        assert (await peer.ask(m.GetSegment(0, "raw/one"), m.SegmentInfo)).length == 192_000


def test_inspect_tells_a_chunk_and_a_copy_under_other_names(folder: Path) -> None:
    swap(*copies(folder))
    swap(chunks(folder)[0], chunks(folder)[2])

    assert any("the file holds part 0" in each for each in inspect_path(copies(folder)[0]).problems)
    assert any("not the chunk in its name" in each for each in inspect_path(chunks(folder)[0]).problems)


def test_inspect_shows_the_rows_of_a_copy(folder: Path) -> None:
    report = inspect_path(copies(folder)[-1], with_hex=True)

    assert report.problems == []
    assert (report.facts["container_id"], report.facts["part_count"]) == (0, 1)
    assert [section.name for section in report.sections][:2] == ["header", "segments"]


def test_a_check_yields_findings_notes_counts_and_its_progress(killed_folder: Path) -> None:
    total, *steps = verify(killed_folder)
    progress = [item for item in steps if isinstance(item, Progress)]

    assert total == Progress(total=sum(item.size for item in progress))
    assert {item.what for item in progress if item.size} == {"log"}
    assert [item for item in steps if isinstance(item, Finding | Note)] == []
    assert Verification.of(steps).segments == 3


def test_a_check_that_is_left_early_gives_the_folder_back(killed_folder: Path) -> None:
    checking = verify(killed_folder)
    next(checking)
    with pytest.raises(FolderLockedError):
        next(verify(killed_folder))
    checking.close()

    assert Verification.of(verify(killed_folder)).findings == []
