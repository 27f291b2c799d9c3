"""What the index and the matches have to be, computed without an index, from the streams alone.

It knows the part of the language of queries that the program uses: words, phrases, and those that must not be there.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import millrace
from millrace import EventPosition, blocking

from .documents import DOCUMENTS, SAVED, Version, version_of
from .index import Index
from .saved import Match

_WORD: Final = re.compile(r"[^\W_]+")
_PART: Final = re.compile(r'(-?)(?:"([^"]*)"|(\S+))')
_WORD_LENGTH_MAX: Final = 39
"""Longer ones are in no index of Tantivy."""


class Expected(NamedTuple):
    """What follows from the streams.

    Attributes:
        events: how many there are of documents.
        documents: the newest version of those that are not deleted.
        matches: each is expected once.
    """

    events: int
    documents: dict[str, Version]
    matches: Counter[Match]


def words(text: str) -> str:
    """Return the words of a text in small letters, each between spaces."""
    found = (word.lower() for word in _WORD.findall(text) if len(word) <= _WORD_LENGTH_MAX)
    return f" {' '.join(found)} "


def meets(text_words: str, query: str) -> bool:
    """Return whether the words of a text are those that a query asks for."""
    return all((words(phrase or word) in text_words) != bool(minus) for minus, phrase, word in _PART.findall(query))


def expected(client: blocking.Client) -> Expected:
    """Compute what is expected of all that is in the streams now."""
    with client.reader([DOCUMENTS, SAVED], start=millrace.HEAD, end=millrace.TAIL) as reader:
        events = [(event, reader.stream_of(event)) for event in reader]
    versions = [version_of(event) for event, stream in events if stream == DOCUMENTS]
    newest = {version.document: version for version in versions}
    matches: Counter[Match] = Counter()
    queries: dict[str, str] = {}
    # As it happened: by time, and of what has the same time the queries first.
    for event, stream in sorted(events, key=lambda each: (each[0].timestamp_us, each[1] == DOCUMENTS)):
        if stream == SAVED:
            queries[event.key or ""] = event.value.decode()
        elif event.value:
            text = words(event.value.decode())
            matches.update(
                Match(name, event.key or "", event.position)
                for name, query in queries.items()
                if query and meets(text, query)
            )
    return Expected(len(versions), {name: each for name, each in newest.items() if each.text}, matches)


def found(documents: Mapping[str, Version], query: str) -> dict[str, EventPosition]:
    """Return the documents that meet a query, and where they are."""
    return {name: each.position for name, each in documents.items() if meets(words(each.text), query)}


def check(right: Expected, *, index: Index, told: Counter[Match], queries: Sequence[str]) -> None:
    """Compare an index, what it finds for queries, and the matches that were told, with what is expected.

    Raises:
        SystemExit: something differs.
    """
    if (taken := index.cursor().events) != right.events:
        raise SystemExit(f"the index has taken {taken:,} events of {right.events:,}")
    hits = Counter((hit.document, hit.position) for hit in index.documents())
    if hits != Counter((name, each.position) for name, each in right.documents.items()):
        raise SystemExit(
            f"the {hits.total():,} documents of the index are not the {len(right.documents):,} of the stream"
        )
    for query in queries:
        positions = {hit.document: hit.position for hit in index.search(query, limit=len(hits) or 1)}
        if positions != found(right.documents, query):
            raise SystemExit(f"{query}: {len(positions)} documents are found, and not those that meet it")
    if wrong := (told - right.matches) | (right.matches - told):
        raise SystemExit(f"{wrong.total()} matches are missing, repeated or wrong, such as {next(iter(wrong))}")
