"""Objects that may be missing."""

from millrace.server.errors import ObjectNotFoundError
from millrace.server.object_store import ObjectStore, StoredObject


async def read_object(store: ObjectStore, key: str) -> StoredObject | None:
    """Return an object, None if it is missing."""
    try:
        return await store.get(key)
    except ObjectNotFoundError:
        return None
