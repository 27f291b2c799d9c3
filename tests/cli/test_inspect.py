"""What the inspector says about files of a real server is what the server was told."""

from pathlib import Path

import pytest

from millrace.cli.inspect import print_report
from millrace.server.offline.inspect_path import inspect_path
from millrace.server.offline.report import Report
from millrace.wire.schema.log import LogFileHeader
from tests.cli.conftest import Run


def log_file(folder: Path) -> Path:
    return folder / "containers" / "0000" / "wal" / "wal-0000000000000001.log"


def chunk_of(folder: Path, segment_id: int) -> Path:
    (path,) = (folder / "tier2").rglob(f"{segment_id:016x}-*.chunk")
    return path


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def test_a_log_file_is_shown_batch_by_batch(run: Run, killed_folder: Path) -> None:
    shown = run("inspect", log_file(killed_folder), "--json").json

    assert shown["kind"] == "log file"
    assert (shown["file_number"], shown["container_id"], shown["ending"]) == (1, 0, "zeroed")
    holds = [batch["holds"] for batch in shown["batches"]]
    assert holds[0] == "SEGMENT_CREATED"
    assert holds[1:4] == ["segment 1 [0, 1000)", "segment 1 [1000, 2000)", "segment 1 [2000, 3000)"]
    assert holds[4:6] == ["STREAM_CREATED", "WRITER_RECORDED"]
    assert [batch["events"] for batch in shown["batches"][6:]] == [10, 10]
    assert [batch["sequence"] for batch in shown["batches"]] == list(range(1, shown["batch_count"] + 1))


def test_a_limit_says_what_it_leaves_out(run: Run, killed_folder: Path) -> None:
    shown = run("inspect", log_file(killed_folder), "--json", "--limit", 3).json

    assert len(shown["batches"]) == 3
    assert shown["batches_omitted"] == shown["batch_count"] - 3
    assert "more (--limit 0 shows all)" in run("inspect", log_file(killed_folder), "--limit", 3).out


def test_a_place_in_a_log_file_can_be_looked_at(run: Run, killed_folder: Path) -> None:
    batches = run("inspect", log_file(killed_folder), "--json").json["batches"]

    shown = run("inspect", log_file(killed_folder), "--json", "--at", batches[2]["offset"], "--limit", 1).json

    assert shown["batches"] == [batches[2]]


def test_hex_lays_out_every_structure_of_a_batch(run: Run, killed_folder: Path) -> None:
    path = log_file(killed_folder)
    data = path.read_bytes()

    shown = run("inspect", path, "--json", "--hex").json

    header = {field["field"]: field for field in shown["header"]}
    assert [field["field"] for field in shown["header"]] == [subcon.name for subcon in LogFileHeader.subcons]
    assert header["magic"]["value"] == "MRWL"
    created = {field["field"]: field for field in shown["batch_1_run_0_frame_0"]}
    assert created["name"]["value"] == "raw/a"
    appended = {field["field"]: field for field in shown["batch_2_run_0_frame_0"]}
    assert (appended["segment_id"]["value"], appended["payload"]["size"]) == (1, 1000)
    block = {field["field"]: field for field in shown["batch_7_run_0_frame_0"]}
    assert (block["block.magic"]["value"], block["block.event_count"]["value"]) == ("MRBK", 10)
    for name, fields in shown.items():
        if name.startswith("batch_") and name != "batch_count":
            for field in fields:
                raw = bytes.fromhex(field["hex"].partition(" ...")[0].replace(" ", ""))
                assert data[field["offset"] : field["offset"] + len(raw)] == raw


def test_a_log_file_under_another_name_is_shown_too(run: Run, killed_folder: Path, tmp_path: Path) -> None:
    copy = log_file(killed_folder).rename(tmp_path / "copy")

    assert run("inspect", copy).code == 0


def test_damage_in_a_log_file_is_named(run: Run, killed_folder: Path) -> None:
    path = log_file(killed_folder)
    batch = run("inspect", path, "--json").json["batches"][1]
    flip(path, batch["offset"] + batch["size"] - 1)

    outcome = run("inspect", path, "--json")

    assert outcome.code == 1
    (problem,) = outcome.json["problems"]
    assert f"byte {batch['offset']}, " in problem
    assert "lost: segment 1 [0, 1000)" in problem
    assert outcome.json["ending"] == "corrupt"


def test_the_name_of_the_newest_log_file_is_shown(run: Run, killed_folder: Path) -> None:
    salt = run("inspect", log_file(killed_folder), "--json").json["salt"]
    path = log_file(killed_folder).with_name("newest")

    shown = run("inspect", path, "--json").json
    folder = run("inspect", killed_folder, "--json").json

    assert (shown["newest"], shown["salt"], shown["problems"]) == (log_file(killed_folder).name, salt, [])
    assert [row["field"] for row in shown["slot_0"]] == [
        "magic", "version", "reserved", "file_number", "salt", "checksum",
    ]  # fmt: skip
    assert folder["newest_log_file"] == f"{log_file(killed_folder).name}, salt {salt}"


def test_a_damaged_name_of_the_newest_log_file_is_shown(run: Run, killed_folder: Path) -> None:
    path = log_file(killed_folder).with_name("newest")
    flip(path, 10)

    assert run("inspect", path, "--json").json["problems"] == ["no slot matches its checksum"]
    folder = run("inspect", killed_folder, "--json").json
    assert folder["newest_log_file"] == "not named"
    assert any("the newest log file is not named" in problem for problem in folder["problems"])


def test_a_chunk_is_shown_with_index_pages_and_blocks(run: Run, stopped_folder: Path) -> None:
    paths = sorted((stopped_folder / "tier2").rglob("*.chunk"))
    shown = [run("inspect", path, "--json").json for path in paths]

    raw, *of_stream = shown
    assert (raw["segment_id"], raw["start_offset"], raw["length"], raw["end_events"]) == (1, 0, 3000, 3)
    assert raw["index"][0]["segment offset"] == 0
    assert [page["is"] for page in raw["pages"]] == ["good"]
    assert "blocks" not in raw
    assert [[block["events"] for block in chunk["blocks"]] for chunk in of_stream] == [[10], [10]]
    assert all("keys" in chunk["blocks"][0]["has"] for chunk in of_stream)


def test_hex_dumps_the_payload_of_a_chunk(run: Run, stopped_folder: Path) -> None:
    shown = run("inspect", chunk_of(stopped_folder, 1), "--json", "--hex", "--at", 1000).json

    assert shown["payload"][0] == {"offset": 96 + 1000, "hex": "62626262 62626262 62626262 62626262", "text": "b" * 16}


@pytest.mark.parametrize(
    ("offset", "problem"),
    [
        (0, "byte 0: the summary does not match its checksum"),
        (96, "page 0 does not match its checksum; segment offsets [0, 3000) are refused"),
        (96 + 3000, "the index does not match its checksum"),
        (-1, "the summary at the end does not match its checksum"),
    ],
)
def test_damage_in_a_chunk_is_named(run: Run, stopped_folder: Path, offset: int, problem: str) -> None:
    path = chunk_of(stopped_folder, 1)
    flip(path, offset)

    outcome = run("inspect", path, "--json")

    assert outcome.code == 1
    assert problem in "\n".join(outcome.json["problems"])


def test_a_checkpoint_is_shown_table_by_table(run: Run, stopped_folder: Path) -> None:
    path = stopped_folder / "containers" / "0000" / "checkpoint.db"
    before = path.read_bytes()

    outcome = run("inspect", path, "--json")

    assert [segment["name"] for segment in outcome.json["segments"]] == ["raw/a", "shop/orders#0.0", "shop/orders#0.1"]
    assert outcome.json["writers"][0]["writer_id"] == "till-7"
    assert sum(chunk["length"] for chunk in outcome.json["chunks"] if chunk["segment_id"] == 1) == 3000
    assert path.read_bytes() == before


def test_a_damaged_row_of_a_checkpoint_is_named(run: Run, stopped_folder: Path) -> None:
    path = stopped_folder / "containers" / "0000" / "checkpoint.db"
    flip(path, path.read_bytes().index(b"till-7"))

    outcome = run("inspect", path, "--json")

    assert outcome.code == 1
    assert any("a row of writers does not match its checksum" in problem for problem in outcome.json["problems"])


def test_a_file_that_is_no_checkpoint_any_more_is_told(run: Run, stopped_folder: Path) -> None:
    path = stopped_folder / "containers" / "0000" / "checkpoint.db"
    path.write_bytes(b"\xff" * 4096)

    assert run("inspect", path).code == 1


def test_a_data_folder_is_shown_with_the_place_of_every_byte(
    run: Run, killed_folder: Path, stopped_folder: Path
) -> None:
    in_log = {row["segment"]: row for row in run("inspect", killed_folder, "--json").json["segments"]}
    in_chunks = {row["segment"]: row for row in run("inspect", stopped_folder, "--json").json["segments"]}

    assert (in_log["raw/a"]["in tier 2"], in_log["raw/a"]["only in the log"]) == (0, 3000)
    assert (in_chunks["raw/a"]["in tier 2"], in_chunks["raw/a"]["only in the log"]) == (3000, 0)
    assert [row["events"] for row in in_chunks.values()] == [3, 10, 10]


def test_something_else_is_wrong_usage(run: Run, tmp_path: Path) -> None:
    other = tmp_path / "letter.txt"
    other.write_text("Dear Sir or Madam")

    assert run("inspect", other).code == 2
    assert run("inspect", tmp_path).code == 2


def test_any_cut_of_a_file_is_shown_as_far_as_it_goes(
    killed_folder: Path, stopped_folder: Path, tmp_path: Path
) -> None:
    for path in (log_file(killed_folder), log_file(killed_folder).with_name("newest"), chunk_of(stopped_folder, 1)):
        data = path.read_bytes()
        for size in (1, 3, 8, 63, 64, 79, 80, 200, 4095, 4096, 4200):
            cut = tmp_path / path.name
            cut.write_bytes(data[:size])

            assert inspect_path(cut, with_hex=True).to_json()["path"] == str(cut)


def test_problems_and_notes_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(Report("chunk", "/x", problems=["page 3"], notes=["moving"]), as_json=False)

    out = capsys.readouterr().out
    assert "problem: page 3" in out
    assert "moving" in out
