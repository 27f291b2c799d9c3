"""Who owns the containers of an object store, for people: what the manifests and the leases of their claimants say."""

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

RELEASED: Final = "given back"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerRow:
    """What is said of one container.

    Attributes:
        claimed_by: host and folder.
        since: of the claim, in UTC by the clock of the claimant.
        lease: what the lease of the claimant says at one look: not whether it moves.
        copy: the copy of the checkpoint that counts, empty if there is none yet.
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
    """Return what the manifests of containers say.

    Args:
        containers: None for all from the first one on up to one that has no manifest.

    Raises:
        StorageError: the store does not answer, or does not let us in.
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
    ALIVE = "IT IS STILL RUNNING, and a start here is refused: stop it, remove this folder, and restore again"
    SILENT = "it does not renew its lease: the next start takes over from it"
    REPLACED = "another server has taken over from it: to use this history here, stop that one, and restore again"
    UNKNOWN = "whether it still runs could not be asked: the next start does so"


async def life_of(store: ObjectStore, manifest: Manifest, *, url: str, clock: Clock) -> Life:
    """Return whether the owner of a container lives; that takes as long as its lease may be silent.

    Raises:
        StorageError: the store does not say.
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
