"""A place in a stream has the same words in every part, and what an error advises is accepted."""

import asyncio
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest

import millrace
from millrace.cli.main import main
from millrace.client import blocking
from millrace.client.testing import SETTINGS_SMALL, server
from millrace.model.cut import CHOICE_FORMS, chosen, chosen_time, parse_choice, parse_cut
from millrace.model.errors import CutOrderError, InvalidArgumentError
from millrace.model.quantities import parse_duration, parse_moment, parse_size
from millrace.model.slice import Slice
from millrace.spark_source.errors import OptionError
from millrace.spark_source.options import parse_options
from millrace.spark_source.planning import Planner
from tests.support.tables import table

STREAM = "shop/orders"
OLD = datetime(2020, 1, 31, 18, tzinfo=UTC)
COUNT = 20


@dataclass(frozen=True)
class Shop:
    """A sealed stream of events, one an append: ten of January 2020, a second apart, and ten of half an hour ago."""

    address: str
    console: str
    client: blocking.Client
    capsys: pytest.CaptureFixture[str]
    offsets: list[int]

    def index(self, cut: millrace.StreamCut) -> int:
        """Return how many events are before a cut."""
        ((_, place),) = cut.positions
        return self.offsets.index(place.offset)

    def run(self, *arguments: str) -> str:
        """Return what a command prints; raise what it refuses."""
        self.capsys.readouterr()
        code = main([*arguments, "--address", self.address])
        said = self.capsys.readouterr()
        if code:
            raise InvalidArgumentError(said.err)
        return said.out

    def filled(self, name: str) -> str:
        fill(self.client, name)
        return name


def fill(client: blocking.Client, name: str) -> None:
    """Make the stream, a bookmark before its sixth event, and a cursor before the eighth."""
    client.create_stream(name)
    recent = datetime.now(UTC) - timedelta(minutes=30)
    first = [OLD + timedelta(seconds=number) for number in range(10)]
    with client.writer(name) as writer:
        for number, moment in enumerate([*first, *(recent + timedelta(seconds=number) for number in range(10))]):
            writer.write_many([b"%d" % number], timestamps_us=int(moment.timestamp() * 1e6))
    client.bookmarks(name).save("the fifth; #1", client.stream_cut(name, after_events=5))
    client.cursors(name).set("billing", client.stream_cut(name, after_events=7))
    client.seal_stream(name)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, str, blocking.Client]]:
    settings = {**SETTINGS_SMALL, "MILLRACE_FEED_ORIGINS": "*"}
    with (
        server(settings=settings, console="127.0.0.1:0") as running,
        blocking.connect(running.address) as client,
    ):
        fill(client, STREAM)
        yield running.address, running.console_address, client


@pytest.fixture
def shop(served: tuple[str, str, blocking.Client], capsys: pytest.CaptureFixture[str]) -> Shop:
    client = served[2]
    with client.reader(STREAM, end=millrace.TAIL) as reader:
        offsets = [event.offset for event in reader]
    return Shop(*served, capsys, [*offsets, client.stream_info(STREAM).size_bytes])


def texts(shop: Shop, stream: str) -> dict[str, int]:
    """Return texts with the number of events before the place that each names."""
    return {
        "head": 0,
        " TAIL ": COUNT,
        str(shop.client.stream_cut(stream, after_events=5)): 5,
        "bookmark:the fifth; #1": 5,
        "cursor:billing": 7,
        "2020-01-31T18:00:05Z": 5,
        "2020-01-31T18:00:05": 5,
        "2020-01-31 19:00:05+01:00": 5,
        "2020-01-31": 0,
        "2020-02-01": 10,
        "1h ago": 10,
        str(int(OLD.timestamp() * 1e6) + 5_000_000): 5,
    }


def objects(shop: Shop, stream: str) -> dict[Any, int]:
    """Return what else Python has for places."""
    fifth = OLD + timedelta(seconds=5)
    return {
        millrace.HEAD: 0,
        millrace.TAIL: COUNT,
        shop.client.stream_cut(stream, after_events=5): 5,
        millrace.TimeCut.at(fifth): 5,
        fifth: 5,
        fifth.replace(tzinfo=None): 5,
        date(2020, 2, 1): 10,
        timedelta(hours=1): 10,
        int(fifth.timestamp() * 1e6): 5,
    }


Entry = Callable[[Shop, Any], int]


def read_from(shop: Shop, place: Any) -> int:
    with shop.client.reader(STREAM, start=place, end="tail") as reader:
        return shop.index(reader.position())


def read_to(shop: Shop, place: Any) -> int:
    with shop.client.reader(STREAM, end=place) as reader:
        return len(list(reader))


def read_several(shop: Shop, place: Any) -> int:
    with shop.client.reader([STREAM], start=place, end="tail") as reader:
        return shop.index(reader.positions()[STREAM])


def read_each(shop: Shop, place: Any) -> int:
    with shop.client.reader([STREAM], start={STREAM: "head"}, end={STREAM: place}) as reader:
        return len(list(reader))


def read_slice(shop: Shop, place: Any) -> int:
    with shop.client.reader(Slice.parse(str(Slice(STREAM, place)))) as reader:
        return shop.index(reader.position())


def plan(shop: Shop, place: Any) -> int:
    ranges = shop.client.plan_ranges(STREAM, start=place, end="tail")
    return shop.offsets.index(ranges[0].start_offset) if ranges else COUNT


def count_after(shop: Shop, place: Any) -> int:
    return shop.index(shop.client.stream_cut(STREAM, after_events=0, start=place))


def distance(shop: Shop, place: Any) -> int:
    return shop.client.distance("head", place, stream=STREAM).events


def save(shop: Shop, place: Any) -> int:
    return shop.index(shop.client.bookmarks(STREAM).save("copy", place))


def save_when(shop: Shop, place: Any) -> int:
    return shop.index(shop.client.bookmarks(STREAM).save_when("copy", lambda _: True, start=place, end="tail"))


def set_cursor(shop: Shop, place: Any) -> int:
    return shop.index(shop.client.cursors(STREAM).set("copy", place))


def advance(shop: Shop, place: Any) -> int:
    """Where the cursor is and where it goes are the same place: so the commit moves it, if it was found."""
    shop.client.create_stream("shop/ledger")
    cursors = shop.client.cursors(STREAM)
    cursors.forget("copy")
    for expected in (None, place):
        with shop.client.transaction("shop/ledger") as transaction:
            transaction.advance(STREAM, "copy", place, expected=expected)
    cut = cursors.get("copy")
    assert cut is not None
    return shop.index(cut)


def truncate(shop: Shop, place: Any) -> int:
    name = _copied(shop, place)
    return shop.index(shop.client.truncate_stream(name, _for_copy(shop, place, name)).head())


def command_read_from(shop: Shop, place: str) -> int:
    return COUNT - len(shop.run("read", STREAM, "--from", place).splitlines())


def command_read_to(shop: Shop, place: str) -> int:
    return len(shop.run("read", STREAM, "--to", place).splitlines())


def command_read_slice(shop: Shop, place: str) -> int:
    return COUNT - len(shop.run("read", str(Slice(STREAM, place))).splitlines())


def command_tail(shop: Shop, place: str) -> int:
    return COUNT - len(shop.run("tail", STREAM, "--from", place).splitlines())


def command_save(shop: Shop, place: str) -> int:
    return shop.index(parse_cut_of(shop.run("cut", "save", STREAM, "copy", "--at", place)))


def command_truncate(shop: Shop, place: str) -> int:
    name = _copied(shop, place)
    shop.run("stream", "truncate", name, _for_copy(shop, place, name))
    return shop.index(shop.client.stream_info(name).head())


def spark_start(shop: Shop, place: str) -> int:
    return shop.index(_spark_bounds(shop, stream=STREAM, startCut=place)[0])


def spark_end(shop: Shop, place: str) -> int:
    return shop.index(_spark_bounds(shop, stream=STREAM, endCut=place)[1])


def spark_slice(shop: Shop, place: str) -> int:
    return shop.index(_spark_bounds(shop, slice=str(Slice(STREAM, place)))[0])


def over_http(shop: Shop, place: str) -> int:
    url = f"http://{shop.console}/streams/{STREAM}/events?from={quote(place)}"
    try:
        with urllib.request.urlopen(url) as answer:
            content: str = answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            raise InvalidArgumentError(json.loads(error.read())["error"]) from None
    return COUNT - content.count('"value":')


OF_TEXT: tuple[Entry, ...] = (
    command_read_from, command_read_to, command_read_slice, command_tail, command_save, command_truncate,
    spark_start, spark_end, spark_slice, over_http,
)  # fmt: skip
OF_PYTHON: tuple[Entry, ...] = (
    read_from, read_to, read_several, read_each, read_slice, plan, count_after, distance, save, save_when, set_cursor,
    advance, truncate,
)  # fmt: skip


@pytest.mark.parametrize("entry", [*OF_PYTHON, *OF_TEXT], ids=lambda entry: entry.__name__)
def test_every_part_takes_the_same_words(shop: Shop, entry: Entry) -> None:
    wanted: dict[Any, int] = texts(shop, STREAM)
    if entry in OF_PYTHON:
        wanted |= objects(shop, STREAM)

    assert {place: entry(shop, place) for place in wanted} == wanted
    with pytest.raises((InvalidArgumentError, OptionError)) as refused:
        entry(shop, "yesterday")
    assert CHOICE_FORMS in str(refused.value)


def test_a_cut_at_a_time_takes_every_word_for_a_time(shop: Shop) -> None:
    words = {**texts(shop, STREAM), **objects(shop, STREAM)}
    times = {place: count for place, count in words.items() if isinstance(chosen(place), TIMES)}

    assert len(times) >= 12
    assert {place: shop.index(shop.client.stream_cut(STREAM, at_time=place)) for place in times} == times


TIMES = (millrace.TimeCut, type(parse_choice("15m ago")))


# --- advice ---


def advised(message: str) -> list[str]:
    """Return what a message says to write."""
    advice = re.sub(r"\([^)]*\)", "", message.partition(" write ")[2])
    return [re.sub(r"^(or )?((a cut|one) like )?", "", part).strip() for part in re.split(r", | or ", advice)]


@table(
    ("read", "wrong", "count"),
    [
        (parse_choice, "yesterday", 9),
        (parse_cut, "yesterday", 1),
        (parse_cut, "shop/orders@12", 1),
        (chosen, 1.5, 9),
        (chosen_time, "head", 3),
        (Slice.parse, "shop/orders", 2),
        (parse_duration, "soon", 5),
        (parse_moment, "soon", 1),
        (parse_size, "much", 4),
    ],
)
def test_what_an_error_says_to_write_is_accepted(read: Callable[[Any], Any], wrong: Any, count: int) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        read(wrong)
    forms = advised(str(refused.value))

    assert len(forms) == count
    for form in forms:
        read(form)


@table(
    ("option", "value"),
    [
        ("startingOffsets", "earliest"),
        ("startingOffsets", "latest"),
        ("endingTimestamp", "1580493600000"),
        ("startingOffsets", '{"orders": {"0": 23}}'),
        ("startingTimestamp", "soon"),
    ],
)
def test_what_the_options_of_kafka_are_told_is_accepted(option: str, value: str) -> None:
    given = {"address": "127.0.0.1:9240", "stream": STREAM}
    with pytest.raises(OptionError) as refused:
        parse_options({**given, option: value})
    (advice,) = re.findall(r"write (\w+)=(\S+?)(?:,|$)", str(refused.value))

    parse_options({**given, advice[0]: advice[1]})


def test_a_place_that_is_not_there_names_a_command_that_works(shop: Shop) -> None:
    for entry in (read_from, command_read_from):
        with pytest.raises(InvalidArgumentError) as refused:
            entry(shop, "bookmark:none")
        (command,) = re.findall(r"`millrace ([^`]*)`", str(refused.value))
        assert "billing" in shop.run(*command.split())


def test_a_truncated_place_names_places_that_can_be_read(shop: Shop) -> None:
    name = shop.filled("shop/short")
    first = shop.client.stream_info(name).head()
    shop.client.truncate_stream(name, "bookmark:the fifth; #1")
    with pytest.raises(millrace.CutTruncatedError) as refused:
        shop.client.distance(first, "tail")
    (places,) = re.findall("start at (.*), to continue", str(refused.value))

    for place in re.split(", or at ", places):
        assert shop.client.distance(place, "tail", stream=name).events == COUNT - 5


def test_reversed_places_can_be_swapped(shop: Shop) -> None:
    for start, end in (("tail", "head"), ("1h ago", "2020-01-31")):
        with pytest.raises(CutOrderError, match="swap them"):
            shop.client.plan_ranges(STREAM, start=start, end=end)
        shop.client.plan_ranges(STREAM, start=end, end=start)


def test_a_time_in_the_future_is_no_time_ago(shop: Shop) -> None:
    with pytest.raises(InvalidArgumentError, match=r"as timedelta\(minutes=15\)"):
        read_from(shop, timedelta(minutes=-15))
    assert read_from(shop, timedelta(minutes=15)) == COUNT


# --- inside ---


def parse_cut_of(text: str) -> millrace.StreamCut:
    return millrace.StreamCut.parse(text.strip())


def _copied(shop: Shop, place: Any) -> str:
    """Return the name of another stream of the same events: what is truncated is not there for the next word."""
    return "shop/none" if place == "yesterday" else shop.filled(f"shop/copy-{time.monotonic_ns()}")


def _for_copy(shop: Shop, place: Any, name: str) -> Any:
    if STREAM not in str(place):
        return place
    cut = shop.client.stream_cut(name, after_events=5)
    return str(cut) if isinstance(place, str) else cut


def _spark_bounds(shop: Shop, **options: str) -> tuple[millrace.StreamCut, millrace.StreamCut]:
    parsed = parse_options({"address": shop.address, **options})

    async def ask() -> tuple[millrace.StreamCut, millrace.StreamCut]:
        async with millrace.connect(shop.address) as client:
            return (await Planner(client, parsed).bounds())[1][STREAM]

    return asyncio.run(ask())
