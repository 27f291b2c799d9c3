"""The bytes of a manifest."""

import json
import textwrap
import uuid
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.server.errors import ManifestDamagedError, ManifestUnreadableError
from millrace.server.ownership import (
    Claimant,
    CopyRecord,
    Manifest,
    RemoteLog,
    decode_manifest,
    manifest,
    manifest_key,
)
from millrace.server.ownership.manifest import EPOCHS_COUNT_MAX, encode_manifest
from tests.support.owners import worker
from tests.support.ownership import with_checksum
from tests.support.tables import table

NUMBERS = st.integers(0, 2**63 - 1)
TEXTS = st.text(max_size=50)
CLAIMANTS = st.builds(
    Claimant,
    worker_id=st.uuids(),
    host=TEXTS,
    folder=TEXTS,
    place=TEXTS,
    since=st.just("2026-01-31T12:00:00+00:00"),
    lease_s=st.floats(1.0, 600.0),
)
COPIES = st.builds(CopyRecord, name=TEXTS, sequence=NUMBERS, container_epoch=NUMBERS, replay_from=NUMBERS)
LOGS = st.builds(
    lambda first, count, sequence, acknowledged: RemoteLog(
        first_epoch=first, last_epoch=first + count - 1, from_sequence=sequence, acknowledged=acknowledged
    ),
    st.integers(0, 2**63 - 1 - EPOCHS_COUNT_MAX),
    st.integers(1, EPOCHS_COUNT_MAX),
    st.integers(1, 2**63 - 1),
    NUMBERS,
)
MANIFESTS = st.builds(
    Manifest,
    server_id=st.uuids(),
    container=NUMBERS,
    epoch=NUMBERS,
    claim_id=st.uuids(),
    changes=NUMBERS,
    claimant=CLAIMANTS,
    is_released=st.booleans(),
    checkpoint=st.none() | COPIES,
    checkpoint_before=st.none() | COPIES,
    log=st.none() | LOGS,
)
ONE = Manifest(
    server_id=uuid.UUID(int=1),
    container=0,
    epoch=7,
    claim_id=uuid.UUID(int=2),
    changes=3,
    claimant=Claimant.of_worker(worker("one"), since="2026-01-31T12:00:00+00:00", lease_s=10.0),
    is_released=False,
    checkpoint=CopyRecord(name="copy", sequence=5, container_epoch=7, replay_from=4),
)

REMOTE = {"kind": "object", "first_epoch": 2, "last_epoch": 7, "from_sequence": 4}


def example() -> bytes:
    """Return the example of the documentation."""
    text = (manifest.__doc__ or "").partition("An example:\n\n")[2].partition("\n\nWhat")[0]
    return textwrap.dedent(text).encode() + b"\n"


def test_the_example_of_the_documentation_is_what_is_written() -> None:
    known = decode_manifest(example())
    assert (known.epoch, known.changes, known.owner) == (7, 41, known.claimant)
    assert encode_manifest(known) == example()


def test_a_manifest_without_the_fields_that_are_new_is_read() -> None:
    """As the version before wrote it."""
    known = replace(ONE, log=RemoteLog(first_epoch=2, last_epoch=7, from_sequence=4))
    content = json.loads(encode_manifest(known))
    del content["checkpoint_before"], content["log"]["acknowledged"], content["checksum"]
    assert decode_manifest(json.dumps(content).encode()) == known


@given(MANIFESTS)
def test_a_manifest_is_read_as_it_was_written(known: Manifest) -> None:
    assert decode_manifest(encode_manifest(known)) == known


@given(st.data())
def test_damaged_bytes_are_refused(data: st.DataObject) -> None:
    """Unless the same manifest is read from them: one white space may stand for another."""
    content = bytearray(example())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 2))]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        known = decode_manifest(bytes(content))
    except ManifestDamagedError:
        return
    assert known == decode_manifest(example())


@table(
    ("path", "value", "words"),
    [
        (["format_version"], 2, "it is in format 2; this version knows format 1 only"),
        (["server_id"], "x", "server_id is 'x'; it must be a UUID"),
        (["container"], 1, "container is 1; it must be 0"),
        (["epoch"], -1, "epoch is -1; it must be a whole number"),
        (["claim_id"], None, "claim_id is None; it must be a UUID"),
        (["changes"], "1", "changes is '1'; it must be a whole number"),
        (["claimant"], None, "claimant is None; it must be an object"),
        (["claimant", "lease_s"], 0.5, r"claimant\.lease_s is 0\.5; it must be a number of seconds from 1 to 600"),
        (["claimant", "other"], 1, r"claimant\.other is not a field"),
        (["is_released"], 0, "is_released is 0; it must be true or false"),
        (["checkpoint"], [], r"checkpoint is \[\]; it must be an object"),
        (["checkpoint", "sequence"], 1.5, r"checkpoint\.sequence is 1\.5; it must be a whole number"),
        (["checkpoint", "other"], 1, r"checkpoint\.other is not a field"),
        (["log", "kind"], "other", r"log\.kind is 'other'; this version knows 'local' and 'object' only"),
        (["log", "kind"], "object", r"log\.first_epoch is missing"),
        (["log"], {**REMOTE, "first_epoch": True}, r"log\.first_epoch is True; it must be a whole number"),
        (
            ["log"],
            {**REMOTE, "last_epoch": 1},
            r"log\.last_epoch is 1; it must be from log\.first_epoch, 2, to 1048575",
        ),
        (["log"], {**REMOTE, "last_epoch": 2 + EPOCHS_COUNT_MAX}, r"log\.last_epoch is 1048578; it must be from"),
        (["log"], {**REMOTE, "from_sequence": 0}, r"log\.from_sequence is 0; it must be"),
        (["log", "other"], 1, r"log\.other is not a field"),
        (["other"], 1, "other is not a field"),
    ],
)
def test_what_is_wrong_is_named(path: list[str], value: Any, words: str) -> None:
    content = json.loads(example())
    inner = content
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    with pytest.raises(ManifestUnreadableError, match=f"^s3://b/c0000/manifest: cannot be read: {words}"):
        decode_manifest(with_checksum(json.dumps(content).encode()), container=0, place="s3://b/c0000/manifest")


def test_the_largest_numbers_of_a_log_fit() -> None:
    first = 2**31
    log = RemoteLog(first_epoch=first, last_epoch=first + EPOCHS_COUNT_MAX - 1, from_sequence=2**63 - 1)
    assert decode_manifest(encode_manifest(replace(ONE, log=log))).log == log


def test_one_that_was_released_has_no_owner_and_still_says_whose_it_was() -> None:
    assert ONE.owner == ONE.claimant
    released = replace(ONE, is_released=True)
    assert released.owner is None
    assert decode_manifest(encode_manifest(released)).claimant.host == "one"


def test_the_key_has_the_number_of_the_container() -> None:
    assert manifest_key(0) == "c0000/manifest"
    assert manifest_key(0x1234) == "c1234/manifest"
