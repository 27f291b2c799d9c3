import runpy
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "build_metrics.py"


def test_the_page_of_metrics_is_what_a_server_says() -> None:
    """If it is not: `python docs/build_metrics.py`."""
    built = runpy.run_path(str(SCRIPT))

    assert built["PAGE"].read_text(encoding="utf-8") == built["page"]()
