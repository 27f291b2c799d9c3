"""Queries that are saved, and what they match among documents that come later.

A saved query is an event: its name is the key, its text the value, and an event without bytes deletes it. It is matched
with each document that was written after it, and before it was changed or deleted; the times of the events say which
these are. So what matches a document does not depend on when somebody looks, and is the same when it is done again.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

import millrace
from millrace import blocking

from .documents import SAVED, Version
from .index import Index, parsed


class SavedQuery(NamedTuple):
    """A query, and since when and until when it is saved: the times of its event and of the next one of its name.

    Attributes:
        until_us: infinite for one that is still saved.
    """

    name: str
    text: str
    since_us: float
    until_us: float


class Match(NamedTuple):
    """A version of a document that meets a saved query."""

    query: str
    document: str
    position: millrace.EventPosition


def save(client: blocking.Client, name: str, text: str) -> None:
    """Save a query, or change the one of this name; return when it holds for all that is written from then on.

    Raises:
        ValueError: the text is no query.
    """
    parsed(text)
    _write(client, name, text)


def delete(client: blocking.Client, name: str) -> None:
    """Delete a saved query; return when it matches nothing that is written from then on."""
    _write(client, name, "")


def _write(client: blocking.Client, name: str, text: str) -> None:
    with client.writer(SAVED) as writer:
        writer.write(text.encode(), key=name).result()


def saved(client: blocking.Client) -> list[SavedQuery]:
    """Return all queries that were saved until now, with the times in which they were."""
    texts: dict[str, list[tuple[float, str]]] = {}
    with client.reader(SAVED, start=millrace.HEAD, end=millrace.TAIL) as reader:
        for event in reader:
            texts.setdefault(event.key or "", []).append((event.timestamp_us or 0, event.value.decode()))
    return [
        SavedQuery(name, text, since_us, until_us)
        for name, events in texts.items()
        for (since_us, text), (until_us, _) in pairwise([*events, (inf, "")])
        if text
    ]


def matches(versions: Sequence[Version], queries: Sequence[SavedQuery]) -> Iterator[Match]:
    """Yield what queries match among versions of documents.

    The versions become an index in memory, and each query is asked once: so it means what it means in a search, and
    costs little more for a thousand versions than for one.
    """
    # Under numbers, as each version is a document of its own here: a later one does not replace an earlier one.
    numbered = {str(number): each for number, each in enumerate(sorted(versions, key=lambda each: each.position))}
    index = Index(None)
    index.writer().apply(version._replace(document=number) for number, version in numbered.items())
    for query in queries:
        try:
            hits = index.search(query.text, limit=len(numbered))
        except ValueError:
            continue  # written past `save`: what is no query meets nothing, and must not hold up all others
        for hit in hits:
            version = numbered[hit.document]
            if query.since_us <= version.written_us < query.until_us:
                yield Match(query.name, version.document, version.position)
