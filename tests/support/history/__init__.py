"""Recorded histories of many clients, and whether a store that keeps its promises can have answered so.

A history is a file of JSON lines, or a folder of such files, one for each process that records. Each line is something
that happened to one operation: it was called, it was given events, or it was answered. An operation without an answer
has an unknown outcome: it may have happened at any time after its call, or never.

    {"at": 17, "id": "w.1", "call": "write", "client": "w", "stream": "a/b", "events": ["k:0"], "keys": ["k"]}
    {"at": 23, "id": "w.1", "answer": "stored", "places": [["7", 0, 0]]}
    {"at": 29, "id": "r.1", "call": "read", "client": "r", "stream": "a/b"}
    {"at": 31, "id": "r.1", "took": [["7", 0, 0, "k:0"]]}
    {"at": 35, "id": "r.1", "answer": "read", "to": {"7": [112, 0]}}

`at` is the monotonic clock of the machine in nanoseconds, taken before the request is sent and after the answer has
come, so that the files of several processes can be merged. An event is named by a text that no other event of the
history has; sending it again is another write of the same event. A place is [segment, offset, index]: the event of that
index in the block at that offset. A cut is {segment: [offset, index]}: all before these places, and all of the segments
that they replaced. A segment with a name of its own is a stream of one segment, `"0"`.

The calls with their fields, and `->` their answers with theirs; `?` may be left out:

    write     stream events keys? writer? sequences? txn? branch? -> stored places? | refused
    write     stream events segment expected, an offset        -> stored places? | refused segment? length?
    read      stream from?, a cut, else the head               -> read to tail?
    cut       streams                                          -> cut cuts, of each stream, all at one instant
    truncate  stream cut?, else by a policy, from now on       -> done | refused
    history   stream                                           -> history after, of each segment what it replaced
    open      stream writer                                    -> opened through stored? missing?
    open      stream writer exclusive expected?, a cut         -> opened through | refused
    release   stream writer?, else by an operator              -> done | refused
    begin     name? producer?                                  -> begun txn | joined txn | prepared txn | committed txn
                                                                  | repeated | fenced | held
    advance   txn register value expected?                     -> done | refused
    prepare   txn or name, branches?                           -> prepared txn | committed txn | aborted txn | refused
    commit    txn or name, branches?, else all                 -> committed txn | already txn | aborted txn | refused
                                                                  | repeated txn | fenced txn | held txn
    abort     txn or name                                      -> aborted txn | committed txn
    outcome   txn or name                                      -> open txn | prepared txn | ... | unknown
    producer  writer                                           -> known holder? run? last? | unknown
    reset     writer holder                                    -> done | same | unknown
    move      register value expected?                         -> moved | refused value?
    look      register                                         -> value value

`to` is the cut where a read stopped, `tail` the end of the stream as it was told. `refused` means that nothing happened
and nothing will; `already`, that it was committed before. `through` is the sequence up to which all is stored, `stored`
and `missing` are events that the server knows to be so. A `txn` is a number, which no other transaction has. A register
is anything with one value: a cursor, an attribute, whether a segment is sealed; its first value is null. A `writer` is
an order: its events of one key, or those without a key in one segment, are stored as they were written, without gaps.
From the opening of an exclusive one on the stream takes its events alone, until it is released or another exclusive one
is opened, which fences it for good.

A `producer` of a transaction is [writer, holder, run, sequence], and `last` the highest sequence that its holder has
committed. `repeated` is the refusal of a sequence that is not above it, `fenced` that of a run that another one, or a
reset, has replaced, `held` that of a holder who does not have the producer; a commit that is refused so has aborted its
transaction. A run is of one holder, and a holder has a producer once: after a reset to another one it never is its own
again. Whoever sends a sequence again gives the events other names, so that they are those of another transaction.

`python -m tests.support.history PATH` checks a file or a folder; the rules are those of `Rule`.
"""

from .checker import Verdict, check, check_path, demand
from .recording import Recorder, read_lines
from .rules import Rule, Violation, WrongHistoryError

__all__ = [
    "Recorder",
    "Rule",
    "Verdict",
    "Violation",
    "WrongHistoryError",
    "check",
    "check_path",
    "demand",
    "read_lines",
]
