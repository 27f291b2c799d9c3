"""What two chained queries must have made of what was written: each fact once, and those of a key in their order."""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

SHOWN_COUNT_MAX = 5


class Fact(NamedTuple):
    """An event, as it is compared.

    Attributes:
        key: its routing key; those without one have no order.
        content: of its value.
    """

    key: str | None
    content: Hashable


def findings(name: str, found: Sequence[Fact], *, wanted: Sequence[Fact]) -> list[str]:
    """Return what is wrong with the facts that were found in a stream, in the order of reading; empty if nothing is.

    Args:
        wanted: each of these once, in this order for each key.
    """
    lost, surplus = Counter(wanted) - Counter(found), Counter(found) - Counter(wanted)
    told = [f"{name}: {_shown(facts)} {what}" for what, facts in (("lost", lost), ("too often", surplus)) if facts]
    if not told:
        of_found, of_wanted = _by_key(found), _by_key(wanted)
        told += [f"{name}: another order of key {key}" for key in of_wanted if of_found[key] != of_wanted[key]]
    return told


def _shown(facts: Counter[Fact]) -> str:
    some = ", ".join(f"{fact.key}: {fact.content}" for fact in list(facts)[:SHOWN_COUNT_MAX])
    return f"{facts.total()} ({some})"


def _by_key(facts: Iterable[Fact]) -> dict[str, list[Hashable]]:
    contents: dict[str, list[Hashable]] = {}
    for fact in facts:
        if fact.key is not None:
            contents.setdefault(fact.key, []).append(fact.content)
    return contents
