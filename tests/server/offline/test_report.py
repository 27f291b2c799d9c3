import json
import uuid

from millrace.server.offline.report import Report, Section, json_value, shown


def test_a_report_is_json_without_loss() -> None:
    report = Report(
        "chunk", "/x", {"size": 3, "raw": b"\x01"}, [Section("pages", "pages", ("page", "is"), [(0, "good")])]
    )

    assert json.loads(json.dumps(report.to_json())) == {
        "kind": "chunk", "path": "/x", "size": 3, "raw": "01", "pages": [{"page": 0, "is": "good"}],
        "problems": [], "notes": [],
    }  # fmt: skip


def test_what_a_limit_leaves_out_is_counted() -> None:
    whole, limited = Report("x", "x"), Report("x", "x", limit=4)
    for report in (whole, limited):
        report.add_table("rows", "rows", ("n",), [(number,) for number in range(10)])

    assert (len(whole.to_json()["rows"]), len(limited.to_json()["rows"])) == (10, 4)
    assert "rows_omitted" not in whole.to_json()
    assert limited.to_json()["rows_omitted"] == 6


def test_names_say_how_values_are_shown() -> None:
    assert shown("wall_time_us", 1_700_000_000_000_000) == "1700000000000000 (2023-11-14 22:13:20.000Z)"
    assert shown("checksum", 255) == "0x000000ff"
    assert shown("salt", 1 << 40) == "0x0000010000000000"
    assert shown("segments", [{"segment_id": 1}]) == '[{"segment_id": 1}]'
    assert shown("size", 5) == 5


def test_values_become_what_json_knows() -> None:
    server_id = uuid.UUID(int=1)

    assert json_value({"_io": 1, "id": server_id, "items": (memoryview(b"a"), None)}) == {
        "id": str(server_id),
        "items": ["61", None],
    }
