"""The bytes of a lease."""

import json
import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.server.errors import ManifestUnreadableError
from millrace.server.ownership.lease_format import BLOCK_BYTES, Ender, Lease, decode_lease, encode_lease, lease_key
from tests.support.clock import ManualClock
from tests.support.object_store import MemoryObjectStore
from tests.support.owners import Process
from tests.support.ownership import with_checksum

LEASES = st.builds(
    Lease,
    worker_id=st.uuids(),
    host=st.text(max_size=20),
    folder=st.text(max_size=20),
    pid=st.integers(0, 2**31),
    started=st.just("2026-01-31T12:00:00+00:00"),
    lease_s=st.floats(1.0, 600.0),
    renewals=st.integers(0, 2**63 - 1),
    acknowledged=st.integers(0, 2**63 - 1),
    epoch=st.integers(0, 2**63 - 1),
    ended_by=st.none() | st.builds(Ender, worker_id=st.uuids(), host=st.text(max_size=20), folder=st.text(max_size=20)),
)


@given(LEASES)
def test_a_lease_is_read_as_it_was_written(lease: Lease) -> None:
    assert decode_lease(encode_lease(lease)) == lease


def test_a_lease_of_an_older_version_has_no_epoch() -> None:
    """The bytes of commit 1fdba9d: neither a checksum, nor the last batch, nor the epoch of a claim."""
    owner = uuid.UUID(int=5)
    content = json.dumps(
        {
            "format_version": 1,
            "worker_id": str(owner),
            "host": "one",
            "folder": "/data",
            "pid": 7,
            "started": "2026-01-31T12:00:00+00:00",
            "lease_s": 10.0,
            "renewals": 3,
            "ended_by": None,
        }
    )
    expected = Lease(
        worker_id=owner,
        host="one",
        folder="/data",
        pid=7,
        started="2026-01-31T12:00:00+00:00",
        lease_s=10.0,
        renewals=3,
    )
    assert (expected.acknowledged, expected.epoch) == (0, 0)
    assert decode_lease(content.encode()) == expected


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b'"pid": 1', b'"pid": -1', "pid is -1; it must be a whole number"),
        (b'"renewals": 0', b'"other": 0', "renewals is missing"),
        (b'"renewals": 0', b'"renewals": 0, "other": 0', "other is not a field"),
        (b'"lease_s": 12.0', b'"lease_s": 0', "lease_s is 0; it must be a number of seconds from 1 to 600"),
        (b'"ended_by": null', b'"ended_by": {}', r"ended_by\.worker_id is missing"),
        (b'"format_version": 1', b'"format_version": 2', "it is in format 2; this version knows format 1 only"),
        (b"{", b"", "it is not a JSON object"),
    ],
)
@pytest.mark.asyncio
async def test_what_is_wrong_with_a_lease_is_named(old: bytes, new: bytes, words: str) -> None:
    memory = MemoryObjectStore()
    process = Process(memory, ManualClock())
    await process.lease.start()
    content = memory.objects[lease_key(process.lease.worker.worker_id)]
    assert old in content
    with pytest.raises(ManifestUnreadableError, match=f"^workers/1: cannot be read: {words}"):
        decode_lease(with_checksum(content.replace(old, new, 1)), place="workers/1")


@given(LEASES)
def test_all_versions_of_a_lease_have_the_same_size(lease: Lease) -> None:
    """Behaviour 103: a bucket that is full takes an object in the place of one that is as large."""
    ender = Ender(worker_id=uuid.UUID(int=1), host="db2", folder="/var/lib/millrace")
    first = replace(lease, renewals=0, acknowledged=0, ended_by=None)
    versions = [first, replace(lease, ended_by=None), replace(lease, ended_by=ender)]
    assert {len(encode_lease(each)) for each in versions} == {len(encode_lease(first))}
    assert len(encode_lease(first)) % BLOCK_BYTES == 0


@pytest.mark.asyncio
async def test_a_lease_without_a_field_that_is_new_is_read() -> None:
    """As of a server that was killed before this one was installed."""
    memory = MemoryObjectStore()
    process = await Process(memory, ManualClock()).start()
    content = memory.objects[lease_key(process.lease.worker.worker_id)]
    known = json.loads(content)
    del known["acknowledged"], known["checksum"]
    before = json.dumps(known).encode()
    assert len(before) < len(content)
    assert decode_lease(before) == decode_lease(content)
    await process.crash()
