import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from millrace.server.errors import LogClosedError, NoSpaceError
from millrace.server.host.metrics import Metrics
from millrace.server.host.room import DiskRoom
from millrace.server.wal import WalOptions
from millrace.server.wal.batch import FileHeader, decode_file_header
from millrace.server.wal.logfile import LogFile
from millrace.server.wal.pool import FilePool
from tests.support.files import MemoryFileSystem
from tests.support.waiting import PATIENCE_S
from tests.support.wal import FOLDER, OWNER, SMALL


@pytest.fixture
def files() -> MemoryFileSystem:
    files = MemoryFileSystem()
    files.make_directories(FOLDER)
    return files


@pytest.fixture
def pools() -> Iterator[list[FilePool]]:
    """Pools to be stopped in the end."""
    made: list[FilePool] = []
    yield made
    for pool in made:
        pool.stop()
        pool.close()


def make_pool(
    files: MemoryFileSystem, pools: list[FilePool], options: WalOptions = SMALL, *, room: DiskRoom | None = None
) -> FilePool:
    pool = FilePool(files, FOLDER, options, owner=OWNER, metrics=Metrics(), room=room)
    pool.sequence_floor = 41
    pools.append(pool)
    return pool


def first_file(pool: FilePool) -> LogFile:
    return pool.take_over([], continues=True, needed=0, next_number=1)


def until(pool: FilePool, *, ready: int) -> None:
    """Wait until so many spares are ready."""
    wait_for(pool, lambda: pool.ready_count == ready)


def wait_for(pool: FilePool, condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, woken by the pool itself."""
    with pool._changed:
        assert pool._changed.wait_for(condition, timeout=PATIENCE_S)


def header_of(files: MemoryFileSystem, file: LogFile) -> FileHeader | None:
    return decode_file_header(files.content(file.path))


def test_a_file_is_whole_and_durable_before_it_has_its_name(files: MemoryFileSystem, pools: list[FilePool]) -> None:
    file = first_file(make_pool(files, pools))
    files.crash(seed=0)

    assert files.list_directory(FOLDER) == ["wal-0000000000000001.log"]
    assert header_of(files, file) == FileHeader(
        recycled=False,
        container_id=OWNER.container_id,
        server_id=OWNER.server_id,
        file_number=1,
        salt=file.salt,
        sequence_floor=41,
    )
    content = files.content(file.path)
    assert len(content) == SMALL.file_size_bytes
    assert content[64:].count(0) == len(content) - 64


def test_a_file_that_is_not_filled_reads_as_zeros_of_its_whole_size(
    files: MemoryFileSystem, pools: list[FilePool]
) -> None:
    file = first_file(make_pool(files, pools, replace(SMALL, zero_fill=False)))
    files.crash(seed=0)

    content = files.content(file.path)
    assert len(content) == SMALL.file_size_bytes
    assert content[64:].count(0) == len(content) - 64
    assert files.write_count == 1  # the header


def test_spares_are_made_ahead_and_taken_in_order(files: MemoryFileSystem, pools: list[FilePool]) -> None:
    pool = make_pool(files, pools, replace(SMALL, spare_files=2))
    pool.start()
    until(pool, ready=2)

    taken = [pool.take(), pool.take(), pool.take()]

    assert [file.number for file in taken] == [1, 2, 3]
    assert len({file.salt for file in taken}) == 3


def test_at_the_bound_nothing_more_is_made_until_something_is_recycled(
    files: MemoryFileSystem, pools: list[FilePool]
) -> None:
    pool = make_pool(files, pools)
    pool.start()
    for sequence in range(1, SMALL.files_max + 1):
        file = pool.take()
        file.last_sequence = sequence
        pool.put_full(file)
    assert pool.unused_files(SMALL.files_max) == 0
    assert pool.problem == "the log has reached its limit of 4 files"

    pool.recycle(0)
    assert pool.full_count == 4
    pool.recycle(2)
    until(pool, ready=2)

    assert pool.full_count == 2
    recycled = pool.take()
    header = header_of(files, recycled)
    assert header is not None
    assert (header.file_number, header.recycled, header.salt) == (5, True, recycled.salt)
    assert files.list_directory(FOLDER) == [f"wal-{number:016d}.log" for number in (3, 4, 5, 6)]


def test_more_recycled_files_than_are_kept_are_removed(files: MemoryFileSystem, pools: list[FilePool]) -> None:
    pool = make_pool(files, pools, replace(SMALL, spare_files_max=1))
    pool.start()
    for sequence in range(1, 4):
        file = pool.take()
        file.last_sequence = sequence
        pool.put_full(file)
    until(pool, ready=1)
    assert pool.file_count == 4

    pool.recycle(3)
    wait_for(pool, lambda: pool.file_count == 1)

    assert len(files.list_directory(FOLDER)) == 1


@pytest.mark.parametrize("is_recycling", [False, True])
def test_a_file_whose_sync_fails_is_abandoned_and_another_tried(
    files: MemoryFileSystem, pools: list[FilePool], is_recycling: bool
) -> None:
    """Behaviour 43: no sync is repeated on a file on which one failed."""
    pool = make_pool(files, pools)
    if is_recycling:
        pool.start()
        used = pool.take()
        used.last_sequence = 1
        pool.put_full(used)
        until(pool, ready=1)
    files.fail_syncs()
    if is_recycling:
        pool.recycle(1)
    else:
        pool.start()
        until(pool, ready=1)
    wait_for(pool, lambda: pool.full_count == 0 and pool.problem is None)
    wait_for(pool, lambda: pool.file_count == pool.ready_count)

    assert len(files.list_directory(FOLDER)) == pool.file_count == 1
    assert pool.take().number == 2


def test_a_full_disk_is_asked_again_until_it_has_room(files: MemoryFileSystem, pools: list[FilePool]) -> None:
    """Behaviour 44."""
    files.capacity_bytes = SMALL.file_size_bytes - 1
    pool = make_pool(files, pools)
    with pytest.raises(NoSpaceError):
        first_file(pool)
    pool.start()
    wait_for(pool, lambda: "no space" in (pool.problem or ""))
    assert pool.unused_files(0) == 0
    assert files.list_directory(FOLDER) == []

    files.capacity_bytes = SMALL.file_size_bytes
    until(pool, ready=1)

    assert pool.unused_files(0) == 1
    assert pool.problem == "the disk has no space for another log file"
    files.capacity_bytes = 3 * SMALL.file_size_bytes
    wait_for(pool, lambda: pool.unused_files(0) == 3)


def test_on_a_shared_volume_files_beyond_two_leave_as_much_for_tier_2(
    files: MemoryFileSystem, pools: list[FilePool]
) -> None:
    """Behaviour 103: a log that has grown does not keep the room that tier 2 lacks."""
    size = SMALL.file_size_bytes
    files.capacity_bytes = 7 * size
    pool = make_pool(files, pools, replace(SMALL, files_max=8), room=DiskRoom(files, has_tier2=True))
    pool.start()
    until(pool, ready=1)
    assert pool.unused_files(0) == 1 + 1 + 2
    for sequence in range(1, 4):
        file = pool.take()
        file.last_sequence = sequence
        pool.put_full(file)
    until(pool, ready=1)
    assert pool.fullness == 3 / 4
    files.capacity_bytes = 4 * size

    pool.recycle(3)
    wait_for(pool, lambda: pool.file_count == 3)

    assert files.free_bytes(FOLDER) == size
    assert pool.fullness == 0.0


def test_what_was_counted_as_unused_stays_counted_until_its_taking_is_known(
    files: MemoryFileSystem, pools: list[FilePool]
) -> None:
    pool = make_pool(files, pools)
    pool.start()
    until(pool, ready=1)
    assert pool.unused_files(0) == 4

    pool.take()

    assert pool.unused_files(0) == 4
    assert pool.unused_files(1) == 3


@pytest.mark.parametrize("how", ["drain", "stop"])
def test_who_waits_for_a_file_that_cannot_be_made_is_released(
    files: MemoryFileSystem, pools: list[FilePool], how: str
) -> None:
    files.capacity_bytes = 0
    pool = make_pool(files, pools)
    pool.start()
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            pool.take()
        except LogClosedError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    if how == "drain":
        pool.drain()
    else:
        pool.stop()
    thread.join(10)

    assert len(errors) == 1


def test_while_draining_files_that_can_be_made_are_made(files: MemoryFileSystem, pools: list[FilePool]) -> None:
    pool = make_pool(files, pools)
    pool.start()
    pool.drain()

    assert [pool.take().number for _ in range(4)] == [1, 2, 3, 4]
    with pytest.raises(LogClosedError):
        pool.take()
