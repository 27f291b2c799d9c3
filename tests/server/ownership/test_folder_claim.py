"""What a folder knows of its claims."""

import json
import uuid
from typing import Any

import pytest

from millrace.server.errors import ConfigurationError, DiskUnavailableError, NoSpaceError
from millrace.server.ownership import FolderClaim, read_folder_claim, write_folder_claim
from millrace.server.ownership.folder_claim import BEGUN_COUNT_MAX, CLAIM_NAME, NO_CLAIM
from tests.support.files import MemoryFileSystem
from tests.support.owners import FOLDER
from tests.support.tables import table

A, B, C = (uuid.UUID(int=number) for number in (1, 2, 3))


@table("claim", [NO_CLAIM, FolderClaim(A), FolderClaim(A, (B, C)), FolderClaim(None, (B,)), FolderClaim(A, (), "copy")])
def test_claims_are_read_as_they_were_written(claim: FolderClaim) -> None:
    files = MemoryFileSystem()
    assert read_folder_claim(files, FOLDER) is None
    write_folder_claim(files, FOLDER, claim)
    assert read_folder_claim(files, FOLDER) == claim
    assert files.list_directory(FOLDER) == [CLAIM_NAME]


def test_claims_that_were_begun_are_known_until_one_is_seen_to_have_succeeded() -> None:
    first = NO_CLAIM.begun(A, over=None)
    assert first == FolderClaim(None, (A,))
    second = first.begun(B, over=None)
    assert [second.knows(each) for each in (A, B, C)] == [True, True, False]
    assert second.begun(C, over=A) == FolderClaim(A, (C,))


def test_what_was_restored_is_known_until_a_claim_of_the_folder_is_seen() -> None:
    begun = FolderClaim(A, (), "copy").begun(B, over=A)
    assert begun == FolderClaim(A, (B,), "copy")
    assert begun.begun(C, over=B) == FolderClaim(B, (C,))


def test_the_oldest_of_too_many_claims_is_forgotten() -> None:
    claim = FolderClaim(A)
    begun = [uuid.UUID(int=100 + number) for number in range(BEGUN_COUNT_MAX + 1)]
    for each in begun:
        claim = claim.begun(each, over=A)
    assert claim == FolderClaim(A, tuple(begun[1:]))
    files = MemoryFileSystem()
    write_folder_claim(files, FOLDER, claim)
    assert read_folder_claim(files, FOLDER) == claim


@pytest.mark.parametrize("seed", range(20))
def test_a_power_loss_leaves_what_was_there_or_what_is_new(seed: int) -> None:
    files = MemoryFileSystem()
    write_folder_claim(files, FOLDER, FolderClaim(A))
    files.fail_syncs()
    with pytest.raises(DiskUnavailableError, match=f"{FOLDER / CLAIM_NAME}: cannot be written"):
        write_folder_claim(files, FOLDER, FolderClaim(B))
    files.crash(seed)
    assert read_folder_claim(files, FOLDER) == FolderClaim(A)
    write_folder_claim(files, FOLDER, FolderClaim(B))
    files.crash(seed)
    assert read_folder_claim(files, FOLDER) == FolderClaim(B)


def test_a_full_disk_is_said_to_be_full() -> None:
    files = MemoryFileSystem(capacity_bytes=10)
    with pytest.raises(NoSpaceError):
        write_folder_claim(files, FOLDER, FolderClaim(A))
    assert read_folder_claim(files, FOLDER) is None


GOOD: dict[str, Any] = {"format_version": 1, "claimed": str(A), "claiming": [], "restored_from": None}


@table(
    ("content", "words"),
    [
        (b"", "not a JSON object"),
        (json.dumps({**GOOD, "format_version": 2}).encode(), "in format 2; this version knows format 1 only"),
        (json.dumps({**GOOD, "claimed": 1}).encode(), "claimed is 1; it must be a UUID"),
        (json.dumps({**GOOD, "claiming": [1]}).encode(), "claiming is .*; it must be a list of at most 64 UUIDs"),
        (json.dumps({**GOOD, "restored_from": 1}).encode(), "restored_from is 1; it must be a text"),
        (json.dumps({**GOOD, "other": 1}).encode(), "other is not a field"),
        (b" " * 70_000, "bytes; it must have at most"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_what_is_wrong(content: bytes, words: str) -> None:
    files = MemoryFileSystem()
    write_folder_claim(files, FOLDER, FolderClaim(A))
    files.replace_content(FOLDER / CLAIM_NAME, content)
    with pytest.raises(ConfigurationError, match=f"{FOLDER / CLAIM_NAME}: does not show whether .*{words}"):
        read_folder_claim(files, FOLDER)
