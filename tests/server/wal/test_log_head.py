import errno
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.model.checksum import crc32c
from millrace.server.errors import LogClosedError, NoSpaceError
from millrace.server.wal.batch import decode_file_header
from millrace.server.wal.log_head import (
    NEWEST_NAME,
    FileUse,
    LogHead,
    decode_slot,
    encode_slot,
    log_head_of,
    open_log_head,
    read_log_head,
)
from millrace.server.wal.logfile import log_file_name
from millrace.wire.schema import newest as schema
from millrace.wire.schema.newest import NEWEST_SLOT_SIZE_BYTES, NewestSlot
from tests.support.files import MemoryFile, MemoryFileSystem
from tests.support.tables import table
from tests.support.waiting import until
from tests.support.wal import FOLDER, append_run, open_log

GOLDEN = Path(__file__).parents[2] / "golden" / "newest_v1.hex"
PATH = FOLDER / NEWEST_NAME
USED_BYTES = NewestSlot.sizeof()
U64 = st.integers(0, 2**64 - 1)


def made() -> MemoryFileSystem:
    files = MemoryFileSystem()
    files.make_directories(FOLDER)
    return files


@pytest.fixture
def files() -> MemoryFileSystem:
    return made()


def name(files: MemoryFileSystem, *numbers: int) -> None:
    """Name log files one after the other; their salts are 100 times their numbers."""
    for number in numbers:
        open_log_head(files, FOLDER, FileUse(number, 100 * number)).close()


def test_the_example_in_the_format_is_what_it_says() -> None:
    assert schema.__doc__ is not None
    example = schema.__doc__.partition("Example:")[2].partition("\n\n")[2]
    data = bytes.fromhex("".join(re.findall(r"[0-9a-f]+", example)))

    assert decode_slot(data) == FileUse(3, 0x0123456789ABCDEF)
    assert encode_slot(FileUse(3, 0x0123456789ABCDEF))[:USED_BYTES] == data


def test_the_golden_bytes_are_read_and_written_as_they_were(files: MemoryFileSystem) -> None:
    golden = bytes.fromhex(GOLDEN.read_text(encoding="ascii"))
    name(files, 1, 2, 3)

    content = files.content(PATH)

    slots = (content[:USED_BYTES], content[NEWEST_SLOT_SIZE_BYTES:][:USED_BYTES])
    assert b"".join(slots).hex(" ") == golden.hex(" ")
    assert content.count(0) == len(content) - len(golden) + golden.count(0)
    assert len(content) == 2 * NEWEST_SLOT_SIZE_BYTES


@given(U64, U64)
def test_a_slot_is_what_the_declaration_builds(number: int, salt: int) -> None:
    slot = encode_slot(FileUse(number, salt))
    declared = NewestSlot.parse(slot)

    assert (declared.file_number, declared.salt, declared.checksum) == (number, salt, crc32c(slot[:24]))
    assert NewestSlot.build(declared) == slot[:USED_BYTES]
    assert decode_slot(slot) == FileUse(number, salt)


@given(st.binary(max_size=2 * USED_BYTES))
def test_bytes_of_something_else_name_nothing(data: bytes) -> None:
    assert log_head_of(data) == LogHead((None, None))


def test_where_there_is_no_file_there_are_no_slots(files: MemoryFileSystem) -> None:
    assert read_log_head(files, FOLDER) == LogHead(())
    assert read_log_head(files, FOLDER).named is None


def test_the_slots_are_used_in_turn(files: MemoryFileSystem) -> None:
    name(files, 4, 6, 8)

    assert read_log_head(files, FOLDER) == LogHead((FileUse(8, 800), FileUse(6, 600)))
    assert read_log_head(files, FOLDER).named == FileUse(8, 800)


def test_an_older_file_or_the_same_is_not_named_again(files: MemoryFileSystem) -> None:
    name(files, 4)
    before = files.content(PATH)

    name(files, 4, 3)

    assert read_log_head(files, FOLDER).named == FileUse(4, 400)
    assert files.content(PATH) == before


def test_what_is_read_is_durable_when_the_file_was_opened(files: MemoryFileSystem) -> None:
    """Behaviour 43: after a failed sync the system shows what is not on the disk, and must not be believed."""
    name(files, 4)
    newest = open_log_head(files, FOLDER, FileUse(4, 400))
    files.fail_syncs()
    with pytest.raises(OSError, match="Input/output error"):
        newest.name(FileUse(5, 500))
    newest.close()
    assert read_log_head(files, FOLDER).named == FileUse(5, 500)

    name(files, 5)

    for seed in range(8):
        after = files.copy()
        after.crash(seed)
        assert read_log_head(after, FOLDER).named == FileUse(5, 500)


@given(bit=st.integers(0, 8 * USED_BYTES - 1), is_newest=st.booleans())
def test_of_a_damaged_slot_the_other_one_counts(bit: int, is_newest: bool) -> None:
    files = made()
    name(files, 4, 5)
    files.flip_bit(PATH, bit + 8 * NEWEST_SLOT_SIZE_BYTES * is_newest)

    assert read_log_head(files, FOLDER).named == (FileUse(4, 400) if is_newest else FileUse(5, 500))

    name(files, 6)
    kept = (FileUse(4, 400), FileUse(6, 600)) if is_newest else (FileUse(6, 600), FileUse(5, 500))
    assert read_log_head(files, FOLDER) == LogHead(kept)


def test_where_both_slots_are_damaged_nothing_is_named_until_the_next_is(files: MemoryFileSystem) -> None:
    name(files, 4, 5)
    files.replace_content(PATH, bytes(2 * NEWEST_SLOT_SIZE_BYTES))
    assert read_log_head(files, FOLDER) == LogHead((None, None))

    name(files, 5)

    assert read_log_head(files, FOLDER).named == FileUse(5, 500)


@pytest.mark.parametrize("size", [0, 27, 28, NEWEST_SLOT_SIZE_BYTES, NEWEST_SLOT_SIZE_BYTES + 27])
def test_a_file_that_was_cut_is_read_and_written(files: MemoryFileSystem, size: int) -> None:
    name(files, 4, 5)
    files.replace_content(PATH, files.content(PATH)[:size])

    assert read_log_head(files, FOLDER).named == (FileUse(4, 400) if size >= USED_BYTES else None)

    name(files, 6)
    assert read_log_head(files, FOLDER).named == FileUse(6, 600)


@given(count=st.integers(1, 5), seed=st.integers(0, 2**32 - 1))
def test_what_was_named_outlives_a_power_loss_in_the_next_write(count: int, seed: int) -> None:
    files = made()
    name(files, *range(1, count + 1))
    newest = open_log_head(files, FOLDER, FileUse(count, 0))
    files.fail_syncs()

    with pytest.raises(OSError, match="Input/output error"):
        newest.name(FileUse(count + 1, 100 * count + 100))
    files.crash(seed)

    assert read_log_head(files, FOLDER).named in {FileUse(count, 100 * count), FileUse(count + 1, 100 * count + 100)}


def test_the_file_has_its_name_only_when_it_names_something_durably(files: MemoryFileSystem) -> None:
    files.fail_syncs()
    with pytest.raises(OSError, match="Input/output error"):
        name(files, 1)
    assert not files.exists(PATH)

    name(files, 1)
    files.crash(seed=0)

    assert read_log_head(files, FOLDER).named == FileUse(1, 100)


def test_a_full_disk_makes_no_file_and_does_not_keep_one_from_naming(files: MemoryFileSystem) -> None:
    """Behaviour 44: the log continues in a spare when the disk is full."""
    files.capacity_bytes = 100
    with pytest.raises(NoSpaceError):
        name(files, 1)
    assert not files.exists(PATH)
    files.capacity_bytes = 1 << 20
    name(files, 1)
    files.capacity_bytes = 0

    name(files, 2)

    assert read_log_head(files, FOLDER).named == FileUse(2, 200)


class DyingFileSystem(MemoryFileSystem):
    """Loses its power before one of the changes that are made to it, and refuses all that follow."""

    def __init__(self, *, steps: int, seed: int) -> None:
        super().__init__()
        self.steps = steps
        self.seed = seed
        # What is found after the power loss; before it, what happens is told to `on_step`.
        self.left: MemoryFileSystem | None = None
        self.on_step: Callable[[Path, str], None] = lambda path, what: None

    def rename(self, source: Path, target: Path) -> None:
        self._step(target, "rename")
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self._step(path, "remove")
        super().remove(path)

    def sync_directory(self, path: Path) -> None:
        self._step(path, "sync")
        super().sync_directory(path)

    def _write(self, file: MemoryFile, data: bytes, offset: int) -> None:
        self._step(file.path, "write" if offset else "head")
        super()._write(file, data, offset)

    def _datasync(self, file: MemoryFile) -> None:
        self._step(file.path, "sync")
        super()._datasync(file)
        self.on_step(file.path, "synced")

    def _step(self, path: Path, what: str) -> None:
        with self._lock:
            self.steps -= 1
            if self.steps == 0:
                self.left = self.copy()
                self.left.crash(self.seed)
            if self.steps <= 0:
                raise OSError(errno.EIO, "no power")
            self.on_step(path, what)


PAYLOADS = [b"%04d" % index * 750 for index in range(8)]
"""They fill three log files."""
STEPS_MAX = 60
"""More changes than it takes to store them."""


async def store(files: DyingFileSystem) -> list[bytes]:
    """Store the payloads in a new log, as far as the power lasts, and return what was acknowledged."""
    acked: list[bytes] = []
    try:
        log = await open_log(files)
    except OSError as error:
        if "no power" not in str(error):
            raise
        return acked
    for payload in PAYLOADS:
        try:
            log.wal.submit(append_run(7, len(acked), payload))
        except (LogClosedError, NoSpaceError):
            assert files.left is not None
            break
        # Without power the log fails, or it waits for a file that nobody can make.
        await until(lambda: len(log.durable) > len(acked) or files.left is not None)
        if len(log.durable) == len(acked):
            break
        acked.append(payload)
    await log.wal.close()
    return acked


@pytest.mark.asyncio
async def test_each_log_file_is_named_durably_before_its_first_batch() -> None:
    files = DyingFileSystem(steps=10_000, seed=0)
    ready, named, written = set[str](), set[str](), set[str]()

    def on_step(path: Path, what: str) -> None:
        log_name = path.name.removesuffix(".preparing")
        if path.name == NEWEST_NAME and what == "synced":
            use = read_log_head(files, FOLDER).named
            assert use is not None
            header = decode_file_header(files.content(FOLDER / log_file_name(use.number)))
            assert header is not None
            assert header.salt == use.salt
            named.add(log_file_name(use.number))
        elif log_name.startswith("wal-") and what == "rename":
            ready.add(log_name)
        elif log_name in ready and what == "write":
            assert log_name in named
            written.add(log_name)

    files.on_step = on_step

    assert await store(files) == PAYLOADS
    assert written == named == {log_file_name(number) for number in (1, 2, 3)}
    assert 10_000 - files.steps < STEPS_MAX


@table("steps", range(1, STEPS_MAX))
@pytest.mark.asyncio
async def test_a_power_loss_at_any_step_loses_nothing_and_blames_nothing(steps: int) -> None:
    """Behaviours 39 and 40, over the making of a log, and of its next files while they are named and written."""
    files = DyingFileSystem(steps=steps, seed=steps)
    expected = await store(files)
    left = files.left or files.copy()

    for restart in range(2):
        again = await open_log(left)
        assert again.wal.report.damages == []
        found = [payload for _, payload in again.contents().get(7, [])]
        assert found[: len(expected)] == expected
        await again.append(b"restart %d" % restart)
        expected = [*found, b"restart %d" % restart]
        named = read_log_head(left, FOLDER).named
        assert named is not None
        assert left.exists(FOLDER / log_file_name(named.number))
        await again.wal.close()
