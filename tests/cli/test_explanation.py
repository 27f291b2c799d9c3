import pytest

from millrace.cli.explanation import print_explanation
from tests.cli.conftest import Run

FACTS = {
    "stream": "shop/orders",
    "epoch": 3,
    "sealed": False,
    "size_bytes": 3 << 20,
    "policy": {
        "scaling": {"kind": "bytes", "target_per_s": 1048576.0, "factor": 2, "min_segments": 1},
        "retention": {
            "kind": "consumption", "min_bytes": 0, "max_bytes": 1 << 30, "min_age_s": 0.0, "max_age_s": None
        },
        "tags": ["winter"],
    },
    "segments": [
        {"segment_id": 7, "low": 0.0, "high": 0.5, "size_bytes": 1 << 20, "events_per_s": 1234.5,
         "bytes_per_s": 2097152.0, "remark": "hot for 4 s of 15 s"},
        {"segment_id": 8, "low": 0.5, "high": 1.0, "size_bytes": 2 << 20, "remark": ""},
    ],
    "scalings": [{"at_us": 1_795_257_259_851_805, "epoch": 3, "reason": "2.0 MiB/s, target 1.0 MiB/s"}],
    "truncations": [{"at_us": 1_795_257_259_851_805, "reason": "all cursors passed it", "size_bytes": 4096}],
    "retention": ["billing holds 1 MiB"],
    "cursors": [{"name": "billing", "saved_us": 1, "unread_bytes": 2 << 20, "holds_bytes": 1 << 20}],
}  # fmt: skip


def test_all_that_the_server_says_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    print_explanation(FACTS)
    out = capsys.readouterr().out

    for text in (
        "1.0 MiB/s a segment", "at most 1.0 GiB", "winter", "hot for 4 s of 15 s", "1.23 k/s", "2.0 MiB/s",
        "2.0 MiB/s, target 1.0 MiB/s", "all cursors passed it", "4.0 KiB", "billing holds 1 MiB",
    ):  # fmt: skip
        assert text in out
    (cursor,) = [line for line in out.splitlines() if line.startswith("billing ")]
    assert cursor.split()[-4:] == ["2.0", "MiB", "1.0", "MiB"]


def test_a_stream_that_does_nothing_by_itself_is_explained(ask: Run) -> None:
    ask("stream", "create", "explain/plain", "--segments", 2)

    shown = ask("stream", "explain", "explain/plain")

    assert shown.code == 0
    assert "fixed" in shown.out
    assert "everything, until it is truncated" in shown.out
    assert ask("stream", "explain", "explain/missing").code == 1


def test_the_cursor_that_holds_bytes_is_named(ask: Run) -> None:
    ask("stream", "create", "explain/held", "--retain-consumed")
    ask("cut", "save", "explain/held", "billing", "--cursor", "--at", "head")

    facts = ask("stream", "explain", "explain/held", "--json").json

    assert facts["policy"]["retention"]["kind"] == "consumption"
    assert [cursor["name"] for cursor in facts["cursors"]] == ["billing"]
