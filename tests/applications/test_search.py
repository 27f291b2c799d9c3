"""An index and saved queries follow a stream of documents: each is taken once, whatever is killed."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

import millrace
from applications.search import __main__ as command
from applications.search.check import check, expected, meets, words
from applications.search.documents import (
    DOCUMENTS,
    MATCHES,
    SAVED,
    Change,
    Version,
    changes,
    create,
    version_of,
    write,
)
from applications.search.index import Index
from applications.search.saved import Match, delete, matches, save, saved
from millrace import EventPosition, blocking
from millrace.client.testing import TestServer

pytestmark = pytest.mark.slow


@pytest.mark.spark
@pytest.mark.timeout(900)  # one Spark after another, and on a machine that has other work each starts slowly
def test_the_index_and_the_matches_are_those_of_the_streams() -> None:
    """Behaviours 24, 55 and 67. As a process of its own: Spark stays in its process until that ends."""
    finished = subprocess.run(
        [sys.executable, "-m", "applications.search", "--seed", "4"], capture_output=True, text=True, check=False
    )

    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "Spark was killed when the index had" in finished.stderr
    assert f"{len(changes(4)):,} events are in the index once" in finished.stderr
    assert "time zones" in finished.stdout


@pytest.fixture
def client(millrace_server: TestServer) -> Iterator[blocking.Client]:
    with blocking.connect(millrace_server.address) as client:
        create(client)
        yield client


def versions(client: blocking.Client) -> list[Version]:
    """Return all versions of all documents, as a reader finds them."""
    with client.reader(DOCUMENTS, start=millrace.HEAD, end=millrace.TAIL) as reader:
        return [version_of(event) for event in reader]


def written(*texts: str) -> list[Version]:
    """Return versions of documents of their own, one after another in one segment."""
    return [Version(f"d{at}", text, 1000 + at, EventPosition(1, at, 0)) for at, text in enumerate(texts)]


def found(index: Index, query: str) -> set[str]:
    return {hit.document for hit in index.search(query, limit=1000)}


def test_documents_are_written_changed_deleted_and_written_once_more() -> None:
    life = changes(7)

    assert life == changes(7) != changes(8)
    lives: dict[str, list[str]] = {}
    for change in life:
        lives.setdefault(change.document, []).append(change.text)
    assert len(lives) > 1000
    shapes = {tuple(bool(text) for text in texts) for texts in lives.values()}
    assert {(True,), (True, True), (True, False), (True, False, True)} <= shapes


def test_what_is_found_is_fetched_from_the_stream(client: blocking.Client, tmp_path: Path) -> None:
    """The index has positions, also of a stream that was split, and the newest of each document."""
    write(client, [Change("a", "first draft"), Change("b", "another one"), Change("c", "first of all")])
    first, *_ = client.stream_info(DOCUMENTS).open_segments
    middle = (first.low + first.high) / 2
    client.scale_stream(DOCUMENTS, seal=[first.segment_id], ranges=[(first.low, middle), (middle, first.high)])
    write(client, [Change("a", "the first text"), Change("b", "the other text"), Change("c", "")])
    index = Index(tmp_path)
    assert index.search("first") == []
    assert index.writer().apply(versions(client)) == 6

    (hit,) = index.search("first")
    assert hit.document == "a"
    event = client.fetch_event(hit.position)
    assert (event.key, event.value) == ("a", b"the first text")
    assert found(index, "text") == {"a", "b"}
    assert found(index, "another") == set()


def test_the_index_keeps_no_text(tmp_path: Path) -> None:
    text = "quick brown fox jumps over the lazy dog"
    Index(tmp_path).writer().apply(written(text))

    assert found(Index(tmp_path), '"brown fox jumps"') == {"d0"}
    assert not any(b"brown fox" in path.read_bytes() for path in tmp_path.iterdir())


def test_what_the_index_has_is_not_taken_again(tmp_path: Path) -> None:
    """Behaviour 61: the cursor moves with the documents, so a batch that comes again is recognised, in part as well."""
    came = written("one", "two", "three", "four")
    assert Index(tmp_path).writer().apply(came[:3]) == 3

    again = Index(tmp_path)
    assert again.writer().apply(came[1:]) == 1
    assert again.cursor().events == 4
    assert again.cursor().last == {1: came[-1].position}
    assert Counter(hit.document for hit in again.documents()) == Counter(["d0", "d1", "d2", "d3"])


def test_an_older_version_that_comes_again_does_not_replace_a_newer_one(tmp_path: Path) -> None:
    older, newer = (each._replace(document="a") for each in written("older", "newer"))
    index = Index(tmp_path)
    writer = index.writer()
    writer.apply([older, newer])
    writer.apply([older])

    assert [hit.position for hit in index.documents()] == [newer.position]


INDEXER = """
import json, sys
from pathlib import Path
from millrace import EventPosition
from applications.search.documents import Version
from applications.search.index import Index

writer = Index(Path(sys.argv[1])).writer()
life = [
    Version(document, text, at, EventPosition(1, at, 0)) for at, (document, text) in enumerate(json.load(sys.stdin))
]
for begin in range(0, len(life), 20):
    writer.apply(life[begin : begin + 20])
"""


def look(index: Index, life: list[Change]) -> int:
    """Return how far an index is that may be written meanwhile; what is in it must be just what it says."""
    while True:
        cursor = index.cursor()
        entries = Counter((hit.document, hit.position) for hit in index.documents())
        if index.cursor() == cursor:  # nothing was committed between the two
            break
    newest = {change.document: (at, change.text) for at, change in enumerate(life[: cursor.events])}
    assert entries == Counter((name, EventPosition(1, at, 0)) for name, (at, text) in newest.items() if text)
    return cursor.events


def test_an_indexer_that_is_killed_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """Behaviour 61: killed while it works, again and again. A look finds the documents that the cursor says."""
    life = changes(5)[:1000]
    index = Index(tmp_path)
    taken = 0
    for until in (200, 450, 700, len(life)):
        program = [sys.executable, "-c", INDEXER, str(tmp_path)]
        with subprocess.Popen(program, stdin=subprocess.PIPE, text=True) as indexer:
            assert indexer.stdin is not None
            indexer.stdin.write(json.dumps(life))
            indexer.stdin.close()
            while taken < until and indexer.poll() is None:
                taken = look(index, life)
            indexer.kill()
        before, taken = taken, look(index, life)
        assert before <= taken

    assert taken == len(life)


def test_a_query_matches_what_is_written_while_it_is_saved(client: blocking.Client) -> None:
    write(client, [Change("before", "a red apple")])
    save(client, "fruit", "apple")
    write(client, [Change("first", "a green apple"), Change("pear", "a green pear")])
    save(client, "fruit", '"green pear"')
    write(client, [Change("second", "one more apple"), Change("pear", "the green pear"), Change("first", "")])
    delete(client, "fruit")
    write(client, [Change("pear", "a green pear once more")])

    came = versions(client)
    told = list(matches(came, saved(client)))

    assert sorted((match.query, match.document) for match in told) == [("fruit", "first"), ("fruit", "pear")]
    values = {client.fetch_event(match.position).value for match in told}
    assert values == {b"a green apple", b"the green pear"}
    # By the time of the events: who looks later, or at other batches, finds the same.
    assert Counter(told) == Counter(match for version in came for match in matches([version], saved(client)))


@pytest.mark.parametrize("text", ['"no end', "(", "-only", " ", "nothing:here"])
def test_what_is_no_query_is_not_saved_and_holds_up_nobody(client: blocking.Client, text: str) -> None:
    with pytest.raises(ValueError, match=r"Syntax Error|Only excluding|no query|does not exist"):
        save(client, "bad", text)
    assert saved(client) == []
    with client.writer(SAVED) as writer:
        writer.write(text.encode(), key="bad").result()
    save(client, "good", "apple")
    write(client, [Change("a", "an apple")])

    assert [match.query for match in matches(versions(client), saved(client))] == ["good"]


@pytest.mark.parametrize(
    ("query", "right"),
    [
        ("event loop", True),
        ('"event loop"', True),
        ('"loop event"', False),
        ("-event loop", False),
        ("loop -even", True),
        ("EVENT", True),
        ("py3", True),
        ("py", False),
    ],
)
def test_the_calculation_without_an_index_and_the_index_agree(query: str, right: bool) -> None:
    text = "Run the Event-Loop (of py3)."
    index = Index(None)
    index.writer().apply(written(text))

    assert meets(words(text), query) is right
    assert bool(index.search(query)) is right


def write_told(client: blocking.Client, told: list[Match]) -> None:
    with client.writer(MATCHES) as writer:
        for match in told:
            names = ("query", "document", "segment", "offset", "index")
            event = dict(zip(names, (match.query, match.document, *match.position), strict=True))
            writer.write(json.dumps(event).encode(), key=match.query)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("", ""),
        ("an event is not in the index", "the index has taken 5 events of 6"),
        ("an event was taken twice", "the index has taken 7 events of 6"),
        ("another text", "apple: 2 documents are found, and not those that meet it"),
        ("a stale document", "the 3 documents of the index are not the 3 of the stream"),
        ("a match is missing", "1 matches are missing, repeated or wrong"),
        ("a match was told twice", "1 matches are missing, repeated or wrong"),
        ("a match of a query that was saved later", "1 matches are missing, repeated or wrong"),
    ],
)
def test_what_is_wrong_is_told(millrace_server: TestServer, client: blocking.Client, wrong: str, says: str) -> None:
    """The check of the program can fail."""
    save(client, "fruit", "apple")
    write(client, [Change("a", "red apple"), Change("b", "apple pie"), Change("c", "pear"), Change("d", "nut")])
    write(client, [Change("b", "a pear pie"), Change("d", "")])
    save(client, "later", "pear")
    came = versions(client)
    told = list(matches(came, saved(client)))
    assert sorted(match.document for match in told) == ["a", "b"]
    late = Match("later", "b", next(each.position for each in came if each.text == "a pear pie"))
    end = max(came, key=lambda each: each.position)
    taken = {
        "an event is not in the index": [each for each in came if each.document != "c"],
        "an event was taken twice": [*came, end._replace(position=EventPosition(end.position[0] + 99, 0, 0))],
        "another text": [each._replace(text="apple") if each.document == "c" else each for each in came],
        "a stale document": [each for each in came if each.text != "a pear pie"]
        + [Version("e", "", 0, EventPosition(999, 0, 0))],
    }.get(wrong, came)
    index = Index(None)
    index.writer().apply(taken)
    write_told(
        client,
        {
            "a match is missing": told[1:],
            "a match was told twice": [*told, told[0]],
            "a match of a query that was saved later": [*told, late],
        }.get(wrong, told),
    )
    with command.Told(millrace_server.address) as follower:
        follower.wait_for(client.distance(client.stream_head(MATCHES), client.stream_cut(MATCHES)).events)
    right = expected(client)
    with pytest.raises(SystemExit, match=says) if says else nullcontext():
        check(right, index=index, told=follower.matches, queries=["apple", "pear"])
