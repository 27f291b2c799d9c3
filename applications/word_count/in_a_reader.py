"""Count words without Spark: `python -m applications.word_count.in_a_reader [ADDRESS]`.

As a task of Samza does it. What is counted is in memory, and each change of it is an event of a second stream, from
which a new process fills its memory again. The counts and the place up to which the lines are counted are one
transaction: kill this program at any moment, start it again, and each line is counted once.
"""

import sys
from collections import Counter

import millrace
from millrace import blocking

from .text import LINES, create, encoded, latest, words_of

COUNTS = "words/counts-of-a-reader"
CURSOR = "counter"


def count(address: str, *, end: millrace.CutChoice | None = None) -> Counter[str]:
    """Count the lines from where the last process stopped, up to a place or as they come; return all counts."""
    with blocking.connect(address) as client:
        create(client, LINES, COUNTS)
        counts = latest(client, COUNTS)
        counted = client.cursors(LINES).get(CURSOR)
        with client.reader(LINES, start=counted or millrace.HEAD, end=end) as reader:
            # A block: what came while the last transaction was on its way.
            while lines := reader.next_events():
                new = Counter(word for line in lines for word in words_of(line.value))
                counts.update(new)
                place = reader.position()
                with client.transaction(COUNTS) as transaction:
                    for word in new:
                        transaction.write(encoded(word, counts[word]), key=word)
                    # Another process that counts the same is refused here, with all that it wrote.
                    transaction.advance(LINES, CURSOR, place, expected=counted)
                counted = place
    return counts


if __name__ == "__main__":
    count(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9240")
