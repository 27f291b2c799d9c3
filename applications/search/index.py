"""An index of documents that holds their terms, and where they are, but not their texts.

It is a folder of the library Tantivy. For each document that is there it has the terms of the text, the name of the
document, and the position of the event that has the text: `client.fetch_event` brings that.

The index also holds its *cursor*: which event of each segment it took last, and how many it took in all. Both are one
commit, which a crash leaves whole or leaves out. So what is told to it once more is recognised by its position.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import tantivy

from millrace import EventPosition

from .documents import Version

_HEAP_SIZE_BYTES: Final = 15_000_000
"""The least that Tantivy takes for a thread."""
_PLACE: Final = ("segment", "offset", "index")
_BEFORE_ALL: Final = EventPosition(-1, -1, -1)


class Hit(NamedTuple):
    """A document that was found: its name, where its text is, and how well it fits (BM25)."""

    document: str
    position: EventPosition
    score: float


class Cursor(NamedTuple):
    """How far an index is.

    Attributes:
        events: how many it has taken, deletions and changes included.
        last: the last of them, by segment.
    """

    events: int
    last: Mapping[int, EventPosition]


class Index:
    """An index to be searched.

    Any number of processes may have it open while one writes it. Each call sees the newest commit.

    Args:
        folder: where it is, or is made empty. None: in memory.
    """

    def __init__(self, folder: Path | None) -> None:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        self._index = tantivy.Index(_SCHEMA, None if folder is None else str(folder))

    def search(self, text: str, *, limit: int = 10) -> list[Hit]:
        """Return the documents that meet a query, the best first.

        Args:
            text: words, all of which the document has; `-word` for one that it has not, `"several words"` for a phrase;
                OR, AND and parentheses, as in Tantivy.

        Raises:
            ValueError: the text is no query.
        """
        return self._found(parsed(text), limit=limit)

    def documents(self) -> list[Hit]:
        """Return all documents."""
        return self._found(tantivy.Query.all_query(), limit=None)

    def cursor(self) -> Cursor:
        """Return how far the index is."""
        searcher = self._newest()
        for _, address in searcher.search(tantivy.Query.term_query(_SCHEMA, "is_cursor", True), 1).hits:
            return _cursor_of(searcher.doc(address)["cursor"][0])
        return Cursor(0, {})

    def writer(self) -> "IndexWriter":
        """Return the one that writes it.

        Raises:
            ValueError: there is another one, here or in another process.
        """
        return IndexWriter(self._index.writer(heap_size=_HEAP_SIZE_BYTES, num_threads=1), self.cursor())

    def _newest(self) -> tantivy.Searcher:
        self._index.reload()
        return self._index.searcher()

    def _found(self, query: tantivy.Query, *, limit: int | None) -> list[Hit]:
        searcher = self._newest()
        if not searcher.num_docs:
            return []
        hits = searcher.search(query, limit or searcher.num_docs).hits
        found = ((score, searcher.doc(address)) for score, address in hits)
        return [
            Hit(name, EventPosition(*(one[field][0] for field in _PLACE)), score)
            for score, one in found
            if (name := one.get_first("document")) is not None  # the cursor has none
        ]


class IndexWriter:
    """Keeps an index up to date."""

    def __init__(self, writer: tantivy.IndexWriter, cursor: Cursor) -> None:
        self._writer = writer
        self._cursor = cursor

    def apply(self, versions: Iterable[Version]) -> int:
        """Take versions of documents that the index did not take yet; return how many there were.

        They and the cursor become visible and durable together. Where this is interrupted, nothing has changed, and the
        same versions are given again.

        Args:
            versions: those of a segment in their order.
        """
        last = dict(self._cursor.last)
        count = 0
        for version in versions:
            if version.position <= last.get(version.position.segment_id, _BEFORE_ALL):
                continue
            last[version.position.segment_id] = version.position
            count += 1
            self._writer.delete_documents_by_term("document", version.document)
            if version.text:
                self._writer.add_document(_entry(version))
        if count:
            cursor = Cursor(self._cursor.events + count, last)
            self._writer.delete_documents_by_term("is_cursor", True)
            self._writer.add_document(tantivy.Document(is_cursor=True, cursor=_cursor_bytes(cursor)))
            self._writer.commit()
            self._cursor = cursor
        return count


def parsed(text: str) -> tantivy.Query:
    """Return what a query asks for.

    Raises:
        ValueError: the text is no query.
    """
    if not text.strip():
        raise ValueError("an empty text is no query")
    return _PARSER.parse_query(text, ["text"], conjunction_by_default=True)


def _schema() -> tantivy.Schema:
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("document", stored=True, tokenizer_name="raw", index_option="basic")
    builder.add_text_field("text")  # its terms; it is not stored
    for name in _PLACE:
        builder.add_unsigned_field(name, stored=True)
    builder.add_boolean_field("is_cursor", indexed=True)
    builder.add_bytes_field("cursor", stored=True)
    return builder.build()


def _entry(version: Version) -> tantivy.Document:
    place: dict[str, Any] = dict(zip(_PLACE, version.position, strict=True))
    return tantivy.Document(document=version.document, text=version.text, **place)


def _cursor_bytes(cursor: Cursor) -> bytes:
    return json.dumps({"events": cursor.events, "last": list(cursor.last.values())}).encode()


def _cursor_of(data: bytes) -> Cursor:
    told = json.loads(data)
    last = (EventPosition(*place) for place in told["last"])
    return Cursor(told["events"], {place.segment_id: place for place in last})


_SCHEMA: Final = _schema()
_PARSER: Final = tantivy.Index(_SCHEMA)
