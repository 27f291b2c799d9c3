"""Checks of `cluster.json`, the object that names the server of a prefix, and advice to an operator."""

import uuid
from dataclasses import dataclass

from millrace.server.errors import ManifestUnreadableError, UnsupportedStoreError
from millrace.server.object_store import ObjectStore, StoreUrl, find_owner
from millrace.server.object_store.opening import OWNER_KEY
from millrace.server.ownership import manifest_key, read_manifest, server_of_history


@dataclass(frozen=True, slots=True)
class OwnerProblem:
    """A problem with `cluster.json`.

    Attributes:
        what: the problem, as a continuation of the name of the object.
        advice: what an operator should do.
        is_rebuilt: whether the next start rewrites the object by itself.
    """

    what: str
    advice: str
    is_rebuilt: bool = False

    def __str__(self) -> str:
        return f"{self.what}; {self.advice}"


async def owner_problem(store: ObjectStore, *, url: str) -> OwnerProblem | None:
    """Return the problem with the `cluster.json` of a prefix; None if it is sound, or the prefix has no history.

    Raises:
        StorageError: the store does not answer.
    """
    try:
        found = await find_owner(store, StoreUrl.parse(url))
    except UnsupportedStoreError as error:
        return OwnerProblem(error.message, "use the version of Millrace that wrote it")
    if found.server_id is not None:
        return await _contradiction(store, found.server_id, url=url)
    what = f"is damaged: {found.damage}" if found.tag else "is missing"
    try:
        known = await server_of_history(store, url=url, is_repair=False)
    except ManifestUnreadableError:
        return OwnerProblem(what, f"restore it: this version cannot read {manifest_key(0)}, which names the server")
    except UnsupportedStoreError:
        advice = (
            f"{manifest_key(0)} is missing or damaged, too: restore one of them, or stop all servers of this prefix"
            f" and run `millrace repair --store {url} --accept-loss`"
        )
        return OwnerProblem(what, advice)
    if known is not None:
        return OwnerProblem(what, f"the next start rewrites it, for server {known}", is_rebuilt=True)
    if not found.tag:
        return None
    return OwnerProblem(
        what, "no server can start with it: restore it, or delete it if nothing else is stored below the prefix"
    )


async def _contradiction(store: ObjectStore, server_id: uuid.UUID, *, url: str) -> OwnerProblem | None:
    """Return the problem if the manifest names another server than `cluster.json`."""
    try:
        found = await read_manifest(store, 0, url=url)
    except ManifestUnreadableError:
        return None  # a finding of its own
    if found is None or found.manifest.server_id == server_id:
        return None
    return OwnerProblem(
        f"names server {server_id}, but {manifest_key(0)} names {found.manifest.server_id}",
        f"no server starts with both: put back the right {OWNER_KEY}",
    )
