"""A reader of several streams, which goes from one consistent cut to the next and finds whole transactions only."""

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

import millrace
from millrace.client.client import Client
from tests.crash.recorded_reads import recorded_cut
from tests.crash.transactions.recorded import Tag
from tests.support.history import Recorder


@dataclass
class CutReader:
    """Reads all events between cuts of the streams.

    Attributes:
        places: the last cut.
        torn: how many events it has of a transaction that it does not have whole.
        reads_together: whether it reads all streams by one reader, and not by one for each.
    """

    client: Client
    recorder: Recorder
    streams: Sequence[str]
    places: dict[str, millrace.StreamCut]
    counted: Counter[str]
    torn: Counter[Tag] = field(default_factory=Counter)
    reads_together: bool = False

    async def step(self) -> None:
        """Read up to a new cut.

        Raises:
            AssertionError: a transaction is before it in part.
        """
        cuts = await take_cuts(self.client, self.recorder, "cuts", self.streams)
        async for value in self._values(cuts):
            self._take(value)
        assert not self.torn, f"parts of transactions are before the cuts {cuts}: {self.torn}"
        self.places = cuts
        self.counted["cuts read"] += 1

    async def _values(self, cuts: Mapping[str, millrace.StreamCut]) -> AsyncIterator[str]:
        """Yield the events up to cuts."""
        if self.reads_together:
            async with self.client.reader(list(self.streams), start=self.places, end=cuts) as several:
                async for event in several:
                    yield event.value.decode()
            return
        for stream, cut in cuts.items():
            async with self.client.reader(stream, start=self.places[stream], end=cut) as reader:
                async for event in reader:
                    yield event.value.decode()

    def _take(self, value: str) -> None:
        if (found := Tag.parse(value)) is None:
            return
        tag = found[0]
        self.torn[tag] += 1
        if self.torn[tag] == tag.event_count:
            del self.torn[tag]


async def take_cuts(
    client: Client, recorder: Recorder, who: str, streams: Sequence[str]
) -> dict[str, millrace.StreamCut]:
    """Return cuts of streams at one moment."""
    call = recorder.call(who, "cut", streams=list(streams))
    cuts = await client.stream_cuts(streams)
    recorder.answer(call, "cut", cuts={stream: recorded_cut(cut) for stream, cut in cuts.items()})
    return cuts
