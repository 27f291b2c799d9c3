"""What the demo shows on a terminal, and elsewhere."""

import pytest

from millrace.examples.demo.screen import Bars, Screen
from millrace.model.key_range import KEY_SPACE, KeyRange
from millrace.model.lineage import Epoch

HALF = KEY_SPACE // 2
EPOCHS = [
    Epoch(
        number=0, started_us=1_000_000, cause="created", sealed_ids=(), created=((1, KeyRange(0, KEY_SPACE)),)
    ),
    Epoch(
        number=1,
        started_us=3_000_000,
        cause="split: hot",
        sealed_ids=(1,),
        created=((2, KeyRange(0, HALF)), (3, KeyRange(HALF, KEY_SPACE))),
    ),
]  # fmt: skip
NEWEST = [("2010-03-01 14:00", "KSEA 14h", "51.2", "1.9 ms")]


def draw(screen: Screen) -> None:
    bars = Bars(["acknowledged", "results"], total=1200)
    bars.move([700, 300])
    with screen.changing():
        screen.frame(bars, EPOCHS, NEWEST)
        screen.moment("killed")


@pytest.mark.parametrize("lines", [60, 16])
def test_a_terminal_shows_bars_segments_and_the_newest_events(
    lines: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one with few lines as much of the picture as fits, the newest part."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", str(lines))

    draw(Screen(is_quiet=False))

    shown = capsys.readouterr().out
    for piece in ("acknowledged", "700/1200", "300/1200", "KSEA 14h", "1.9 ms", "1 split", "killed"):
        assert piece in shown


def test_elsewhere_there_are_lines_only(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(is_quiet=False)

    draw(screen)
    screen.picture(EPOCHS)

    shown = capsys.readouterr().out
    assert "700/1200" not in shown
    assert "s  killed" in shown
    assert "1 split" in shown
    assert shown.rstrip().endswith("end")


def test_a_quiet_one_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(is_quiet=True)

    draw(screen)
    screen.title("1. A server", "somewhere")
    screen.table(("a",), [(1,)])
    screen.picture(EPOCHS)
    screen.commands([("millrace doctor", "what your disk does")])

    assert capsys.readouterr().out == ""
