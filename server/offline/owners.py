"""The owners of the containers of an object store, for people: their manifests and leases."""

from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from enum import Enum
from itertools import count
from typing import Final

from millrace.server.errors import ManifestUnreadableError
from millrace.server.host.clock import Clock
from millrace.server.object_store import ObjectStore
from millrace.server.ownership import Claimant, Manifest, decode_lease, manifest_key, read_manifest
from millrace.server.ownership.others import WatchOutcome, read_lease, watch_lease

RELEASED: Final = "released"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerRow:
    """The ownership of one container.

    Attributes:
        claimed_by: host and folder.
        since: of the claim, in UTC by the clock of the claimant.
        lease: state of the claimant's lease at one read: not whether it is being renewed.
        copy: the current copy of the checkpoint, empty if there is none yet.
        sequence: the last batch of the log that it contains.
        log: where the log is: local, or in the store from which batch on.
        problem: why the manifest cannot be used; then the rest is empty.
    """

    container: int
    epoch: int | None = None
    claimed_by: str = ""
    since: str = ""
    lease: str = ""
    copy: str = ""
    sequence: int | None = None
    log: str = ""
    problem: str = ""

    def columns(self) -> tuple[int | str | None, ...]:
        """Return the values of a row of a table."""
        return astuple(self)


OWNER_COLUMNS: Final = tuple(field.name for field in fields(OwnerRow))


async def owners(store: ObjectStore, *, url: str, containers: Iterable[int] | None = None) -> list[OwnerRow]:
    """Return the content of the manifests of containers.

    Args:
        containers: None for all from the first to the last one with a manifest.

    Raises:
        StorageError: the store does not answer, or denies access.
    """
    rows = []
    for number in count() if containers is None else containers:
        try:
            found = await read_manifest(store, number, url=url)
        except ManifestUnreadableError as error:
            rows.append(OwnerRow(container=number, problem=f"{manifest_key(number)} {error.message}"))
            continue
        if found is not None:
            rows.append(await _row(store, found.manifest))
        elif containers is None:
            break
    return rows


async def _row(store: ObjectStore, manifest: Manifest) -> OwnerRow:
    copy = manifest.checkpoint
    return OwnerRow(
        container=manifest.container,
        epoch=manifest.epoch,
        claimed_by=str(manifest.claimant),
        since=manifest.claimant.since,
        lease=RELEASED if manifest.is_released else await _lease_text(store, manifest.claimant),
        copy=copy.name if copy else "",
        sequence=copy.sequence if copy else None,
        log=f"in the store, from {manifest.log.from_sequence} on" if manifest.log else "local",
    )


async def _lease_text(store: ObjectStore, claimant: Claimant) -> str:
    found = await read_lease(store, claimant)
    if found is None:
        return "none"
    try:
        lease = decode_lease(found.content)
    except ManifestUnreadableError as error:
        return error.message
    if lease.ended_by is not None:
        return f"ended by {lease.ended_by.host} ({lease.ended_by.folder})"
    return f"of {lease.lease_s:g} s, renewed {lease.renewals} times"


class Life(Enum):
    """Whether the last owner of a container still serves it."""

    RELEASED = "it gave the container back in an orderly stop"
    ALIVE = "IT IS STILL RUNNING, so a server cannot start here: stop it, remove this folder, and restore again"
    SILENT = "it does not renew its lease: the next start takes over from it"
    REPLACED = "another server has taken over from it: to use this history here, stop that one, and restore again"
    UNKNOWN = "unknown whether it still runs: the next start checks it"


async def life_of(store: ObjectStore, manifest: Manifest, *, url: str, clock: Clock) -> Life:
    """Return whether the owner of a container is alive; takes up to the length of its lease.

    Raises:
        StorageError: the store does not answer.
    """
    if manifest.owner is None:
        return Life.RELEASED
    watched, _ = await watch_lease(store, manifest.owner, clock=clock)
    if watched is WatchOutcome.GONE:
        found = await read_manifest(store, manifest.container, url=url)
        if found is not None and found.manifest.claim_id != manifest.claim_id:
            return Life.REPLACED
        if found is not None and found.manifest.is_released:
            return Life.RELEASED
    return Life.ALIVE if watched is WatchOutcome.ALIVE else Life.SILENT
