"""Object stores (S3, Google Cloud, Azure) for the history and, if configured, the log of a server."""

from .monitor import StoreMonitor
from .opening import claim, find_owner, open_store
from .options import ObjectStoreOptions
from .probe import Honesty, probe
from .reserve import Reserve
from .retrying import RetryingStore
from .room import PatientPuts, when_there_is_room
from .store import ObjectInfo, ObjectStore, StoredObject
from .url import StoreUrl

__all__ = [
    "Honesty",
    "ObjectInfo",
    "ObjectStore",
    "ObjectStoreOptions",
    "PatientPuts",
    "Reserve",
    "RetryingStore",
    "StoreMonitor",
    "StoreUrl",
    "StoredObject",
    "claim",
    "find_owner",
    "open_store",
    "probe",
    "when_there_is_room",
]
