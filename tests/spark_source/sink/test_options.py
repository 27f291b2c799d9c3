import math
import pickle
from dataclasses import replace

import pytest

from millrace.spark_source import OptionError
from millrace.spark_source.sink.identity import WRITER_ID_SIZE_BYTES_MAX
from millrace.spark_source.sink.options import SINK_OPTION_NAMES, SinkOptions, parse_sink_options
from millrace.spark_source.values import ValueFormat
from tests.support.tables import table

NEEDED = {"address": "127.0.0.1", "stream": "shop/cooked"}


def parsed(**options: str) -> SinkOptions:
    return parse_sink_options({**NEEDED, **options}, is_streaming=True)


def parsed_batch(**options: str) -> SinkOptions:
    return parse_sink_options({**NEEDED, **options}, is_streaming=False)


def test_what_is_not_said_has_defaults() -> None:
    assert parsed() == SinkOptions(address="127.0.0.1:9240", streams=("shop/cooked",))
    assert parsed().lease_s == 600.0
    assert parsed().outage_timeout_s == math.inf


def test_each_option_is_read() -> None:
    options = parsed_batch(
        stream="shop/cooked, shop/spoiled",
        createSegments="4",
        writerId=" cook 7",
        batchId="17",
        valueFormat="JSON",
        keyColumn=" customer ",
        deadLetterStream="shop/dead",
        transactionLease="1h",
        outageTimeout="90s",
        token="secret",
        tls="true",
    )

    assert options == SinkOptions(
        address="127.0.0.1:9240",
        streams=("shop/cooked", "shop/spoiled"),
        create_segments=4,
        writer_id=" cook 7",
        batch_id=17,
        value_format=ValueFormat.JSON,
        key_column=" customer ",
        dead_letter_stream="shop/dead",
        lease_s=3600.0,
        outage_timeout_s=90.0,
        token="secret",
        tls=True,
    )
    assert "secret" not in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options


def test_names_are_read_without_regard_to_case() -> None:
    assert parsed(WRITERID="cook").writer_id == "cook"


def test_options_that_spark_hands_to_every_sink_are_not_ours() -> None:
    assert replace(parsed(checkpointLocation="/tmp/x", queryname="q"), checkpoint=None) == parsed()
    assert parsed(checkpointLOCATION="/tmp/x").checkpoint == "/tmp/x"
    assert parsed_batch(checkpointLocation="/tmp/x") == parsed_batch()


@table(
    ("option", "text", "reason"),
    [
        ("address", "host:port:9", "address"),
        ("stream", "cooked", "scope/name"),
        ("stream", "", "missing"),
        ("stream", "shop/a,shop/a", "twice"),
        ("stream", ",".join(f"shop/{number}" for number in range(101)), "100 at most"),
        ("createSegments", "0", "no number above 0"),
        ("createSegments", "5000", "at most 4096"),
        ("writerId", "a\nb", "printable"),
        ("writerId", "w" * (WRITER_ID_SIZE_BYTES_MAX + 1), f"at most {WRITER_ID_SIZE_BYTES_MAX} bytes"),
        ("transactionLease", "soon", "is not a duration"),
        ("transactionLease", "0.5s", "at least 1 s"),
        ("outageTimeout", "0s", "above 0"),
        ("tls", "perhaps", "neither true nor false"),
        ("batchId", "1", "is for batch writes"),
        ("writerid2", "x", "did you mean writerId?"),
        ("valueFormat", "avro", "'avro' is none of json, arrow"),
        ("keyColumn", "customer", "goes with valueFormat"),
        ("deadLetterStream", "dead", "scope/name"),
        ("deadLetterStream", "shop/cooked", "one of the option stream"),
        ("startCut", "head", "the options are address, stream"),
    ],
)
def test_a_wrong_option_is_named(option: str, text: str, reason: str) -> None:
    """Behaviour 60."""
    with pytest.raises(OptionError, match=reason) as caught:
        parsed(**{option: text})

    assert caught.value.option == option


@pytest.mark.parametrize("option", ["address", "stream"])
def test_a_needed_option_is_named(option: str) -> None:
    """Behaviour 60."""
    with pytest.raises(OptionError, match="missing") as caught:
        parse_sink_options({name: text for name, text in NEEDED.items() if name != option}, is_streaming=True)

    assert caught.value.option == option


def test_a_batch_write_has_a_writer_id_and_a_number_or_neither() -> None:
    for given, missing in (("writerId", "batchId"), ("batchId", "writerId")):
        with pytest.raises(OptionError, match=f"has it beside {given}") as caught:
            parsed_batch(**{given: "7"})
        assert caught.value.option == missing


@table("text", ["-1", "x", "1.5", str(1 << 63)])
def test_the_number_of_a_batch_is_from_0_on(text: str) -> None:
    with pytest.raises(OptionError, match="no number from 0 on"):
        parsed_batch(writerId="cook", batchId=text)


def test_the_options_have_these_names() -> None:
    """They stand in saved programs."""
    assert " ".join(SINK_OPTION_NAMES) == (
        "address stream createSegments writerId batchId valueFormat keyColumn deadLetterStream transactionLease"
        " outageTimeout token tls"
    )


def test_the_stream_of_dead_letters_is_one_of_those_of_a_transaction() -> None:
    assert parsed().all_streams == ("shop/cooked",)
    assert parsed(deadLetterStream="shop/dead").all_streams == ("shop/cooked", "shop/dead")
    with pytest.raises(OptionError, match='"deadLetterStream": is one more than the 100'):
        parsed(stream=",".join(f"shop/{number}" for number in range(100)), deadLetterStream="shop/dead")
