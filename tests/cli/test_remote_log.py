"""What commands say about a server whose log is in an object store, and what is left when its machine is lost."""

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

import millrace
from millrace.client.testing import TestServer, server
from millrace.server.ownership import decode_lease
from tests.cli.conftest import Run
from tests.cli.test_store import ask, keys_in
from tests.support.data_folders import SMALL_LOG
from tests.support.repairs import repaired_container
from tests.support.s3 import Bucket, MotoServer
from tests.support.waiting import until

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Lost:
    """A bucket in which the log of a server is that was killed, and its folder."""

    folder: Path
    bucket: Bucket
    contents: dict[str, bytes]
    settings: dict[str, str]


@pytest.fixture
def lost(moto: MotoServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lost:
    bucket, folder = moto.make_bucket(), tmp_path / "first"
    settings = (
        SMALL_LOG
        | bucket.environment
        | {
            "MILLRACE_STORE": bucket.url,
            "MILLRACE_WAL_PLACE": "object",
            "MILLRACE_OBJECTS_LEASE_S": "1",
            "MILLRACE_OBJECTS_RESERVE_BYTES": "1024",
        }
    )
    with server(folder, settings=settings) as running:
        with millrace.blocking.connect(running.address) as client:
            client.segments.create("raw/a")
            client.segments.append("raw/a", b"a" * 1000)
            client.create_stream("shop/orders")
            with client.writer("shop/orders", writer_id="till") as writer:
                for number in range(10):
                    writer.write(b"%d" % number, key="one").result()
        asyncio.run(until(lambda: acknowledged_in(bucket) >= last_batch_in(bucket)))
        running.kill()
    for name, value in (SMALL_LOG | bucket.environment).items():
        monkeypatch.setenv(name, value)
    return Lost(folder, bucket, {key: ask(bucket, "GET", key) for key in keys_in(bucket)}, settings)


def acknowledged_in(bucket: Bucket) -> int:
    """Return the last batch that the lease of the server reports as acknowledged."""
    (key,) = (key for key in keys_in(bucket) if "/workers/" in key)
    return decode_lease(ask(bucket, "GET", key)).acknowledged


def last_batch_in(bucket: Bucket) -> int:
    return max(int(key.rpartition("/")[2]) for key in keys_in(bucket) if "/log/" in key)


def values_of(running: TestServer) -> list[bytes]:
    with (
        millrace.blocking.connect(running.address) as client,
        client.reader("shop/orders", end=millrace.TAIL) as reader,
    ):
        return [event.value for event in reader]


def test_a_new_folder_continues_what_a_lost_machine_had(lost: Lost, run: Run, tmp_path: Path) -> None:
    """Behaviour 92: each acknowledged event once, and the writer continues its numbers."""
    shutil.rmtree(lost.folder)
    with server(tmp_path / "second", settings=lost.settings) as running:
        assert values_of(running) == [b"%d" % number for number in range(10)]
        with (
            millrace.blocking.connect(running.address) as client,
            client.writer("shop/orders", writer_id="till") as writer,
        ):
            writer.write(b"after", key="one").result()
        assert values_of(running)[-1] == b"after"
    assert run("verify", tmp_path / "second", "--json").json["findings"] == []
    assert run("verify", "--store", lost.bucket.url, "--json").json["findings"] == []


def test_a_log_in_a_store_is_shown_and_verified(lost: Lost, run: Run) -> None:
    url = lost.bucket.url
    (owner,) = run("inspect", "--store", url, "--json").json["owners"]
    assert owner["log"] == "in the store, from 1 on"
    key = key_of_log(lost)
    shown = run("inspect", "--store", url, key.removeprefix("history/"), "--hex")
    assert (shown.code, "object of a log" in shown.out) == (0, True), shown.err
    assert "writer_number" in shown.out

    for arguments in (["--store", url], [lost.folder]):
        checked = run("verify", *arguments, "--json")
        assert (checked.code, checked.json["findings"]) == (0, []), checked.json
        assert checked.json["batches"] >= 10


def test_a_damaged_and_a_missing_object_of_a_log_are_named(lost: Lost, run: Run) -> None:
    keys = sorted(key for key in lost.contents if "/log/" in key)
    content = bytearray(lost.contents[keys[3]])
    content[-1] ^= 1
    ask(lost.bucket, "PUT", keys[3], bytes(content))
    ask(lost.bucket, "DELETE", keys[5])
    checked = run("verify", "--store", lost.bucket.url, "--json")
    assert checked.code == 1
    files = {finding["file"] for finding in checked.json["findings"]}
    prefix = f"s3://{lost.bucket.name}/"
    assert {f"{prefix}{keys[3]}", f"{prefix}{keys[5]}"} <= files
    refused = run("repair", lost.folder)
    assert (refused.code, "its log is in the object store" in refused.err) == (1, True)


def test_newest_objects_that_are_missing_are_named(lost: Lost, run: Run) -> None:
    """Behaviour 101: the log looks whole, but the lease reports more acknowledged batches than the log has."""
    *_, first, _, last = sorted(key for key in lost.contents if "/log/" in key)
    assert run("verify", "--store", lost.bucket.url).code == 0
    for key in keys_in(lost.bucket):
        if first <= key <= last:
            ask(lost.bucket, "DELETE", key)
    checked = run("verify", "--store", lost.bucket.url, "--json")
    assert checked.code == 1
    found = {finding["file"]: finding["what"] for finding in checked.json["findings"]}
    acknowledged = int(last.rpartition("/")[2])
    assert f"batch {acknowledged} was acknowledged" in found[f"s3://{lost.bucket.name}/{first}"]
    shown = run("verify", "--store", lost.bucket.url)
    assert (shown.code, f"batch {acknowledged} was acknowledged" in shown.out.replace("\n", " ")) == (1, True), (
        shown.out
    )


def test_a_loss_in_a_store_is_shown_and_accepted(lost: Lost, run: Run, tmp_path: Path) -> None:
    """Behaviour 101: without --accept-loss nothing is changed, and the JSON is that of a local log."""
    url = lost.bucket.url
    sound = run("repair", "--store", url, "--json")
    assert (sound.code, repaired_container(sound.json)["plan"]) == (0, None)
    missing = sorted(key for key in lost.contents if "/log/" in key)[-3]
    ask(lost.bucket, "DELETE", missing)
    before = keys_in(lost.bucket)
    shown = run("repair", "--store", url, "--json")
    container = repaired_container(shown.json)
    assert (shown.code, shown.json["path"], container["manifest"]) == (1, url, None)
    assert missing.removeprefix("history/") in container["loss"]["text"]
    assert (container["loss"]["store"], container["loss"]["since"][:2]) == (url, "20")
    (sealed,) = container["plan"]["sealed"]
    (hole,) = container["plan"]["holes"]
    assert sealed["name"].startswith("shop/orders")
    assert (hole["name"], hole["start"]) == ("raw/a", 1000)
    assert keys_in(lost.bucket) == before
    said = run("repair", "--store", url)
    assert (said.code, "restore the objects" in " ".join(said.err.split())) == (1, True), said.err

    accepted = run("repair", "--store", url, "--accept-loss", "--json")
    assert (accepted.code, repaired_container(accepted.json)) == (0, container | {"accepted": True})
    assert run("repair", "--store", url, "--json").json["ok"]
    with (
        server(tmp_path / "second", settings=lost.settings) as running,
        millrace.blocking.connect(running.address) as client,
    ):
        assert client.segments.append("raw/a", b"new") == hole["end"]
        with client.writer("shop/orders") as writer:
            writer.write(b"after", key="one").result()


@pytest.mark.parametrize("damage", ["none", "a missing object of the log", "a flipped object of the log"])
def test_a_store_is_verified_in_the_form_of_a_folder(damage: str, lost: Lost, run: Run) -> None:
    """The same keys and the same verdict, and the same problems of what is in the store."""
    key = sorted(key for key in lost.contents if "/log/" in key)[3]
    if damage == "a missing object of the log":
        ask(lost.bucket, "DELETE", key)
    elif damage != "none":
        ask(lost.bucket, "PUT", key, lost.contents[key][:-1] + b"?")
    of_store = run("verify", "--store", lost.bucket.url, "--json")
    of_folder = run("verify", lost.folder, "--json")
    assert of_store.json.keys() == of_folder.json.keys()
    assert (of_store.code, of_store.json["ok"]) == (of_folder.code, of_folder.json["ok"])
    assert of_store.json["ok"] == (damage == "none")
    assert of_store.json["findings"] == of_folder.json["findings"]


def test_a_lost_manifest_is_named_and_rebuilt(lost: Lost, run: Run, tmp_path: Path) -> None:
    """Behaviour 101: by the next start; by a repair, if nothing else names the server of the log."""
    manifest, owner = (
        next(key for key in lost.contents if key.endswith(name)) for name in ("manifest", "cluster.json")
    )
    ask(lost.bucket, "DELETE", manifest)
    (finding,) = run("verify", "--store", lost.bucket.url, "--json").json["findings"]
    assert finding["file"].endswith("c0000/manifest")
    assert "is missing, but the container has a log" in finding["what"]
    with server(tmp_path / "second", settings=lost.settings) as running:
        assert values_of(running) == [b"%d" % number for number in range(10)]
    assert run("verify", "--store", lost.bucket.url, "--json").json["findings"] == []

    for key in (manifest, owner):
        ask(lost.bucket, "DELETE", key)
    shown = run("repair", "--store", lost.bucket.url, "--json")
    container = repaired_container(shown.json)
    assert (shown.code, container["manifest"], container["plan"]) == (1, "c0000/manifest is missing", None)
    accepted = run("repair", "--store", lost.bucket.url, "--accept-loss")
    assert accepted.code == 0, accepted.err
    assert {*keys_in(lost.bucket)} >= {manifest, owner}
    with server(tmp_path / "third", settings=lost.settings) as running:
        assert values_of(running) == [b"%d" % number for number in range(10)]


def test_what_needs_no_restore_says_so(lost: Lost, run: Run, tmp_path: Path) -> None:
    refused = run("restore", "--store", lost.bucket.url, tmp_path / "new")
    assert refused.code == 1
    assert "nothing has to be restored" in refused.err
    assert "--log object" in refused.err
    assert not (tmp_path / "new").exists()


def test_a_log_in_a_store_without_a_store_is_wrong_usage(run: Run) -> None:
    refused = run("settings", "wal.place", "--log", "object")
    assert (refused.code, "store is None; it must be a URL" in refused.err) == (2, True), refused.err


def test_who_forgets_where_the_log_is_is_told(lost: Lost, run_process: Run, tmp_path: Path) -> None:
    """Its folder is new, so nothing else says that it is to be one of the servers of the prefix."""
    refused = run_process(
        "serve", "--data-dir", tmp_path / "new", "--store", lost.bucket.url, "--listen", "127.0.0.1:0"
    )
    assert (refused.code, "start this one with --log object" in refused.err) == (1, True), refused.err


def key_of_log(lost: Lost) -> str:
    return min(key for key in lost.contents if "/log/" in key)
