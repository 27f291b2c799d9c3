"""What is counted: lines that the authors of Python's standard library wrote, and the words in them."""

import json
import re
from collections import Counter
from collections.abc import Sequence

import millrace
from millrace import blocking
from millrace.examples.demo.data import Line

LINES = "words/lines"
SEGMENTS = 2
_WORD = re.compile("[a-z]+")


def words_of(line: bytes) -> list[str]:
    """Return the words of a line, in small letters."""
    return _WORD.findall(line.decode().lower())


def create(client: blocking.Client, *streams: str) -> None:
    """Create streams that do not exist."""
    for stream in streams:
        client.create_stream(stream, millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(SEGMENTS)))


def write(client: blocking.Client, lines: Sequence[Line]) -> None:
    """Write lines, keyed by the module that they are from."""
    with client.writer(LINES) as writer:
        writer.write_many([line.text.encode() for line in lines], keys=[line.module for line in lines])


def truth(client: blocking.Client) -> Counter[str]:
    """Count the words of the stream, all at once."""
    with client.reader(LINES, end=millrace.TAIL) as reader:
        return Counter(word for event in reader for word in words_of(event.value))


def encoded(word: str, count: int) -> bytes:
    """Return the event that says how often a word has come by now."""
    return json.dumps({"word": word, "count": count}).encode()


def count_of(event: bytes) -> tuple[str, int]:
    """Return what such an event says."""
    told = json.loads(event)
    return told["word"], told["count"]


def latest(client: blocking.Client, stream: str) -> Counter[str]:
    """Return what a stream of such events says last of each word; a count must not shrink, nor come twice."""
    counts: Counter[str] = Counter()
    with client.reader(stream, end=millrace.TAIL) as reader:
        for event in reader:
            word, count = count_of(event.value)
            if count <= counts[word]:
                raise SystemExit(f"{word} came {count} times, and before that {counts[word]} times")
            counts[word] = count
    return counts
