"""The format of a lease, which shows other servers of the same object store that its owner is alive.

    <prefix>/workers/<worker id>    JSON, at most 64 KiB; replaced by its owner three times in `lease_s`

    format_version  1
    worker_id       UUID of the process, as in the key
    host, folder    of the process
    pid             of the process
    started         time in UTC
    lease_s         how long the object may stay unchanged before its owner counts as dead
    renewals        how often it was replaced: each version has other bytes, and so another tag
    acknowledged    the last batch of its log that was acknowledged then; 0 if the log is in its folder, and in a lease
                    without this field
    epoch           the epoch of the container that its owner has claimed, or is about to claim; 0 before a claim, in a
                    standby, and in a lease without this field
    ended_by        null, or the worker that ended it: worker_id, host, folder

All versions have the same size, padded with spaces, so that a bucket without space accepts a renewal.

A start that finds fewer batches in the log than `acknowledged` detects that acknowledged batches are missing. Missing
batches that were acknowledged after the last renewal are not detected.
"""

import uuid
from dataclasses import dataclass, replace
from typing import Final

from millrace.server.errors import ManifestUnreadableError

from .fields import NUMBER_MAX, Fields, encode_fields
from .manifest import LEASE_S_MAX, LEASE_S_MIN

FORMAT_VERSION: Final = 1
WORKERS_PREFIX: Final = "workers/"
BLOCK_BYTES: Final = 1024
"""The size of a lease is a multiple of this."""
ENDER_BYTES: Final = 512
"""Space reserved in a lease for the worker that ends it: host and folder, unless their names are long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ender:
    """The server that has ended a lease."""

    worker_id: uuid.UUID
    host: str
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A version of a lease; the fields are those of the format."""

    worker_id: uuid.UUID
    host: str
    folder: str
    pid: int
    started: str
    lease_s: float
    renewals: int = 0
    acknowledged: int = 0
    epoch: int = 0
    ended_by: Ender | None = None


def lease_key(worker_id: uuid.UUID) -> str:
    """Return the key of the lease of a worker."""
    return f"{WORKERS_PREFIX}{worker_id}"


def encode_lease(lease: Lease) -> bytes:
    """Encode a lease: equal leases have equal bytes, and all versions of a lease have the same size."""
    largest = replace(lease, renewals=NUMBER_MAX, acknowledged=NUMBER_MAX, epoch=NUMBER_MAX, ended_by=None)
    content = _encode(lease)
    size = max(len(content), len(_encode(largest)) + ENDER_BYTES)
    return content.ljust(-(-size // BLOCK_BYTES) * BLOCK_BYTES)


def _encode(lease: Lease) -> bytes:
    by = lease.ended_by
    return encode_fields(
        {
            "format_version": FORMAT_VERSION,
            "worker_id": str(lease.worker_id),
            "host": lease.host,
            "folder": lease.folder,
            "pid": lease.pid,
            "started": lease.started,
            "lease_s": lease.lease_s,
            "renewals": lease.renewals,
            "acknowledged": lease.acknowledged,
            "epoch": lease.epoch,
            "ended_by": by and {"worker_id": str(by.worker_id), "host": by.host, "folder": by.folder},
        }
    )


def decode_lease(content: bytes, *, place: str = "lease") -> Lease:
    """Decode a lease.

    Args:
        place: the origin of the bytes, for the error.

    Raises:
        ManifestUnreadableError: the bytes are not a lease, or were written by another version.
    """
    try:
        fields = Fields.decode(content, version=FORMAT_VERSION)
        ender = fields.inside_or_none("ended_by")
        lease = Lease(
            worker_id=fields.uuid("worker_id"),
            host=fields.text("host"),
            folder=fields.text("folder"),
            pid=fields.number("pid"),
            started=fields.time("started"),
            lease_s=fields.seconds("lease_s", least=LEASE_S_MIN, most=LEASE_S_MAX),
            renewals=fields.number("renewals"),
            acknowledged=fields.number("acknowledged") if fields.has("acknowledged") else 0,
            epoch=fields.number("epoch") if fields.has("epoch") else 0,
            ended_by=None if ender is None else _ender_of(ender),
        )
        fields.end()
        return lease
    except ValueError as error:
        raise ManifestUnreadableError(f"cannot be read: {error}", subject=place) from error


def _ender_of(fields: Fields) -> Ender:
    ender = Ender(worker_id=fields.uuid("worker_id"), host=fields.text("host"), folder=fields.text("folder"))
    fields.end()
    return ender
