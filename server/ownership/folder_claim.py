"""The claims of a container that a folder has made, which show whether its log and checkpoint are the newest.

    containers/0000/claim.json

    format_version  1
    claimed         null, or the UUID of the newest claim of this folder that has succeeded
    claiming        UUIDs of claims begun after that one, oldest first; each may have succeeded
    restored_from   null, or the copy from which the folder was restored under `claimed`; empty if there was none

The file is written before the manifest of the container, durably and whole, so a crash in between leaves a claim that
is known here and may be in the manifest. A claim in the manifest that is not known here was made by another folder: the
data in this folder are superseded.

All begun claims are kept, not only the last one, because a put without an answer may still happen: the folder must not
mistake its own claim for a foreign one.

A restored folder takes over the claim of the previous owner. That owner may still have lived, and have recorded another
copy since: so the copy is kept until a claim of the folder itself is in the manifest.
"""

import uuid
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from millrace.server.errors import ConfigurationError, DiskUnavailableError
from millrace.server.host.files import FileSystem

from .fields import SIZE_BYTES_MAX, Fields, encode_fields

FORMAT_VERSION: Final = 1
CLAIM_NAME: Final = "claim.json"
BEGUN_COUNT_MAX: Final = 64
"""The most claims without an answer that are remembered. A put that arrives later than this many claims is not
recognised: each attempt takes as long as the patience of the store."""


@dataclass(frozen=True, slots=True)
class FolderClaim:
    """The claims of a folder; the fields are those of the format."""

    claimed: uuid.UUID | None
    claiming: tuple[uuid.UUID, ...] = ()
    restored_from: str | None = None

    def knows(self, claim_id: uuid.UUID) -> bool:
        """Return whether this folder has made a claim, or begun to."""
        return claim_id == self.claimed or claim_id in self.claiming

    def begun(self, claim_id: uuid.UUID, *, over: uuid.UUID | None) -> "FolderClaim":
        """Return the claims with a further one that replaces `over`, which is one of them, or None for the first."""
        if over == self.claimed:
            return replace(self, claiming=(*self.claiming, claim_id)[-BEGUN_COUNT_MAX:])
        # Claims begun before can no longer succeed: each would replace a version of the manifest that is gone.
        return FolderClaim(over, (claim_id,))


NO_CLAIM: Final = FolderClaim(None)


def read_folder_claim(files: FileSystem, folder: Path) -> FolderClaim | None:
    """Return the claims of the folder of a container; None if it has never made one. Blocks.

    Raises:
        ConfigurationError: the file is damaged.
        DiskUnavailableError: the disk cannot be read.
    """
    path = folder / CLAIM_NAME
    try:
        if not files.exists(path):
            return None
        with closing(files.open(path, read_only=True)) as file:
            content = file.pread(min(file.size(), SIZE_BYTES_MAX + 1), 0)
    except OSError as error:
        raise DiskUnavailableError(f"cannot be read: {error.strerror or error}", subject=str(path)) from error
    try:
        fields = Fields.decode(content, version=FORMAT_VERSION)
        claim = FolderClaim(
            fields.uuid_or_none("claimed"),
            fields.uuids("claiming", count_max=BEGUN_COUNT_MAX),
            fields.text_or_none("restored_from"),
        )
        fields.end()
        return claim
    except ValueError as error:
        raise ConfigurationError(
            f"does not show whether this folder owns its container: {error}", subject=str(path)
        ) from error


def write_folder_claim(files: FileSystem, folder: Path, claim: FolderClaim) -> None:
    """Write the claims of the folder of a container, which is created if missing; durable on return. Blocks.

    Raises:
        NoSpaceError, DiskUnavailableError: the file has the old claims or the new ones.
    """
    path = folder / CLAIM_NAME
    temporary = folder / f"{CLAIM_NAME}.new"
    content = encode_fields(
        {
            "format_version": FORMAT_VERSION,
            "claimed": None if claim.claimed is None else str(claim.claimed),
            "claiming": [str(each) for each in claim.claiming],
            "restored_from": claim.restored_from,
        }
    )
    try:
        files.make_directories(folder)
        with closing(files.open(temporary, create=True)) as file:
            file.truncate(0)
            file.pwritev([content], 0)
            file.datasync()
        files.rename(temporary, path)
        files.sync_directory(folder)
    except OSError as error:
        raise DiskUnavailableError(f"cannot be written: {error.strerror or error}", subject=str(path)) from error
