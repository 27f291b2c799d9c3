"""What is searched: the documentation of Python's standard library, as if it were written, changed and deleted now.

A document has a name, which is the key of its events: `asyncio.tasks.wait_for`. Its newest event is its text. An event
without bytes deletes it.
"""

import ast
import random
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import millrace
from millrace import blocking
from millrace.examples.demo.data import modules

DOCUMENTS: Final = "search/documents"
SAVED: Final = "search/saved-queries"
MATCHES: Final = "search/matches"
SEGMENTS: Final = 2

_DRAFTS: Final = 0.5
"""Of the documents with several paragraphs, the part that is written with the first paragraph, and changed later."""
_DELETED: Final = 0.1
_BACK: Final = 0.3
"""Of the deleted documents, the part that is written once more."""


class Change(NamedTuple):
    """A document is written or, with an empty text, deleted."""

    document: str
    text: str


class Version(NamedTuple):
    """A document as one event has it.

    Attributes:
        text: empty if the event deletes it.
        written_us: the time of the event, in Unix microseconds.
        position: where the event is.
    """

    document: str
    text: str
    written_us: int
    position: millrace.EventPosition


def documented() -> dict[str, str]:
    """Return the docstrings of some fifty modules by the names of what they are about."""
    return {name: text for module, source in modules() for name, text in _docstrings(module, source)}


def _docstrings(name: str, node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield name and docstring of a module, a class or a function, and of all that is defined in it."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        if text := ast.get_docstring(node):
            yield name, text
        for inner in node.body:
            if isinstance(inner, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield from _docstrings(f"{name}.{inner.name}", inner)


def changes(seed: int) -> list[Change]:
    """Return the life of all documents, in one order: the same for the same seed."""
    chance = random.Random(seed)
    life: list[tuple[float, Change]] = []
    for document, text in documented().items():
        first, *rest = text.split("\n\n", 1)
        texts = [first, text] if rest and chance.random() < _DRAFTS else [text]
        if chance.random() < _DELETED:
            texts.append("")
            if chance.random() < _BACK:
                texts.append(text)
        life += zip(sorted(chance.random() for _ in texts), (Change(document, each) for each in texts), strict=True)
    return [change for _, change in sorted(life)]


def create(client: blocking.Client) -> None:
    """Create the streams, where they do not exist."""
    for stream, segments in ((DOCUMENTS, SEGMENTS), (SAVED, 1), (MATCHES, SEGMENTS)):
        client.create_stream(stream, millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(segments)))


def write(client: blocking.Client, changed: Sequence[Change]) -> None:
    """Write documents, and wait until they are durable."""
    with client.writer(DOCUMENTS) as writer:
        writer.write_many([each.text.encode() for each in changed], keys=[each.document for each in changed])


def version_of(event: millrace.Event) -> Version:
    """Return what an event says of a document. Each has a key and a time, as `write` gives it."""
    return Version(event.key or "", event.value.decode(), event.timestamp_us or 0, event.position)
