"""Watch payments live: `python -m applications.fraud.watch ADDRESS CHECKPOINT MINUTES TIMES KMH`.

It begins at the bookmark `begin`, or where its checkpoint says, and writes alerts as payments come.
"""

import sys
from typing import TYPE_CHECKING, Final

from millrace.examples.running import STATE_IN_ROCKSDB, spark_session

from .limits import Limits
from .patterns import PAYMENT, patterns
from .payments import ALERTS, PAYMENTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SLICE: Final = {"stream": PAYMENTS, "startCut": "bookmark:begin", "endCut": "bookmark:labelled"}
"""The options of the source with which the pattern is developed."""
LIVE: Final = {"stream": PAYMENTS, "startCut": "bookmark:begin"}
"""Those with which it runs live."""


def query(spark: "SparkSession", limits: Limits, *, address: str, checkpoint: str, **options: str) -> "StreamingQuery":
    """Start to write alerts. With an `endCut` among the options it reads up to there, and nothing more."""
    source = spark.readStream.format("millrace").schema(PAYMENT).options(address=address, valueFormat="json", **options)
    told = {"address": address, "stream": ALERTS, "writerId": "fraud", "valueFormat": "json", "keyColumn": "card"}
    writing = patterns(source.load(), limits).writeStream.format("millrace").options(**told)
    return writing.option("checkpointLocation", checkpoint).start()


if __name__ == "__main__":
    _, at, folder, *numbers = sys.argv
    with spark_session("fraud", STATE_IN_ROCKSDB) as session:
        query(session, Limits(*map(int, numbers)), address=at, checkpoint=folder, **LIVE).awaitTermination()
