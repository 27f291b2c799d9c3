"""A reader of several streams, which goes from one consistent cut to the next and finds whole transactions only."""

from collections import Counter
from collections.abc import Callable, Sequence
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
    """

    client: Client
    recorder: Recorder
    streams: Sequence[str]
    places: dict[str, millrace.StreamCut]
    counted: Counter[str]
    torn: Counter[Tag] = field(default_factory=Counter)

    async def step(self) -> None:
        """Read up to a new cut.

        Raises:
            AssertionError: a transaction is before it in part.
        """
        call = self.recorder.call("cuts", "cut", streams=list(self.streams))
        cuts = await self.client.stream_cuts(self.streams)
        self.recorder.answer(call, "cut", cuts={stream: recorded_cut(cut) for stream, cut in cuts.items()})
        for stream, cut in cuts.items():
            async with self.client.reader(stream, start=self.places[stream], end=cut) as reader:
                async for event in reader:
                    self._take(event.value.decode())
        assert not self.torn, f"parts of transactions are before the cuts {cuts}: {self.torn}"
        self.places = cuts
        self.counted["cuts read"] += 1

    def place_in(self, stream: str) -> Callable[[], millrace.StreamCut]:
        """Return what says how far it is in a stream."""
        return lambda: self.places[stream]

    def _take(self, value: str) -> None:
        if (found := Tag.parse(value)) is None:
            return
        tag = found[0]
        self.torn[tag] += 1
        if self.torn[tag] == tag.event_count:
            del self.torn[tag]
