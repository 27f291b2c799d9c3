import io
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.many_commits import as_table, measure


@pytest.mark.slow
def test_a_few_commits_are_measured_as_many_are(tmp_path: Path) -> None:
    first, second = measure(tmp_path, 200, outcomes=1000)

    assert (first["transactions"], second["transactions"]) == (100, 200)
    assert first["segments"] == second["segments"] == 1
    assert all(value > 0 for name, value in second.items() if name != "links")

    output = io.StringIO()
    Console(width=100, file=output).print(as_table(first, second, count=200))
    assert "200 commits of one event to one segment" in output.getvalue()
