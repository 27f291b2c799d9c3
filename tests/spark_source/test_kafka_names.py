import re

import pytest

from millrace.spark_source.errors import OptionError
from millrace.spark_source.options import OPTION_NAMES, parse_options
from tests.support.tables import table

GIVEN = {"address": "127.0.0.1", "stream": "shop/orders"}

NAMES = [
    ("kafka.bootstrap.servers", "a:9092", "write address"),
    ("subscribe", "orders", "write stream"),
    ("subscribePattern", "orders.*", "write streamPattern"),
    ("assign", "{}", "write stream"),
    ("startingOffsets", "earliest", "write startCut=head"),
    ("startingOffsets", "LATEST", "write startCut=tail"),
    ("endingOffsets", "latest", "write endCut=tail"),
    ("endingOffsets", '{"a":{"0":23}}', "write endCut=tail, or a cut"),
    ("startingTimestamp", "1700000000000", "write startCut=1700000000000000, in microseconds"),
    ("endingTimestamp", "1700000000000", "write endCut=1700000000000000"),
    ("startingOffsetsByTimestamp", '{"a":{"0":23}}', "write startCut=2026-01-31T18:00:00Z"),
    ("maxOffsetsPerTrigger", "5", "write maxEventsPerTrigger"),
    ("minOffsetsPerTrigger", "5", "leave it out"),
    ("kafka.group.id", "g", "write cursor"),
    ("groupIdPrefix", "g", "write cursor"),
    ("fetchOffset.numRetries", "3", "write outageTimeout"),
    ("kafka.security.protocol", "SSL", "write token, and tls=true"),
    ("kafka.ssl.truststore.location", "x", "write token, and tls=true"),
    ("kafka.max.poll.records", "3", "leave it out"),
    ("topic", "orders", "write stream"),
]


@table(("name", "value", "advice"), NAMES)
def test_the_names_of_spark_s_kafka_source_are_answered_with_ours(name: str, value: str, advice: str) -> None:
    """Spark hands all names over in small letters; the option that is advised is one."""
    for given in (name, name.lower()):
        with pytest.raises(OptionError, match="is an option of Kafka") as caught:
            parse_options({**GIVEN, given: value})
        assert caught.value.option == given
        assert advice in str(caught.value)
    for option, written in re.findall(r"write (\w+)(?:=([\w:-]+))?", advice):
        assert option in OPTION_NAMES
        if written:
            parse_options({**GIVEN, option: written})
