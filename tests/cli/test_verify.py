"""Behaviour 41 as `verify` sees it: whatever is damaged is named, with file and offset, and nothing is changed."""

import asyncio
import json
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import millrace
from millrace.client.testing import server
from millrace.model.exclusive_writer import ExclusiveWriter
from millrace.model.producer import Producer, ProducerRow
from millrace.server.app import Server
from millrace.server.container.checkpoint.backup import CopyPart, encode_part
from millrace.server.folder import FORMAT_VERSION
from millrace.server.kinds.producers.row import KnownProducer
from millrace.server.offline.container import copied_checkpoint, opened_checkpoint
from millrace.server.offline.findings import Verification
from millrace.server.offline.verification import verify_folder
from millrace.server.wal import LogOwner
from millrace.wire import messages as m
from millrace.wire.append_run import Sequences
from tests.cli.conftest import Run
from tests.cli.test_inspect import chunk_of, flip, log_file
from tests.support.data_folders import SMALL_LOG
from tests.support.internal import internal_segment
from tests.support.protocol import Peer
from tests.support.servers import server_options
from tests.support.transactions import PeerTransaction, create_stream

Verify = Callable[[Path], list[dict[str, Any]]]


@pytest.fixture
def verify(run: Run) -> Verify:
    """Return the findings of `verify`, whose exit code must agree."""

    def findings(folder: Path) -> list[dict[str, Any]]:
        outcome = run("verify", folder, "--json")
        assert outcome.code == (1 if outcome.json["findings"] else 0)
        assert outcome.json["ok"] == (not outcome.json["findings"])
        return list(outcome.json["findings"])

    return findings


def batch(run: Run, folder: Path, index: int) -> dict[str, Any]:
    return dict(run("inspect", log_file(folder), "--json").json["batches"][index])


def test_sound_folders_have_no_findings(verify: Verify, killed_folder: Path, stopped_folder: Path) -> None:
    assert verify(killed_folder) == []
    assert verify(stopped_folder) == []


def test_what_was_checked_is_told(run: Run, stopped_folder: Path) -> None:
    outcome = run("verify", stopped_folder)

    assert "3 segments" in outcome.out
    assert "3 chunks" in outcome.out
    assert "no damage found" in outcome.out


def test_verifying_changes_no_file(verify: Verify, stopped_folder: Path) -> None:
    flip(chunk_of(stopped_folder, 1), 100)
    before = {path: path.read_bytes() for path in stopped_folder.rglob("*") if path.is_file()}

    verify(stopped_folder)

    assert {path: path.read_bytes() for path in stopped_folder.rglob("*") if path.is_file()} == before


def test_a_flipped_bit_in_the_log_is_named_with_what_it_cost(verify: Verify, run: Run, killed_folder: Path) -> None:
    """Behaviour 41: in the middle of the log."""
    hit = batch(run, killed_folder, 2)
    flip(log_file(killed_folder), hit["offset"] + hit["size"] - 1)

    (finding,) = verify(killed_folder)

    assert finding["file"] == "containers/0000/wal/wal-0000000000000001.log"
    assert (finding["offset"], finding["size"]) == (hit["offset"], hit["size"])
    assert finding["lost"] == "raw/a [1000, 2000)"


def test_damage_in_the_log_of_what_tier_2_has_costs_nothing(verify: Verify, run: Run, stopped_folder: Path) -> None:
    hit = batch(run, stopped_folder, 2)
    flip(log_file(stopped_folder), hit["offset"] + hit["size"] - 1)

    (finding,) = verify(stopped_folder)

    assert finding["offset"] == hit["offset"]
    assert "tier 2 has it" in finding["lost"]


def test_a_flipped_length_in_the_log_is_found(verify: Verify, run: Run, killed_folder: Path) -> None:
    """Behaviour 41: in a length field."""
    hit = batch(run, killed_folder, 2)
    flip(log_file(killed_folder), hit["offset"] + 4)

    assert [finding["offset"] for finding in verify(killed_folder)] == [hit["offset"]]


def test_a_torn_end_is_no_damage_but_a_note(verify: Verify, run: Run, killed_folder: Path) -> None:
    """Behaviour 39: what was never acknowledged is not missed."""
    last = batch(run, killed_folder, -1)
    path = log_file(killed_folder)
    data = bytearray(path.read_bytes())
    data[last["offset"] + last["size"] - 100 : last["offset"] + last["size"]] = bytes(100)
    path.write_bytes(data)

    assert verify(killed_folder) == []
    assert "was never acknowledged" in " ".join(run("verify", killed_folder).err.split())


@pytest.mark.parametrize("offset", [96 + 10, 0, 96 + 3000, -1])
def test_a_flipped_bit_in_a_chunk_is_named(verify: Verify, stopped_folder: Path, offset: int) -> None:
    """Behaviour 41: in a page, in either summary, in the index."""
    path = chunk_of(stopped_folder, 1)
    size = path.stat().st_size
    flip(path, offset)

    (finding,) = verify(stopped_folder)

    assert finding["file"] == path.relative_to(stopped_folder).as_posix()
    assert finding["offset"] == {106: 96, 0: 0, 3096: 3096, -1: size - 96}[offset]


def test_a_flipped_bit_in_the_checkpoint_is_found(verify: Verify, stopped_folder: Path) -> None:
    path = stopped_folder / "containers" / "0000" / "checkpoint.db"
    flip(path, path.read_bytes().index(b"till-7"))

    (finding,) = verify(stopped_folder)

    assert finding["file"] == "containers/0000/checkpoint.db"


@pytest.mark.parametrize("is_missing", [False, True])
def test_a_copy_in_tier_2_takes_the_place_of_a_lost_checkpoint(
    verify: Verify, run: Run, stopped_folder: Path, is_missing: bool
) -> None:
    """Behaviour 41: derived files are rebuilt, and what hangs on them is checked all the same."""
    path = stopped_folder / "containers" / "0000" / "checkpoint.db"
    copies = stopped_folder / "tier2" / "c0000" / "checkpoints"
    copies.mkdir()
    with opened_checkpoint(copied_checkpoint(path), owner=None) as (_, checkpoint):
        assert checkpoint is not None
        sequence, epoch, replay_from = checkpoint.version
    owner = LogOwner(0, uuid.UUID(json.loads((stopped_folder / "identity.json").read_text())["server_id"]))
    good, bad = (CopyPart(each, epoch, 1, 0, 1) for each in (sequence, sequence + 1))
    pieces = encode_part(good, path.read_bytes(), replay_from=replay_from, owner=owner)
    (copies.parent / good.name).write_bytes(b"".join(pieces))
    pieces = encode_part(bad, b"SQLite format 3\0" + bytes(5000), replay_from=replay_from, owner=owner)
    (copies.parent / bad.name).write_bytes(b"".join(pieces))
    path.unlink() if is_missing else flip(path, 100)
    chunk_of(stopped_folder, 1).unlink()

    findings = verify(stopped_folder)

    files = [finding["file"] for finding in findings]
    assert files[0] == "containers/0000/checkpoint.db"
    assert f"tier2/c0000/{bad.name}" in files
    assert findings[-1]["lost"] == "raw/a [0, 3000)"
    assert f"restores it from tier2/c0000/{good.copy_name}" in " ".join(run("verify", stopped_folder).err.split())


def test_a_missing_chunk_is_named_with_what_it_held(verify: Verify, stopped_folder: Path) -> None:
    path = chunk_of(stopped_folder, 1)
    path.unlink()

    (finding,) = verify(stopped_folder)

    assert finding["file"] == path.relative_to(stopped_folder).as_posix()
    assert finding["lost"] == "raw/a [0, 3000)"


def test_a_chunk_that_was_cut_is_found(verify: Verify, stopped_folder: Path) -> None:
    path = chunk_of(stopped_folder, 1)
    path.write_bytes(path.read_bytes()[:-10])

    assert {finding["file"] for finding in verify(stopped_folder)} == {path.relative_to(stopped_folder).as_posix()}


def test_a_chunk_under_the_name_of_another_is_found(verify: Verify, stopped_folder: Path) -> None:
    one, other = sorted((stopped_folder / "tier2").rglob("*.chunk"))[1:]
    assert one.stat().st_size != other.stat().st_size
    one.write_bytes(other.read_bytes())

    findings = verify(stopped_folder)

    assert any("the file holds" in finding["what"] and finding["lost"] for finding in findings)


def test_an_orphan_chunk_is_a_note(verify: Verify, run: Run, stopped_folder: Path) -> None:
    path = chunk_of(stopped_folder, 1)
    orphan = path.with_name(path.name.replace("-00000001.chunk", "-00000009.chunk"))
    data = bytearray(path.read_bytes())
    orphan.write_bytes(data)

    outcome = run("verify", stopped_folder, "--json").json

    assert any("belong to no segment" in note for note in outcome["notes"])


def test_a_lost_log_is_found(verify: Verify, stopped_folder: Path, killed_folder: Path) -> None:
    for folder in (stopped_folder, killed_folder):
        for path in log_file(folder).parent.iterdir():
            path.unlink()

        assert any("log" in finding["what"] for finding in verify(folder))


def test_a_lost_newest_log_file_is_found(verify: Verify, killed_folder: Path) -> None:
    """Behaviour 82."""
    log_file(killed_folder).unlink()

    findings = verify(killed_folder)

    assert ("containers/0000/wal/wal-0000000000000001.log", "this file is missing, the newest of the log") in [
        (finding["file"], finding["what"]) for finding in findings
    ]
    assert "its content is unknown" in findings[0]["lost"]


def test_a_damaged_name_of_the_newest_log_file_is_found(verify: Verify, killed_folder: Path) -> None:
    path = log_file(killed_folder).with_name("newest")
    flip(path, 10)

    (finding,) = verify(killed_folder)

    assert (finding["file"], finding["what"]) == ("containers/0000/wal/newest", "the newest log file is not named")


def test_a_log_of_another_server_is_found(verify: Verify, stopped_folder: Path, killed_folder: Path) -> None:
    (stopped_folder / "identity.json").write_text((killed_folder / "identity.json").read_text())

    assert any("belongs to" in finding["what"] for finding in verify(stopped_folder))


def test_a_damaged_identity_is_found(verify: Verify, stopped_folder: Path) -> None:
    (stopped_folder / "identity.json").write_text("{")

    assert [finding["file"] for finding in verify(stopped_folder)] == ["identity.json"]


def test_a_folder_of_a_newer_version_is_refused(run: Run, stopped_folder: Path) -> None:
    """Behaviour 47: both versions named."""
    identity = json.loads((stopped_folder / "identity.json").read_text())
    (stopped_folder / "identity.json").write_text(json.dumps({**identity, "format_version": FORMAT_VERSION + 1}))

    outcome = run("verify", stopped_folder)

    assert outcome.code == 1
    assert f"format {FORMAT_VERSION + 1}" in outcome.err
    assert f"this version knows format {FORMAT_VERSION} only" in outcome.err


def test_another_folder_is_refused(run: Run, tmp_path: Path) -> None:
    outcome = run("verify", tmp_path)

    assert outcome.code == 1
    assert "is not a data folder" in outcome.err


@pytest.mark.slow
def test_any_flipped_bit_is_found_and_nothing_else_is_blamed(run: Run, stopped_folder: Path) -> None:
    """Behaviour 41: wherever it is, in all of every chunk and in every batch of the log that others follow."""
    log = log_file(stopped_folder)
    batches = run("inspect", log, "--json").json["batches"][:-1]
    used = [offset for batch in batches for offset in range(batch["offset"], batch["offset"] + batch["size"])]
    places = [(log, offset) for offset in (*range(64), *used)]
    for path in sorted((stopped_folder / "tier2").rglob("*.chunk")):
        places += [(path, offset) for offset in range(path.stat().st_size)]

    for path, offset in places[::79]:
        flip(path, offset)
        findings = Verification.of(verify_folder(stopped_folder)).findings
        flip(path, offset)

        name = path.relative_to(stopped_folder).as_posix()
        assert {finding.file for finding in findings} == {name}, (name, offset)
        for finding in findings:
            assert finding.offset is not None
            assert finding.offset <= offset
    assert Verification.of(verify_folder(stopped_folder)).findings == []


@pytest.mark.slow
def test_a_folder_in_use_is_refused_and_one_after_merges_and_recycling_is_sound(
    run: Run, verify: Verify, tmp_path: Path
) -> None:
    settings = {**SMALL_LOG, "MILLRACE_CONTAINER_FLUSH_AGE_S": "0.1", "MILLRACE_CONTAINER_CHECKPOINT_INTERVAL_S": "0.1"}
    with server(tmp_path, settings=settings) as running:
        with millrace.blocking.connect(running.address) as client:
            for name in ("a", "b", "gone"):
                client.segments.create(f"raw/{name}")
            for _ in range(100):
                for name in ("a", "b", "gone"):
                    client.segments.append(f"raw/{name}", b"x" * 5000)
            client.segments.truncate("raw/a", 100_000)
            client.segments.seal("raw/b")
            client.segments.merge("raw/a", source="raw/b")
            client.segments.delete("raw/gone")
            client.segments.append("raw/a", b"the end")
        refused = run("verify", tmp_path)
        running.kill()

    assert refused.code == 1
    assert "another server owns this folder" in refused.err
    assert verify(tmp_path) == []


def test_sequenced_appends_are_shown_and_checked(run: Run, verify: Verify, tmp_path: Path) -> None:
    async def fill() -> None:
        async with Server(server_options(tmp_path)) as started, await Peer.connect(started.address) as peer:
            stream = await peer.ask(m.CreateStream("shop/orders", 1, ""), m.StreamInfo)
            segment_id = stream.segments[0].segment_id
            writer = await peer.ask(m.OpenWriter("w", [segment_id], 0, stream.stream_id), m.WriterOpened)
            fields = {"writer_number": writer.writer_number, "writer_epoch": writer.writer_epoch}
            await peer.store(segment_id, b"event", event_number=1, sequences=Sequences(1041, 1043, 17), **fields)

    asyncio.run(fill())

    assert verify(tmp_path) == []
    assert "sequences 1041 to 1043" in run("inspect", log_file(tmp_path)).out
    shown = run("inspect", log_file(tmp_path), "--hex").out
    # In the table of runs, and in the frame.
    assert shown.count("first_sequence") > 1
    assert shown.count("1041") > 1
    assert "SEQUENCED_APPEND" in shown


def test_producers_are_shown_and_checked(run: Run, verify: Verify, tmp_path: Path) -> None:
    async def fill(*, is_wrong: bool) -> None:
        async with Server(server_options(tmp_path)) as started, await Peer.connect(started.address) as peer:
            stream = f"shop/orders-{is_wrong}"
            producer = Producer("abfrage-7", "holder", f"run-{is_wrong}", int(is_wrong))
            await create_stream(peer, stream, 1)
            transaction = await PeerTransaction.begin(peer, stream, producer=producer)
            await transaction.write(b"event")
            await transaction.commit()
            if is_wrong:
                state = started.opened.container.state
                (known,) = state.caches["producers"].values()
                known.durable = replace(known.row, run="run-a", last_sequence=7, fenced=("run-a",))
                state.caches["producers"].changed(known)
                row = ProducerRow("holder", "", 7, (), number=state.take_id(), writer_id="abfrage-7")
                state.caches["producers"].add(KnownProducer(row))

    asyncio.run(fill(is_wrong=False))
    assert verify(tmp_path) == []
    log = run("inspect", log_file(tmp_path), "--hex").out
    assert "PRODUCER_TAKEN" in log
    assert "producers" in log
    checkpoint = run("inspect", tmp_path / "containers" / "0000" / "checkpoint.db").out
    assert "abfrage-7" in checkpoint.split("producers")[-1]

    asyncio.run(fill(is_wrong=True))
    findings = [finding["what"] for finding in verify(tmp_path)]
    assert len(findings) == 3
    assert "has impossible fenced runs" in findings[0]
    assert "have the same writer id, abfrage-7" in findings[1]
    assert "has committed 7 in no run" in findings[2]


def test_exclusive_writers_are_shown_and_checked(run: Run, verify: Verify, tmp_path: Path) -> None:
    async def fill(*, is_wrong: bool) -> None:
        async with Server(server_options(tmp_path)) as started, await Peer.connect(started.address) as peer:
            stream = await peer.ask(m.CreateStream("shop/orders", 1, ""), m.StreamInfo)
            await peer.ask(m.OpenWriter("till-7", [], 0, stream.stream_id, exclusive=1), m.WriterOpened)
            if is_wrong:
                state = started.opened.container.state
                for view in (state.admitted, state.durable):
                    view.exclusive_writers.put(stream.stream_id, ExclusiveWriter(4711, 1, "nobody", 0))
                    view.exclusive_writers.put(4712, ExclusiveWriter(4711, 1, "nobody", 0))

    asyncio.run(fill(is_wrong=False))
    assert verify(tmp_path) == []
    log = run("inspect", log_file(tmp_path), "--hex").out
    assert "is_exclusive" in log
    assert (
        "till-7"
        in run("inspect", tmp_path / "containers" / "0000" / "checkpoint.db").out.split("exclusive_writers")[-1]
    )

    asyncio.run(fill(is_wrong=True))
    findings = verify(tmp_path)
    assert [finding["file"] for finding in findings] == ["containers/0000/checkpoint.db"] * 2
    assert "shop/orders accepts events only from writer 'nobody'" in findings[0]["what"]
    assert "exclusive writer of stream 4712" in findings[1]["what"]


def test_transactions_are_shown_and_checked(run: Run, verify: Verify, tmp_path: Path) -> None:
    """One of each state; each record in the log, the rows in the checkpoint."""

    async def fill() -> None:
        async with Server(server_options(tmp_path)) as started, await Peer.connect(started.address) as peer:
            await create_stream(peer, "shop/orders", 2)
            begun = {}
            for name in ("open", "prepared", "committed", "aborted"):
                begun[name] = await PeerTransaction.begin(peer, "shop/orders", name=name)
                await begun[name].write(b"event of it")
            await begun["prepared"].prepare()
            await begun["committed"].commit()
            await begun["aborted"].abort()
            await started.opened.container.decide(m.OutcomesForgotten([begun["aborted"].number]))

    async def spoil() -> None:
        async with Server(server_options(tmp_path)) as started:
            state = started.opened.container.state
            opened = state.transactions.find("open")
            assert opened is not None
            lost, kept = list(opened.parts)
            state.delete_segments([lost])
            state.touch("parts", opened.number, kept)
            del opened.parts[kept]
            state.transactions.changed(opened)

    asyncio.run(fill())
    assert verify(tmp_path) == []
    log = run("inspect", log_file(tmp_path)).out
    for record in (
        "IDS_RESERVED", "TRANSACTION_BEGUN", "PARTS_ADDED", "TRANSACTION_PREPARED", "TRANSACTION_COMMITTED",
        "TRANSACTIONS_ENDED", "OUTCOMES_FORGOTTEN",
    ):  # fmt: skip
        assert record in log
    path = tmp_path / "containers" / "0000" / "checkpoint.db"
    shown = run("inspect", path, "--json").json
    assert {row["name"] for row in shown["transactions"]} == {"open", "prepared", "committed"}
    assert len(shown["parts"]) == 4

    asyncio.run(spoil())
    whats = [finding["what"] for finding in verify(tmp_path)]
    assert len(whats) == 2
    assert any("transaction open has segment" in what for what in whats)
    assert any("is not a part of any open transaction" in what for what in whats)


def test_internal_segments_are_shown_and_checked(run: Run, verify: Verify, tmp_path: Path) -> None:
    async def fill() -> None:
        async with Server(server_options(tmp_path)) as started:
            await internal_segment(started.opened.container, "kept", "a", b"x" * 1000)
            await started.opened.flusher.flush()
            await internal_segment(started.opened.container, "kept", "b", b"y" * 500)

    asyncio.run(fill())

    assert verify(tmp_path) == []
    assert "2 segments" in run("verify", tmp_path).out
    rows = {row["segment"]: row for row in run("inspect", tmp_path, "--json").json["segments"]}
    assert (rows["#kept/a"]["in tier 2"], rows["#kept/b"]["length"]) == (1000, 500)

    flip(chunk_of(tmp_path, rows["#kept/a"]["id"]), 100)
    (finding,) = verify(tmp_path)
    assert finding["file"] == chunk_of(tmp_path, rows["#kept/a"]["id"]).relative_to(tmp_path).as_posix()
