"""Objects of a cloud: what the history of a server is kept in, where its disk is not trusted with it."""

from .store import ObjectInfo, ObjectStore, StoredObject

__all__ = ["ObjectInfo", "ObjectStore", "StoredObject"]
