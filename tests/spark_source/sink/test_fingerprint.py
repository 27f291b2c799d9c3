"""Behaviour 99: a batch that was committed under the same number is recognised by more than its number."""

from dataclasses import replace
from pathlib import Path

import pytest

from millrace.client.transactions.producers import ProducerInfo
from millrace.model.limits import FINGERPRINT_SIZE_BYTES_MAX
from millrace.model.producer import Producer
from millrace.spark_source import BatchMismatchError, ReplacedError
from millrace.spark_source.sink.fingerprint import Fingerprint, check_repeated, digest_of_offsets, offsets_digest
from millrace.spark_source.sink.identity import BATCH_HOLDER
from tests.support.tables import table

PRODUCER = Producer("cook", "query-1", "run-2", 5)
FINGERPRINT = Fingerprint.of(["shop/cooked"], "3f9c")
KNOWN = ProducerInfo(
    writer_id="cook",
    holder="query-1",
    run="run-2",
    last_sequence=5,
    fenced_runs=("run-1",),
    fingerprint=str(FINGERPRINT),
)
OFFSETS = b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":%d}\n{"cut":"shop/orders@1:%d.0"}'


def test_a_fingerprint_is_read_as_it_was_written() -> None:
    for fingerprint in (FINGERPRINT, Fingerprint.of(["a/é", "a/b"])):
        assert Fingerprint.parse(str(fingerprint)) == fingerprint
    assert Fingerprint.of(["a/c", "a/b"]) == Fingerprint.of(["a/b", "a/c"])


@table("text", [None, "", "day 7", "7", "[]", '{"streams":["a/b"]}'])
def test_the_fingerprint_of_another_program_is_not_ours(text: str | None) -> None:
    assert Fingerprint.parse(text) is None


def test_the_names_of_many_streams_are_cut_and_still_compared() -> None:
    names = [f"plant/{'x' * 200}-{number}" for number in range(100)]
    fingerprint, other = Fingerprint.of(names, "3f9c"), Fingerprint.of([*names[:-1], "plant/other"], "3f9c")

    assert len(str(fingerprint).encode()) <= FINGERPRINT_SIZE_BYTES_MAX
    assert fingerprint.streams_text.endswith("-11 and 96 more")
    assert Fingerprint.parse(str(fingerprint)) == fingerprint
    assert fingerprint.streams_digest != other.streams_digest


def test_offsets_are_the_same_whenever_they_were_planned() -> None:
    assert digest_of_offsets(OFFSETS % (1, 7)) == digest_of_offsets(OFFSETS % (2, 7))
    assert digest_of_offsets(OFFSETS % (1, 7)) != digest_of_offsets(OFFSETS % (1, 8))


def test_offsets_are_read_from_paths_and_uris(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "5").write_bytes(OFFSETS % (1, 7))

    for checkpoint in (str(tmp_path), f"file:{tmp_path}", f"file://{tmp_path}", f"{tmp_path}/"):
        assert offsets_digest(checkpoint, 5) == digest_of_offsets(OFFSETS % (1, 7))


def test_a_checkpoint_that_cannot_be_read_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        assert offsets_digest(None, 5) is None
        assert offsets_digest(f"{tmp_path}/none", 5) is None
        assert offsets_digest(f"hdfs://{tmp_path}", 5) is None

    assert [record.args for record in caplog.records if "No such file" in record.getMessage()]
    assert "reads local files only, not hdfs:" in caplog.text
    assert len(caplog.records) == 2


def test_the_last_batch_is_recognised() -> None:
    check_repeated(KNOWN, PRODUCER, FINGERPRINT)
    check_repeated(KNOWN, PRODUCER, replace(FINGERPRINT, offsets=""))
    check_repeated(replace(KNOWN, fingerprint=str(replace(FINGERPRINT, offsets=""))), PRODUCER, FINGERPRINT)


@table(
    ("ours", "problem"),
    [
        (
            Fingerprint.of(["shop/fork"], "3f9c"),
            r"batch 5 of writer id cook \(query query-1\) was committed to shop/cooked, and now writes to shop/fork\.",
        ),
        (
            Fingerprint.of(["shop/cooked", "shop/dead"], "3f9c"),
            r"was committed to shop/cooked, and now writes to shop/cooked, shop/dead\.",
        ),
        (
            Fingerprint.of(["shop/cooked"], "77aa"),
            r"committed to shop/cooked with other input: .* 3f9c, and those of this checkpoint have 77aa\.",
        ),
    ],
)
def test_another_batch_of_the_same_number_is_an_error(ours: Fingerprint, problem: str) -> None:
    with pytest.raises(BatchMismatchError, match=problem + ".* set the option writerId to a new name"):
        check_repeated(KNOWN, PRODUCER, ours)


def test_a_batch_before_the_last_one_is_an_error() -> None:
    """Spark repeats only its last batch; the fingerprints of earlier ones are gone."""
    with pytest.raises(BatchMismatchError, match=r"committed earlier, and so were all batches up to 5\. Spark repeats"):
        check_repeated(KNOWN, PRODUCER._replace(sequence=4), FINGERPRINT)
    with pytest.raises(ReplacedError, match="run run-1 of query-1 was replaced by run run-2"):
        check_repeated(KNOWN, PRODUCER._replace(sequence=4, run="run-1"), FINGERPRINT)


def test_a_batch_write_may_repeat_all_that_it_has_written() -> None:
    known = replace(KNOWN, holder=BATCH_HOLDER)
    written = PRODUCER._replace(holder=BATCH_HOLDER)

    check_repeated(known, written._replace(sequence=4), FINGERPRINT)
    with pytest.raises(
        BatchMismatchError, match=r"\(a batch write\) was committed to shop/cooked, and now writes to a/b"
    ):
        check_repeated(known, written, Fingerprint.of(["a/b"]))


@pytest.mark.parametrize(
    "known",
    [
        replace(KNOWN, fingerprint=None),
        replace(KNOWN, holder="query-2", last_sequence=9),
        replace(KNOWN, last_sequence=None),
    ],
)
def test_where_nothing_is_known_to_compare_the_log_has_a_line(
    known: ProducerInfo, caplog: pytest.LogCaptureFixture
) -> None:
    """Batches of an older version, and after a reset of the writer id."""
    check_repeated(known, PRODUCER, Fingerprint.of(["a/b"]))
    assert "content not compared" in caplog.text
