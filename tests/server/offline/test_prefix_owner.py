"""A `cluster.json` that is missing, damaged, or names the wrong server: what `verify` and `doctor` advise."""

import uuid

import pytest

from millrace.server.object_store import StoreUrl, claim
from millrace.server.object_store.opening import OWNER_KEY
from millrace.server.offline.prefix_owner import OwnerProblem, owner_problem
from tests.support.clock import ManualClock
from tests.support.object_store import MemoryObjectStore
from tests.support.owners import SERVER_ID, URL, Process
from tests.support.ownership import with_checksum

pytestmark = pytest.mark.asyncio

MANIFEST = "c0000/manifest"


async def make(*, has_manifest: bool = True, has_log: bool = True) -> MemoryObjectStore:
    """Return the store of a server, perhaps with the manifest of its container and an object of its log."""
    memory = MemoryObjectStore()
    await claim(memory, StoreUrl.parse(URL), server_id=SERVER_ID, is_new=True)
    if has_manifest:
        process = await Process(memory, ManualClock()).start()
        await process.claim(has_remote_log=has_log)
        await process.crash()
    if has_log:
        memory.objects["c0000/log/00000001/0000000000000001"] = bytes(100)
    return memory


def damage(memory: MemoryObjectStore, how: str) -> None:
    content = memory.objects[OWNER_KEY]
    if how == "missing":
        del memory.objects[OWNER_KEY]
        return
    memory.objects[OWNER_KEY] = {
        "flipped": content.replace(b"0000-", b"0001-", 1),
        "truncated": content[: len(content) // 2],
        "not JSON": b"nothing of ours",
        "nested": b"[" * 100_000,
    }[how]


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("flipped", "is damaged: its checksum is "),
        ("truncated", "is damaged: it must be a JSON object"),
        ("not JSON", "is damaged: it must be a JSON object"),
        ("nested", "is damaged: it must be a JSON object"),
        ("missing", "is missing"),
    ],
)
async def test_the_fault_is_named_with_what_to_do(how: str, what: str) -> None:
    """Behaviour 101: the next start writes it again, unless the manifest is missing, too."""
    memory = await make()
    assert await owner_problem(memory, url=URL) is None

    damage(memory, how)
    found = await owner_problem(memory, url=URL)
    assert found is not None
    assert found.what.startswith(what)
    assert (found.is_rebuilt, found.advice) == (True, f"the next start rewrites it, for server {SERVER_ID}")

    del memory.objects[MANIFEST]
    found = await owner_problem(memory, url=URL)
    assert found is not None
    assert found.what.startswith(what)
    assert not found.is_rebuilt
    assert f"`millrace repair --store {URL} --accept-loss`" in found.advice


async def test_without_a_history_only_a_damaged_one_is_a_fault() -> None:
    memory = await make(has_manifest=False, has_log=False)
    damage(memory, "truncated")
    found = await owner_problem(memory, url=URL)
    assert found is not None
    assert "delete it if nothing else is stored below the prefix" in str(found)
    damage(memory, "missing")
    assert await owner_problem(memory, url=URL) is None


async def test_the_server_of_another_history_is_named() -> None:
    memory = await make()
    other = uuid.UUID(int=7)
    del memory.objects[OWNER_KEY]
    await claim(memory, StoreUrl.parse(URL), server_id=other, is_new=True)
    assert await owner_problem(memory, url=URL) == OwnerProblem(
        f"names server {other}, but {MANIFEST} names {SERVER_ID}",
        "no server starts with both: put back the right cluster.json",
    )


@pytest.mark.parametrize("key", [OWNER_KEY, MANIFEST])
async def test_an_object_of_another_version_is_left_to_that(key: str) -> None:
    memory = await make()
    content = memory.objects[key].replace(b'"format_version": 1', b'"format_version": 2')
    memory.objects[key] = content if key == OWNER_KEY else with_checksum(content)
    if key == MANIFEST:
        damage(memory, "truncated")
    found = await owner_problem(memory, url=URL)
    assert found is not None
    assert "version" in found.advice
