"""Keep an index, and what saved queries match, up to date while documents come: `python -m applications.search`.

Documents are written, changed and deleted. Spark keeps an index of their terms and positions, and tells which saved
queries each of them meets. It is killed in the middle, and started again. Meanwhile queries are saved, changed and
deleted, and the stream is split. What a search finds is fetched from the stream. At the end the index, what it finds
and each match are compared with what plain Python computes from the streams.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import Final

import millrace
from applications.following import PATIENCE_S, Follower
from millrace import blocking
from millrace.cli.output import print_done, print_note, print_table
from millrace.examples.running import Program, ended_by_sigterm, server_at
from millrace.model.figures import duration_text, size_text

from .check import check, expected
from .documents import DOCUMENTS, MATCHES, Change, changes, create, write
from .index import Index
from .queries import INDEX
from .saved import Match, delete, save, saved

POLL_S: Final = 0.05
PROBES: Final = 5
"""So many changes come one by one at the end, to see how long each takes."""
FIRST: Final = {
    "event loops": '"event loop"',
    "locks": "thread lock",
    "odd files": "file -path",
    "old": "deprecated",
    "threads": "thread -process",
}
"""Queries that are saved before any document comes."""
SEARCHES: Final = ("iterator return", '"context manager"', "encoding error", "socket timeout")


class Told(Follower):
    """What the stream of matches tells: how often each match came."""

    def __init__(self, address: str) -> None:
        super().__init__(address, MATCHES)
        self.matches: Counter[Match] = Counter()

    def take(self, event: millrace.Event, came_s: float) -> None:
        self.matches[match_of(event.value)] += 1


def match_of(event: bytes) -> Match:
    """Return what an event of the stream of matches says."""
    told = json.loads(event)
    place = millrace.EventPosition(told["segment"], told["offset"], told["index"])
    return Match(told["query"], told["document"], place)


def wait_for_index(index: Index, count: int) -> None:
    """Wait until the index has taken so many events. It is a folder, which tells nobody when it changes."""
    _wait(lambda: index.cursor().events >= count, f"the index did not take {count:,} events within {PATIENCE_S:g} s")


def _wait(is_there: Callable[[], bool], otherwise: str) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not is_there():
        if time.monotonic() > until_s:
            raise SystemExit(otherwise)
        time.sleep(POLL_S)


def feed(client: blocking.Client, life: Sequence[Change], *, index: Index, program: Program, kill_at: int) -> float:
    """Write all changes, and save and delete queries, while the program runs and is killed once.

    Args:
        kill_at: so many events are in the index when the program is killed.

    Returns:
        The seconds from a single change until the index has it: the median of several.
    """
    for name, text in FIRST.items():
        save(client, name, text)
    half = len(life) // 2
    write(client, life[:half])
    wait_for_index(index, kill_at)
    program.kill()
    print_note(f"Spark was killed when the index had {index.cursor().events:,} of {half:,} events")
    save(client, "time zones", '"time zone"')  # from now on; what came before is found by the index
    save(client, "threads", "thread -process -lock")
    delete(client, "old")
    widest, *_ = client.stream_info(DOCUMENTS).open_segments
    middle = (widest.low + widest.high) / 2
    client.scale_stream(DOCUMENTS, seal=[widest.segment_id], ranges=[(widest.low, middle), (middle, widest.high)])
    program.start()
    write(client, life[half:-PROBES])
    wait_for_index(index, len(life) - PROBES)
    taken_s = []
    for number, change in enumerate(life[-PROBES:], start=len(life) - PROBES + 1):
        began_s = time.perf_counter()
        write(client, [change])
        wait_for_index(index, number)
        taken_s.append(time.perf_counter() - began_s)
    return statistics.median(taken_s)


def show_searches(client: blocking.Client, index: Index) -> None:
    """Print what is found, with the beginning of the best document, which is fetched from the stream."""
    rows = []
    for text in SEARCHES:
        hits = index.search(text, limit=1000)
        best = client.fetch_event(hits[0].position)
        rows.append((text, len(hits), hits[0].document, _place(hits[0].position), _beginning(best.value)))
    print_table(("search", "documents", "the best of them", "is at", "which the stream has as"), rows)


def show_matches(client: blocking.Client, index: Index, told: Counter[Match]) -> None:
    """Print what each saved query matched, and what the index finds for those that are still saved."""
    written_us = {match: client.fetch_event(match.position).timestamp_us or 0 for match in told}
    rows = []
    for query in saved(client):
        matched = [match for match in told if match.query == query.name]
        matched = [match for match in matched if query.since_us <= written_us[match] < query.until_us]
        now: tuple[object, ...] = ("no longer saved", "")
        if query.until_us == inf:
            hits = index.search(query.text, limit=1000)
            now = (len(hits), len({hit.position for hit in hits} - {match.position for match in matched}))
        newest = max(matched, key=written_us.__getitem__).document if matched else ""
        rows.append((query.name, query.text, len(matched), newest, *now))
    columns = ("saved query", "text", "matches", "the newest of them", "the index finds", "of that, older than it")
    print_table(columns, rows, right=columns[4:])


def _place(position: millrace.EventPosition) -> str:
    return "segment {}, offset {}, event {}".format(*position)


def _beginning(text: bytes) -> str:
    line = text.decode().split("\n", 1)[0]
    return line if len(line) <= 50 else f"{line[:49]}…"


def show_sizes(client: blocking.Client, folder: Path) -> None:
    """Print how large the stream is, and the index."""
    stream = client.distance(client.stream_head(DOCUMENTS), client.stream_cut(DOCUMENTS)).size_bytes
    index = sum(path.stat().st_size for path in folder.iterdir())
    print_note(f"the documents take {size_text(stream)} in the stream, and their terms {size_text(index)} in the index")


def run(address: str, folder: Path, *, seed: int) -> None:
    """Run all of it, and compare."""
    life = changes(seed)
    half = len(life) // 2
    kill_at = random.Random(seed).randrange(half // 4, half // 2)
    index = Index(folder / INDEX)
    program = Program(f"{__package__}.queries", address, str(folder), log=folder / "spark.log")
    with blocking.connect(address) as client:
        create(client)
        with Told(address) as told, program:
            taken_s = feed(client, life, index=index, program=program, kill_at=kill_at)
            right = expected(client)
            told.wait_for(right.matches.total())
            program.kill()
            told.wait_for(client.distance(client.stream_head(MATCHES), client.stream_cut(MATCHES)).events)
        queries = {*SEARCHES, *(query.text for query in saved(client))}
        check(right, index=index, told=told.matches, queries=sorted(queries))
        show_searches(client, index)
        show_matches(client, index, told.matches)
        show_sizes(client, folder / INDEX)
    print_note(f"a document is found {duration_text(taken_s)} after it is written")
    print_done(
        f"{right.events:,} events are in the index once, {len(right.documents):,} documents are left of them, "
        f"and each of {right.matches.total():,} matches was told once"
    )


@ended_by_sigterm()
def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m applications.search", description=__doc__)
    parser.add_argument("--address", help="of a server, without streams of this name; without it one is started")
    parser.add_argument("--seed", type=int, default=11, help="of what changes, and when Spark is killed (%(default)s)")
    options = parser.parse_args(arguments)
    with server_at(options.address) as address, tempfile.TemporaryDirectory() as folder:
        run(address, Path(folder), seed=options.seed)


if __name__ == "__main__":
    main()
