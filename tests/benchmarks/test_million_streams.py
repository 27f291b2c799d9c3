import io
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress

from benchmarks.million_streams import as_table, measure


@pytest.mark.slow
def test_a_few_streams_are_measured_as_a_million_are(tmp_path: Path) -> None:
    with Progress(disable=True) as progress:
        found = measure(tmp_path, 60, events=3, progress=progress)

    assert (found["streams"], found["events"]) == (60, 3)
    assert all(found[name] > 0 for name in found)
    assert found["resident_peak_mb"] >= found["resident_mb"] > found["empty_resident_mb"] / 2

    output = io.StringIO()
    Console(width=100, file=output).print(as_table(found))
    text = output.getvalue()
    assert "60 idle streams" in text
    # Only what has a limit is put beside it.
    with_ratio = [line.split()[1] for line in text.splitlines() if line.count("│") >= 3 and line.split("│")[-2].strip()]
    assert with_ratio == [name for name in found if name in LIMITED]


LIMITED = {
    "resident_mb", "resident_peak_mb", "start_after_kill_s", "resident_after_kill_mb", "start_s",
    "resident_after_start_mb",
}  # fmt: skip
