"""What commands say about the history of a real server in an object store, and what they bring back from it."""

import http.client
import json
import shutil
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

import millrace
from millrace.client.testing import server
from tests.cli.conftest import Run
from tests.support.data_folders import SMALL_LOG, fill
from tests.support.ownership import with_checksum
from tests.support.s3 import Bucket, MotoServer
from tests.support.waiting import PATIENCE_S

QUICK = SMALL_LOG | {
    "MILLRACE_CONTAINER_COPY_INTERVAL_S": "0.05",
    "MILLRACE_CONTAINER_CHECKPOINT_INTERVAL_S": "0.05",
}
"""Checkpoints are copied at once."""


@dataclass(frozen=True)
class Served:
    """What a server has left: a data folder, and a bucket."""

    folder: Path
    bucket: Bucket
    contents: dict[str, bytes]

    def settings(self) -> dict[str, str]:
        return SMALL_LOG | self.bucket.environment | {"MILLRACE_STORE": self.bucket.url}


def ask(bucket: Bucket, method: str, path: str, body: bytes = b"") -> bytes:
    """Change a bucket from outside."""
    with closing(http.client.HTTPConnection(bucket.endpoint.removeprefix("http://"))) as connection:
        signed = {"Authorization": "AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/s3/aws4_request"}
        connection.request(method, f"/{bucket.name}/{path}", body=body, headers=signed)
        answer = connection.getresponse()
        assert answer.status < 300
        return answer.read()


def keys_in(bucket: Bucket) -> list[str]:
    listed = ask(bucket, "GET", "?list-type=2").decode()
    return [part.partition("</Key>")[0] for part in listed.split("<Key>")[1:]]


def put_all(bucket: Bucket, contents: dict[str, bytes]) -> None:
    """Let a bucket hold these objects and nothing else."""
    for key in {*keys_in(bucket)} - {*contents}:
        ask(bucket, "DELETE", key)
    for key, content in contents.items():
        ask(bucket, "PUT", key, content)


def wait_until(predicate: Callable[[], object]) -> None:
    """Let another process run until something is true, where nothing tells that it is."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not predicate():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


@pytest.fixture(scope="module")
def made(moto: MotoServer, tmp_path_factory: pytest.TempPathFactory) -> Served:
    """The data folder and the objects of a server whose last copy of the checkpoint says all that it was told."""
    folder, bucket = tmp_path_factory.mktemp("served"), moto.make_bucket()
    with server(folder, settings=QUICK | bucket.environment | {"MILLRACE_STORE": bucket.url}) as running:
        fill(running.address)
    # Stopped, it has flushed all; started again, it copies the checkpoint that says so.
    before = keys_in(bucket)
    with server(folder, settings=QUICK | bucket.environment | {"MILLRACE_STORE": bucket.url}):
        wait_until(lambda: any("/checkpoints/" in key for key in {*keys_in(bucket)} - {*before}))
    keys = keys_in(bucket)
    return Served(folder, bucket, {key: ask(bucket, "GET", key) for key in keys})


@pytest.fixture
def served(made: Served, moto: MotoServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    """Its own bucket with the same objects, and the folder, for one test."""
    bucket = moto.make_bucket()
    put_all(bucket, made.contents)
    folder = Path(shutil.copytree(made.folder, tmp_path / "served"))
    identity = folder / "identity.json"
    identity.write_text(identity.read_text().replace(made.bucket.url, bucket.url))
    for name, value in (SMALL_LOG | bucket.environment).items():
        monkeypatch.setenv(name, value)
    return Served(folder, bucket, made.contents)


def key_of(served: Served, word: str) -> str:
    return min(key for key in served.contents if word in key)


@pytest.mark.slow
def test_a_store_is_listed_with_its_chunks_and_copies(run: Run, served: Served) -> None:
    shown = run("inspect", "--store", served.bucket.url, "--json").json

    keys = {key.removeprefix("history/") for key in served.contents if key.endswith(".chunk")}
    assert (shown["kind"], shown["path"]) == ("object store", served.bucket.url)
    assert {chunk["name"] for chunk in shown["chunks"]} == {key for key in keys if "/segments/" in key}
    assert {chunk["segment"] for chunk in shown["chunks"]} >= {1}
    assert shown["copies"]
    assert all(any(key.startswith(copy["name"]) for key in keys) for copy in shown["copies"])
    assert "3 chunks" in run("inspect", "--store", served.bucket.url).out
    (owner,) = shown["owners"]
    assert (owner["container"], owner["lease"], owner["problem"]) == (0, "released", "")
    assert [copy["name"] for copy in shown["copies"] if copy["counts"]] == [f"c0000/{owner['copy']}"]


def test_a_damaged_manifest_is_named(run: Run, served: Served, tmp_path: Path) -> None:
    key = key_of(served, "c0000/manifest")
    ask(served.bucket, "PUT", key, b"nothing of ours")

    shown = run("inspect", "--store", served.bucket.url, "--json")
    assert (shown.code, "cannot be read" in shown.json["problems"][0]) == (1, True)
    checked = run("doctor", tmp_path, "--seconds", 0.1, "--store", served.bucket.url, "--json")
    assert (checked.code, "cannot be read" in checked.json["containers"][0]["problem"]) == (1, True)
    (finding,) = run("verify", "--store", served.bucket.url, "--json").json["findings"]
    assert finding["file"] == f"s3://{served.bucket.name}/{key}"
    refused = run("restore", "--store", served.bucket.url, tmp_path / "new")
    assert (refused.code, "cannot be read" in refused.err) == (1, True)


def test_a_damaged_name_of_the_server_is_named(run: Run, served: Served, tmp_path: Path) -> None:
    """Behaviour 101: by `verify` of the store and of the folder, and by `doctor`, with what to do."""
    key = key_of(served, "cluster.json")
    ask(served.bucket, "PUT", key, served.contents[key][:40])

    for arguments in (["--store", served.bucket.url], [served.folder]):
        outcome = run("verify", *arguments, "--json")
        (finding,) = outcome.json["findings"]
        assert (outcome.code, finding["file"]) == (1, f"{served.bucket.url}/cluster.json")
        assert "is damaged: it must be a JSON object" in finding["what"]
        assert "the next start rewrites it" in finding["what"]
    checks = run("doctor", tmp_path, "--seconds", 0.1, "--store", served.bucket.url, "--json").json["checks"]
    (check,) = [check for check in checks if check["name"] == "cluster.json"]
    assert (check["verdict"], "the next start rewrites it" in check["advice"]) == ("warning", True)


def test_a_missing_copy_that_counts_is_named(run: Run, served: Served) -> None:
    """Also if an older one is there."""
    name = json.loads(served.contents[key_of(served, "c0000/manifest")])["checkpoint"]["name"]
    for key in served.contents:
        if name in key:
            ask(served.bucket, "DELETE", key)

    findings = run("verify", "--store", served.bucket.url, "--json").json["findings"]

    whats = {finding["file"]: finding["what"] for finding in findings}
    assert f"names {name}" in whats[f"{served.bucket.url}/c0000/manifest"]


def test_a_folder_that_was_superseded_is_named(run: Run, served: Served) -> None:
    """Behaviour 92."""
    key = key_of(served, "c0000/manifest")
    manifest = json.loads(served.contents[key])
    manifest["claim_id"] = str(uuid.uuid4())
    manifest["claimant"] |= {"host": "elsewhere"}
    ask(served.bucket, "PUT", key, with_checksum(json.dumps(manifest).encode()))

    findings = run("verify", served.folder, "--json").json["findings"]

    (what,) = [finding["what"] for finding in findings if finding["file"] == "containers/0000/claim.json"]
    assert ("claimed by elsewhere" in what, "superseded" in what) == (True, True)
    for arguments in ([], ["--accept-loss"]):
        refused = run("repair", served.folder, *arguments)
        said = " ".join(refused.err.split())
        assert (refused.code, "claimed by elsewhere" in said, "superseded" in said) == (1, True, True)


def test_a_folder_that_no_server_starts_on_is_named(run: Run, served: Served) -> None:
    path = served.folder / "containers" / "0000" / "claim.json"
    older = json.loads(path.read_text()) | {"restored_from": "checkpoints/older"}
    path.write_bytes(with_checksum(json.dumps(older).encode()))

    findings = run("verify", served.folder, "--json").json["findings"]
    (what,) = [finding["what"] for finding in findings if finding["file"] == "containers/0000/claim.json"]
    assert "was restored from checkpoints/older" in what

    ask(served.bucket, "DELETE", key_of(served, "c0000/manifest"))
    findings = run("verify", served.folder, "--json").json["findings"]
    (what,) = [finding["what"] for finding in findings if finding["file"] == "containers/0000/claim.json"]
    assert "contains no c0000/manifest" in what


def test_an_object_of_a_store_is_shown_like_a_file(run: Run, served: Served) -> None:
    chunk, copy = (key_of(served, word).removeprefix("history/") for word in ("/segments/", "/checkpoints/"))

    shown = run("inspect", "--store", served.bucket.url, chunk, "--json")
    assert (shown.code, shown.json["kind"], shown.json["path"]) == (0, "chunk", f"{served.bucket.url}/{chunk}")
    assert run("inspect", "--store", served.bucket.url, copy, "--json").json["kind"].startswith("part of a copy")

    missing = run("inspect", "--store", served.bucket.url, "c0000/segments/00/none.chunk")
    assert (missing.code, "the object does not exist" in missing.err) == (1, True)


def test_sound_stores_have_no_findings_with_the_folder_and_without(run: Run, served: Served) -> None:
    for arguments in ([served.folder], [served.folder, "--store", served.bucket.url], ["--store", served.bucket.url]):
        outcome = run("verify", *arguments, "--json")

        assert (outcome.code, outcome.json["findings"], outcome.json["chunks"]) == (0, [], 3)
    assert "3 chunks" in run("verify", "--store", served.bucket.url).out


def test_a_damaged_chunk_in_a_store_is_named(run: Run, served: Served) -> None:
    """Behaviour 41: in the object store."""
    key = key_of(served, "/segments/")
    content = bytearray(served.contents[key])
    content[100] ^= 0x10
    ask(served.bucket, "PUT", key, bytes(content))

    for arguments in ([served.folder], ["--store", served.bucket.url]):
        outcome = run("verify", *arguments, "--json")

        (finding,) = outcome.json["findings"]
        assert (outcome.code, finding["file"]) == (1, f"s3://{served.bucket.name}/{key}")


def test_a_chunk_missing_in_a_store_is_named_with_what_it_cost(run: Run, served: Served) -> None:
    key = key_of(served, "/segments/")
    ask(served.bucket, "DELETE", key)

    for arguments in ([served.folder], ["--store", served.bucket.url]):
        (finding,) = run("verify", *arguments, "--json").json["findings"]

        assert (finding["file"], finding["what"]) == (f"s3://{served.bucket.name}/{key}", "the chunk is missing")
        assert finding["lost"] == "raw/a [0, 3000)"


def change_when_read(served: Served, moto: MotoServer, later: dict[str, bytes]) -> None:
    """Let the store hold what a server has made of it later, from the first read of a chunk on."""

    def change(path: str) -> None:
        if "/segments/" in path:
            moto.gate.before_get = None
            put_all(served.bucket, later)

    moto.gate.before_get = change


@pytest.mark.slow
def test_chunks_that_a_server_replaces_during_the_check_are_not_missing(
    run: Run, served: Served, moto: MotoServer
) -> None:
    """Behaviour 41, of a store in use: nothing sound is named, and what is missing is."""
    replaced = key_of(served, "/segments/")
    at_once = {"MILLRACE_CONTAINER_GARBAGE_INTERVAL_S": "0.05", "MILLRACE_CONTAINER_FLUSH_AGE_S": "0.05"}
    with (
        server(served.folder, settings=QUICK | at_once | served.settings()) as running,
        millrace.blocking.connect(running.address) as client,
    ):

        def is_deleted() -> bool:
            client.segments.append("raw/a", b"d" * 500)  # a chunk that is replaced is kept for two copies more
            return replaced not in keys_in(served.bucket)

        wait_until(is_deleted)
    later = {key: ask(served.bucket, "GET", key) for key in keys_in(served.bucket)}

    def check(later: dict[str, bytes]) -> list[dict[str, str]]:
        put_all(served.bucket, served.contents)
        change_when_read(served, moto, later)
        findings: list[dict[str, str]] = run("verify", "--store", served.bucket.url, "--json").json["findings"]
        return findings

    assert check(later) == []
    lost = min(key for key in later if "/segments/" in key and key in served.contents)
    (finding,) = check({key: content for key, content in later.items() if key != lost})
    assert (finding["file"], finding["what"]) == (f"s3://{served.bucket.name}/{lost}", "the chunk is missing")


def test_a_store_whose_copies_are_all_damaged_cannot_be_relied_on(run: Run, served: Served) -> None:
    for key in served.contents:
        if "/checkpoints/" in key:
            ask(served.bucket, "PUT", key, b"nothing of ours")

    whats = [finding["what"] for finding in run("verify", "--store", served.bucket.url, "--json").json["findings"]]

    assert "there is no good copy of the checkpoint" in whats
    assert run("restore", "--store", served.bucket.url, served.folder.parent / "new").code == 1
    assert not (served.folder.parent / "new").exists()


@pytest.mark.slow
def test_a_server_whose_disk_is_lost_continues_from_its_store(run: Run, served: Served, tmp_path: Path) -> None:
    before = run("verify", "--store", served.bucket.url, "--json").json
    shutil.rmtree(served.folder)
    folder = tmp_path / "restored"

    outcome = run("restore", "--store", served.bucket.url, folder, "--json")

    assert outcome.code == 0, outcome.err
    (container,) = outcome.json["containers"]
    assert (container["container"], container["segments"], container["streams"]) == (0, 3, 1)
    assert container["owner"]["life"] == "RELEASED"
    assert keys_in(served.bucket) == sorted(served.contents)
    assert run("verify", folder, "--json").json["findings"] == []
    with server(folder, settings=served.settings()) as running:
        with millrace.blocking.connect(running.address) as client:
            assert client.segments.read("raw/a", 0).data == b"a" * 1000 + b"b" * 1000 + b"c" * 1000
            with client.reader("shop/orders", end=millrace.TAIL) as reader:
                values = {event.value for event in reader}
            assert values == {b"%s %d" % (key, number) for key in (b"one", b"customer-3") for number in range(10)}
            with client.writer("shop/orders") as writer:
                writer.write(b"after", key="one").result()
    assert run("verify", folder, "--json").json["findings"] == []
    after = run("verify", "--store", served.bucket.url, "--json").json
    assert after["findings"] == []
    assert after["chunks"] == before["chunks"] + 1


def test_only_an_empty_folder_is_restored_into(run: Run, served: Served, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "mine").touch()

    for target in (taken, served.folder):
        refused = run("restore", "--store", served.bucket.url, target)

        assert (refused.code, "is not empty" in refused.err) == (1, True)
    assert [path.name for path in taken.iterdir()] == ["mine"]


@pytest.mark.slow
def test_what_is_not_ours_in_a_store_keeps_no_command_from_its_work(run: Run, served: Served, tmp_path: Path) -> None:
    foreign = ["c00/1.chunk", "lonely.chunk", "other/segments/1.chunk"]
    for name in foreign:
        ask(served.bucket, "PUT", f"history/{name}", b"of another program")

    findings = run("verify", "--store", served.bucket.url, "--json").json["findings"]
    assert [finding["file"] for finding in findings] == [f"{served.bucket.url}/{name}" for name in foreign]
    shown = run("inspect", "--store", served.bucket.url, "--json")
    assert (shown.code, len(shown.json["chunks"])) == (0, 3)
    assert run("restore", "--store", served.bucket.url, tmp_path / "new").code == 0


def test_a_fresh_file_system_is_restored_into_and_what_it_had_is_left(
    run: Run, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted = tmp_path / "mounted"
    (mounted / "lost+found").mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.setenv("MILLRACE_WAL_FILE_SIZE_BYTES", "-1")
        assert run("restore", "--store", served.bucket.url, mounted).code != 0
    assert [path.name for path in mounted.iterdir()] == ["lost+found"]

    outcome = run("restore", "--store", served.bucket.url, mounted)

    assert outcome.code == 0, outcome.err
    assert run("verify", mounted, "--json").json["findings"] == []


def test_a_store_without_history_is_told(run: Run, moto: MotoServer, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = moto.make_bucket()
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)

    outcome = run("restore", "--store", bucket.url, f"/tmp/{uuid.uuid4().hex}")

    assert outcome.code == 1
    assert "no copy of a checkpoint" in outcome.err


@pytest.mark.parametrize("command", ["inspect", "verify", "restore"])
def test_what_is_no_store_is_wrong_usage(run: Run, command: str, tmp_path: Path) -> None:
    arguments = [tmp_path / "new"] if command == "restore" else []

    outcome = run(command, *arguments, "--store", "ftp://somewhere")

    assert outcome.code == 2
    assert "s3://BUCKET/PREFIX" in outcome.err
    assert run(command, *arguments).code == 2
