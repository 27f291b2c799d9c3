"""The manifest of a container: whose it is, and which copy of its checkpoint counts.

    <prefix>/c0000/manifest     the only object of a container that is ever replaced, and by compare-and-swap only

It is a JSON object of at most 64 KiB with exactly these fields:

    format_version  1
    server_id       UUID of the server whose history is below the prefix
    container       number of the container, as in the key
    epoch           of the newest start; never smaller than in an earlier version of the object
    claim_id        UUID drawn for the newest claim; it is in the folder that has made the claim, too (`folder_claim`)
    changes         how often the object has changed: each version has other bytes, and so another tag
    claimant        who has made the newest claim: worker_id, host, folder, place, since (UTC), lease_s
    is_released     whether the claimant has given the container back in an orderly stop
    checkpoint      null, or the copy that counts: name, sequence, container_epoch, replay_from
    checkpoint_before
                    null, or the copy that counted before it, in the same form: a start uses it if the newest one is
                    missing or damaged. A manifest without this field has none
    log             where acknowledged events are that a copy does not have. {"kind": "local"}: in the claimant's
                    folder; {"kind": "object", "first_epoch": 5, "last_epoch": 7, "from_sequence": 11001,
                    "acknowledged": 12345}: in the store, in batches of these epochs and those between. A start from
                    checkpoint_before needs batch from_sequence and all that follow. Batch `acknowledged`, and all
                    before it, were acknowledged; a manifest without this field does not tell. The kind stays as it was
                    first
    checksum        of all other fields, see `fields`; a manifest without this field has none

An example:

    {
      "format_version": 1,
      "server_id": "11111111-1111-4111-8111-111111111111",
      "container": 0,
      "epoch": 7,
      "claim_id": "22222222-2222-4222-8222-222222222222",
      "changes": 41,
      "claimant": {
        "worker_id": "33333333-3333-4333-8333-333333333333",
        "host": "db1",
        "folder": "/var/lib/millrace",
        "place": "db1:/var/lib/millrace#1048577",
        "since": "2026-01-31T12:00:00+00:00",
        "lease_s": 10.0
      },
      "is_released": false,
      "checkpoint": {
        "name": "checkpoints/00000000000000012345-00000007-00000002",
        "sequence": 12345,
        "container_epoch": 7,
        "replay_from": 12001
      },
      "checkpoint_before": null,
      "log": {
        "kind": "local"
      },
      "checksum": "a243b3fb"
    }

What a crash can leave: the object appears whole or not at all. What another version writes is refused, as is a field
that is not known: no server claims the container then. A manifest that is missing or damaged is rebuilt by the next
claim if the log is in the store (`rebuild`).
"""

import uuid
from dataclasses import asdict, dataclass
from typing import Final, Self

from millrace.server.errors import ManifestDamagedError, ManifestUnreadableError
from millrace.server.wal import LOG_PREFIX

from .fields import Fields, encode_fields, has_checksum
from .ownership import CopyRecord, RemoteLog
from .worker import Worker

FORMAT_VERSION: Final = 1
LEASE_S_MIN: Final = 1.0
LEASE_S_MAX: Final = 600.0
EPOCHS_COUNT_MAX: Final = 1 << 20
"""Of a log: a start looks for each. More claims than this without a copy of the checkpoint between them are absurd."""
_LOCAL_LOG: Final = "local"
_REMOTE_LOG: Final = "object"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimant:
    """A server that has claimed a container.

    Attributes:
        worker_id, host, folder, place: as of `Worker`.
        since: when, in UTC, by its own clock; for people.
        lease_s: how long its lease is silent before it counts as dead.
    """

    worker_id: uuid.UUID
    host: str
    folder: str
    place: str
    since: str
    lease_s: float

    @classmethod
    def of_worker(cls, worker: Worker, *, since: str, lease_s: float) -> Self:
        """Return a worker as a claimant."""
        return cls(
            worker_id=worker.worker_id,
            host=worker.host,
            folder=worker.folder,
            place=worker.place,
            since=since,
            lease_s=lease_s,
        )

    def __str__(self) -> str:
        """Return where it is, for people."""
        return f"{self.host} ({self.folder})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A version of the manifest of a container; the fields are those of the format."""

    server_id: uuid.UUID
    container: int
    epoch: int
    claim_id: uuid.UUID
    changes: int
    claimant: Claimant
    is_released: bool
    checkpoint: CopyRecord | None
    checkpoint_before: CopyRecord | None = None
    log: RemoteLog | None = None
    """None for one in the folder of the claimant."""

    @property
    def owner(self) -> Claimant | None:
        """Who serves the container, or has died in doing so; None after an orderly stop."""
        return None if self.is_released else self.claimant


def manifest_key(container: int) -> str:
    """Return the key of the manifest of a container."""
    return f"c{container:04x}/manifest"


def log_prefix(container: int) -> str:
    """Return what the keys of the log of a container begin with, if it is in the store."""
    return f"c{container:04x}/{LOG_PREFIX}"


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the bytes of a manifest; equal ones have equal bytes."""
    claimant = {**asdict(manifest.claimant), "worker_id": str(manifest.claimant.worker_id)}
    return encode_fields(
        {
            "format_version": FORMAT_VERSION,
            "server_id": str(manifest.server_id),
            "container": manifest.container,
            "epoch": manifest.epoch,
            "claim_id": str(manifest.claim_id),
            "changes": manifest.changes,
            "claimant": claimant,
            "is_released": manifest.is_released,
            "checkpoint": _copy_content(manifest.checkpoint),
            "checkpoint_before": _copy_content(manifest.checkpoint_before),
            "log": _log_content(manifest.log),
        }
    )


def decode_manifest(content: bytes, *, container: int | None = None, place: str = "manifest") -> Manifest:
    """Return the manifest that bytes are.

    Args:
        container: whose it must be; None for any.
        place: where they are from, for the error.

    Raises:
        ManifestDamagedError: they are not what was written; says what is wrong.
        ManifestUnreadableError: they are, and another version wrote them, or they are of another container.
    """
    try:
        manifest = _manifest_of(Fields.decode(content, version=FORMAT_VERSION))
        if container is not None and manifest.container != container:
            raise ValueError(f"container is {manifest.container}; it must be {container}")
        return manifest
    except ValueError as error:
        kind = ManifestUnreadableError if has_checksum(content) else ManifestDamagedError
        raise kind(f"cannot be read: {error}", subject=place) from error


def _manifest_of(fields: Fields) -> Manifest:
    manifest = Manifest(
        server_id=fields.uuid("server_id"),
        container=fields.number("container"),
        epoch=fields.number("epoch"),
        claim_id=fields.uuid("claim_id"),
        changes=fields.number("changes"),
        claimant=_claimant_of(fields.inside("claimant")),
        is_released=fields.flag("is_released"),
        checkpoint=_copy_of(fields, "checkpoint"),
        checkpoint_before=_copy_of(fields, "checkpoint_before") if fields.has("checkpoint_before") else None,
        log=_log_of(fields.inside("log")),
    )
    fields.end()
    return manifest


def _claimant_of(fields: Fields) -> Claimant:
    claimant = Claimant(
        worker_id=fields.uuid("worker_id"),
        host=fields.text("host"),
        folder=fields.text("folder"),
        place=fields.text("place"),
        since=fields.time("since"),
        lease_s=fields.seconds("lease_s", least=LEASE_S_MIN, most=LEASE_S_MAX),
    )
    fields.end()
    return claimant


def _log_content(log: RemoteLog | None) -> dict[str, object]:
    if log is None:
        return {"kind": _LOCAL_LOG}
    return {"kind": _REMOTE_LOG, **asdict(log)}


def _log_of(fields: Fields) -> RemoteLog | None:
    kind = fields.text("kind")
    log: RemoteLog | None = None
    if kind == _REMOTE_LOG:
        first, last = fields.number("first_epoch"), fields.number("last_epoch")
        if not 0 <= last - first < EPOCHS_COUNT_MAX:
            raise ValueError(
                f"log.last_epoch is {last}; it must be from log.first_epoch, {first}, to {EPOCHS_COUNT_MAX - 1} above"
            )
        log = RemoteLog(
            first_epoch=first,
            last_epoch=last,
            from_sequence=fields.number("from_sequence", least=1),
            acknowledged=fields.number("acknowledged") if fields.has("acknowledged") else 0,
        )
    elif kind != _LOCAL_LOG:
        raise ValueError(f"log.kind is {kind!r}; this version knows {_LOCAL_LOG!r} and {_REMOTE_LOG!r} only")
    fields.end()
    return log


def _copy_content(copy: CopyRecord | None) -> dict[str, object] | None:
    return None if copy is None else asdict(copy)


def _copy_of(manifest: Fields, name: str) -> CopyRecord | None:
    fields = manifest.inside_or_none(name)
    if fields is None:
        return None
    copy = CopyRecord(
        name=fields.text("name"),
        sequence=fields.number("sequence"),
        container_epoch=fields.number("container_epoch"),
        replay_from=fields.number("replay_from"),
    )
    fields.end()
    return copy
