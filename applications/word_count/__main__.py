"""Count the words of a stream in four ways, and measure what each promises: `python -m applications.word_count`.

Each way is a process of its own. It is given lines, one by one and many at once. It is killed in the middle of many,
and started again. At the end each word must have been counted exactly as often as it was written.
"""

import argparse
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from applications.following import Follower
from millrace import HEAD, Event, blocking
from millrace.cli.output import print_note, print_table
from millrace.examples.demo.data import Line, lines
from millrace.examples.running import Program, ended_by_sigterm, server_at
from millrace.model.figures import duration_text

from . import in_a_reader, in_spark
from .text import LINES, count_of, create, words_of, write

PROBES: Final = 10


class Way(NamedTuple):
    """A way to count.

    Attributes:
        arguments: of its process, before the address.
        stream: what it writes.
        tells_totals: an event of that is a total, and not a word.
        keeps: where its counts are between two batches.
    """

    name: str
    arguments: tuple[str, ...]
    stream: str
    tells_totals: bool
    keeps: str


_HERE: Final = __package__ or ""
WAYS: Final = {
    way.name: way
    for way in (
        Way("reader", (f"{_HERE}.in_a_reader",), in_a_reader.COUNTS, True, "in the stream that it writes"),
        Way("words", (f"{_HERE}.in_spark", "words"), in_spark.WORDS, False, "nothing to keep"),
        Way("counts", (f"{_HERE}.in_spark", "counts"), in_spark.COUNTS, True, "in Spark's checkpoint"),
        Way("continued", (f"{_HERE}.in_spark", "continued"), in_spark.CONTINUED, True, "there; begun from a slice"),
    )
}


class Measured(NamedTuple):
    """What was seen of one way."""

    latency_s: float
    lines_per_s: float
    recovery_s: float
    words: int


class Counted(Follower):
    """Knows what a way has told by now."""

    def __init__(self, address: str, way: Way) -> None:
        super().__init__(address, way.stream)
        self._way = way
        self._told: Counter[str] = Counter()

    def take(self, event: Event, came_s: float) -> None:
        if not self._way.tells_totals:
            self._told[event.value.decode()] += 1
            return
        word, count = count_of(event.value)
        if count <= self._told[word]:
            raise SystemExit(f"{self._way.name}: {word} came {count} times, and before that more often")
        self._told[word] = count

    def wait_for_words(self, expected: Counter[str]) -> None:
        """Wait until these words are told exactly so often."""
        self.wait_until(lambda: all(self._told[word] >= count for word, count in expected.items()))
        wrong = {word: self._told[word] for word, count in expected.items() if self._told[word] != count}
        if wrong:
            raise SystemExit(f"{self._way.name}: counted {wrong}, more often than they were written")


def program(way: Way, address: str, folder: Path) -> Program:
    """Return a way as a program."""
    checkpoint = () if way.name == "reader" else (str(folder / way.name),)
    return Program(*way.arguments, address, *checkpoint, log=folder / f"{way.name}.log")


def measure(way: Way, address: str, text: Sequence[Line], *, repeats: int, folder: Path) -> Measured:
    """Let one way count what is written, and kill it once."""
    with blocking.connect(address) as client:
        create(client, LINES, way.stream)
        client.bookmarks(LINES).save(in_spark.HISTORY)  # before the process does so, which takes long to start
        total = Counter[str]()
        with client.reader(LINES, start=HEAD, end="tail") as reader:
            for event in reader:
                total.update(words_of(event.value))
        since = Counter[str]()  # written while this way runs; each such word is told with its total

        def put(many: Sequence[Line]) -> None:
            write(client, many)
            for line in many:
                since.update(words_of(line.text.encode()))

        def expected() -> Counter[str]:
            return Counter({word: since[word] + total[word] for word in since})

        with Counted(address, way) as counted, program(way, address, folder) as process:
            put([Line("probe", "begin")])
            counted.wait_for_words(expected())
            latencies_s = []
            for number in range(PROBES):
                began_s = time.perf_counter()
                put([Line("probe", "probe" + "abcdefghij"[number])])
                counted.wait_for_words(expected())
                latencies_s.append(time.perf_counter() - began_s)
            began_s = time.perf_counter()
            for _ in range(repeats):
                put(text)
            counted.wait_for_words(expected())
            lines_per_s = repeats * len(text) / (time.perf_counter() - began_s)
            put(text)
            process.kill()
            told = client.distance(client.stream_head(way.stream), client.stream_cut(way.stream)).events
            counted.wait_for(told)
            began_s = time.perf_counter()
            process.start()
            counted.wait_for(told + 1)
            recovery_s = time.perf_counter() - began_s
            counted.wait_for_words(expected())
    return Measured(statistics.median(latencies_s), lines_per_s, recovery_s, sum(since.values()))


def show(measured: dict[str, Measured]) -> None:
    """Print the table."""
    rows = [
        (
            name, "exactly once", WAYS[name].keeps, duration_text(each.latency_s), f"{each.lines_per_s:,.0f}",
            duration_text(each.recovery_s), f"{each.words:,}",
        )
        for name, each in measured.items()
    ]  # fmt: skip
    columns = ("way", "guarantee", "keeps its counts", "latency", "lines/s", "after a kill", "words")
    print_table(columns, rows, right=columns[3:])
    print_note("each word was counted exactly as often as it was written, with a kill of the process in the middle")


@ended_by_sigterm()
def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m applications.word_count", description=__doc__)
    parser.add_argument("--address", help="of a server; without it one is started")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="all of them, without it")
    parser.add_argument("--repeats", type=int, default=5, help="how often the text is written to measure lines/s")
    parser.add_argument("--lines", type=int, help="how many lines the text has; all that there are, without it")
    options = parser.parse_args(arguments)
    text = list(lines())[: options.lines]
    with ExitStack() as stack:
        address = stack.enter_context(server_at(options.address))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        with blocking.connect(address) as client:
            create(client, LINES)
            write(client, text[: len(text) // 2])  # history
        show(
            {name: measure(WAYS[name], address, text, repeats=options.repeats, folder=folder) for name in options.ways}
        )


if __name__ == "__main__":
    main()
