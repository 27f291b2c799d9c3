"""The JSON of `millrace repair`, which is the same for a folder and for a store."""

from typing import Any, Final

KEYS: Final = {"container", "manifest", "loss", "damages", "plan", "accepted"}
LOSS_KEYS: Final = {
    "first_sequence", "last_sequence", "since_us", "since", "size_bytes", "reasons", "store", "text"
}  # fmt: skip
PLAN_KEYS: Final = {"sealed", "holes", "transactions", "writers", "deleted"}


def repaired_container(document: dict[str, Any]) -> dict[str, Any]:
    """Return the one container of a document, after a check of all its keys and of its verdict."""
    assert set(document) == {"path", "ok", "containers"}
    (container,) = document["containers"]
    assert set(container) == KEYS
    if container["loss"] is not None:
        assert set(container["loss"]) == LOSS_KEYS
    if container["plan"] is not None:
        assert set(container["plan"]) == PLAN_KEYS
        assert all(set(part) == {"segment_id", "name", "length"} for part in container["plan"]["sealed"])
        assert all(set(hole) == {"segment_id", "name", "start", "end"} for hole in container["plan"]["holes"])
    assert all(isinstance(damage["text"], str) for damage in container["damages"])
    is_lost = container["manifest"] is not None or container["plan"] is not None
    assert document["ok"] == (container["accepted"] or not is_lost)
    return dict(container)
