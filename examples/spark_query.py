"""Query a stream with Spark: `python examples/spark_query.py [ADDRESS]`.

A batch query reads what there is. A streaming query continues; this one ends when it has caught up, because of
`availableNow`, and would resume from its checkpoint the next time. Needs the extra `spark` and Java 17.
"""

import sys
import tempfile

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from millrace.spark_source import MillraceDataSource


def query(address: str, checkpoints: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        # On one machine: 200, as Spark has them by default, would keep a state of a few keys in 200 places.
        .config("spark.sql.shuffle.partitions", "4")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(MillraceDataSource)
    options = {"address": address, "stream": "shop/orders"}

    orders = spark.read.format("millrace").options(**options).load()
    print(f"{orders.count()} orders of {orders.select('key').distinct().count()} customers")

    amount = F.get_json_object(F.col("value").cast("string"), "$.amount").cast("long")
    per_customer = (
        spark.readStream.format("millrace")
        .options(**options)
        .option("startCut", "head")
        .option("maxBytesPerTrigger", "64m")
        .load()
        .groupBy("key")
        .agg(F.count("*").alias("orders"), F.sum(amount).alias("amount"))
        .orderBy("key")
    )
    running = (
        per_customer.writeStream.format("console")
        .outputMode("complete")
        .option("checkpointLocation", checkpoints)
        .trigger(availableNow=True)
        .start()
    )
    running.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        query(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9240", folder)
