"""What the proof of the demo says of streams in which something is wrong, and of those in which nothing is."""

from millrace.examples.demo.data import Reading
from millrace.examples.demo.proof import Item, Proof, converted_item, prove, written_item
from tests.support.tables import table

WRITTEN = [Item("a", 1, 0.5), Item("b", 1, 0.5), Item("a", 2, 0.5), Item("b", 3, 0.25)]


def proof(*found: Item) -> Proof:
    return prove("demo/stream", WRITTEN, found)


def test_all_events_once_in_any_order_of_the_keys_is_proved() -> None:
    assert proof(*WRITTEN).holds
    assert proof(*sorted(WRITTEN)).holds


@table(
    ("found", "once", "missing", "extra", "misplaced"),
    [
        (WRITTEN[1:], 3, 1, 0, 0),
        ([], 0, 4, 0, 0),
        ([*WRITTEN, WRITTEN[-1]], 3, 0, 1, 0),
        ([*WRITTEN, WRITTEN[0]], 3, 0, 1, 1),
        ([*WRITTEN[:3], WRITTEN[3]._replace(value=0.26)], 3, 1, 1, 0),
        ([*WRITTEN[:3], WRITTEN[3]._replace(key="a")], 3, 1, 1, 0),
        (WRITTEN[::-1], 4, 0, 0, 2),
        ([WRITTEN[0], *WRITTEN[:3]], 2, 1, 1, 0),
    ],
)
def test_what_is_wrong_is_counted(found: list[Item], once: int, missing: int, extra: int, misplaced: int) -> None:
    seen = proof(*found)

    assert not seen.holds
    assert (seen.expected, seen.once, seen.missing, seen.extra, seen.misplaced) == (4, once, missing, extra, misplaced)


def test_a_reading_is_of_the_series_of_its_hour() -> None:
    noon = Reading("KSEA", 1_262_304_000_000_000 + 12 * 3_600_000_000, 41.0)

    assert written_item(noon) == ("KSEA 12h", noon.timestamp_us, 41.0)
    assert converted_item(noon) == ("KSEA 12h", noon.timestamp_us, 5.0)
