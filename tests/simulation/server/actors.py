"""Roles of clients: what they do, each from a seed, and what they record of it."""

# Nobody needs to look at the future of a write: flush raises what went wrong.
# mypy: disable-error-code="unused-awaitable"

import asyncio
import itertools
from functools import partial
from typing import Final

import millrace
from tests.crash.elastic.seen import has_passed
from tests.crash.producing import produce
from tests.crash.recorded_reads import recorded_cut
from tests.crash.recorded_writes import record_outcome
from tests.crash.transactions.chain import Chain
from tests.crash.transactions.cuts import CutReader, take_cuts
from tests.crash.transactions.deciding import Decider
from tests.crash.transactions.faults import scale_once
from tests.crash.transactions.lanes import Lane
from tests.crash.transactions.queries import Query

from .world import Decisions, Part

COUNT_PER_LIFE: Final = 100
DECISIONS: Final = ("commit", "commit", "abort")


async def write_sequences(part: Part, *, stream: str, keys: int) -> None:
    """Write the sequences 0, 1, 2, ... under a writer id, and continue after what is stored."""
    count = part.world.next_numbers.setdefault(part.name, 0)
    while not part.is_over():
        count += part.dice.randint(1, COUNT_PER_LIFE)
        part.world.next_numbers[part.name] = count
        await _produce(part, stream, keys=keys, count=count)
    if part.number > 1:  # what a life before had begun
        await _produce(part, stream, keys=keys, count=count)


async def _produce(part: Part, stream: str, *, keys: int, count: int) -> None:
    """Write all sequences below `count`, also where a late request of a life before takes the writer id away."""
    while True:
        client = part.world.client()
        try:
            await produce(client, stream, part.name, keys=keys, count=count, dice=part.dice, recorder=part.recorder)
        except millrace.WriterFencedError:
            assert part.number > 1, "nobody else opens this writer id"
            part.world.counted["fenced by a life before"] += 1
        else:
            return


async def write_unnamed(part: Part, *, stream: str) -> None:
    """Write numbers under a key of this writer, without a writer id.

    Without sequences nobody knows whether a segment has stored what was on its way to it before it was truncated away.
    The writer ends then, and another one begins.
    """
    for life in itertools.count(1):
        try:
            await _write_unnamed(part, stream, key=f"{part.name}/{part.number}/{life}")
        except millrace.OutcomeUnknownError:
            part.world.counted["outcomes unknown to a writer"] += 1
        else:
            return


async def _write_unnamed(part: Part, stream: str, *, key: str) -> None:
    number = 0
    async with part.client.writer(stream) as writer:
        while not part.is_over():
            for _ in range(part.dice.choice([1, 1, 5, 40])):
                event = f"{key}:{number}"
                call = part.recorder.call(key, "write", stream=stream, writer=key, events=[event], keys=[key])
                record_outcome(part.recorder, call, writer.write(event.encode(), key=key))
                number += 1
            await writer.drain()
            await asyncio.sleep(part.dice.expovariate(20.0))


async def transact(part: Part) -> None:
    """Write in transactions, one after the other."""
    world = part.world

    def say(verb: str, *words: object) -> None:
        if verb == "at":
            world.next_numbers[part.name] = int(str(words[1]))
        elif verb == "decide":
            # Once it is aborted, its name would be that of another one: the next life leaves it alone.
            world.next_numbers[part.name] = int(str(words[0]).rpartition("/")[2]) + 1
            first = part.dice.choice(DECISIONS)
            for decisions, verb in zip(world.decisions.values(), itertools.cycle([first, part.dice.choice(DECISIONS)])):
                decisions.hand_over(str(words[0]), " ".join([verb, *map(str, words)]))
        else:
            world.counted[verb] += 1

    first = world.next_numbers.get(part.name, 0)
    await Lane(part.client, part.recorder, part.name, part.number, first, part.dice, say).run(part.is_over)


async def decide(part: Part) -> None:
    """Commit and abort what others have prepared, as another decider does at the same time, until these have ended."""
    decisions = part.world.decisions.setdefault(part.name, Decisions())
    lines = decisions.resume()

    def say(verb: str, *words: object) -> None:
        decisions.waiting.pop(str(words[0]), None)
        part.world.counted[verb] += 1

    async def end() -> None:
        while not (part.is_over() and part.world.has_ended("transact")):  # noqa: ASYNC110  # in virtual time
            await asyncio.sleep(0.1)
        lines.put_nowait("end")

    ending = asyncio.create_task(end())
    await Decider(part.client, part.recorder, part.name, say).run(lines)
    await ending


async def query(part: Part, *, writer: str) -> None:
    """Commit batches as a producer that others are, too."""

    def say(verb: str, *words: object) -> None:
        part.world.counted[verb] += 1

    await Query(part.client, part.recorder, part.name, part.number, writer, part.dice, say).run(part.is_over)


async def cook(part: Part) -> None:
    """Move events from one stream to another, with the position in the commit, until the first one has its last."""

    def say(verb: str, *words: object) -> None:
        part.world.counted[verb] += 1

    def is_over() -> bool:
        return part.is_over() and part.world.has_ended("raw")

    await Chain(part.client, part.recorder, part.name, part.number, part.dice, say).run(is_over)


async def scale(part: Part, *, streams: tuple[str, ...]) -> None:
    """Split and merge segments all the time."""
    while not part.is_over():
        await scale_once(part.client, part.dice.choice(streams), part.dice, part.world.counted)
        await asyncio.sleep(part.dice.expovariate(8.0))


async def truncate(part: Part, *, streams: tuple[str, ...]) -> None:
    """Truncate at the place of a reader that all other readers of the stream have passed."""
    while not part.is_over():
        await asyncio.sleep(part.dice.expovariate(2.0))
        stream = part.dice.choice(streams)
        info = await part.client.stream_info(stream)
        places = [place() for place in part.world.seen[stream].places]
        known = [place for place in places if place is not None and place.places.keys() <= info.lineage().by_id.keys()]
        if len(known) < len(places):
            continue  # a reader has not begun yet, or the stream was truncated meanwhile
        for cut in known:
            progress = info.progress(cut)
            if all(has_passed(info, place, progress) for place in known):
                await _truncate(part, stream, cut)
                break


async def _truncate(part: Part, stream: str, cut: millrace.StreamCut) -> None:
    call = part.recorder.call(part.name, "truncate", stream=stream, cut=recorded_cut(cut))
    try:
        await part.client.truncate_stream(stream, cut)
    except millrace.CutInvalidError:  # inside of an append
        part.recorder.answer(call, "refused")
    else:
        part.recorder.answer(call, "done")
        part.world.counted["truncated"] += 1


def _place(reader: CutReader, stream: str) -> millrace.StreamCut | None:
    return reader.places.get(stream)


async def read_cuts(part: Part, *, streams: tuple[str, ...], reads_together: bool) -> None:
    """Read several streams from one consistent cut to the next."""
    heads: dict[str, millrace.StreamCut] = {}
    reader = CutReader(part.client, part.recorder, streams, heads, part.world.counted, reads_together=reads_together)
    for stream in streams:
        part.world.seen[stream].places.append(partial(_place, reader, stream))
    for stream in streams:
        heads[stream] = await part.client.stream_cut(stream).head()
    while not part.is_over():
        await reader.step()
        await asyncio.sleep(part.dice.expovariate(5.0))
    await reader.step()


async def look(part: Part, *, streams: tuple[str, ...]) -> None:
    """Take cuts of some of all streams, which readers of others may contradict."""
    while not part.is_over():
        chosen = part.dice.sample(streams, part.dice.randint(1, len(streams)))
        await take_cuts(part.client, part.recorder, part.name, chosen)
        await asyncio.sleep(part.dice.expovariate(10.0))


keyed = partial(write_sequences, keys=5)
keyless = partial(write_sequences, keys=0)
