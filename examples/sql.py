"""SQL over a stream, with DuckDB: `python examples/sql.py [ADDRESS]`. Needs `pip install 'millrace-streams[duckdb]'`.

The values are JSON objects, and their fields are columns. DuckDB reads batch after batch: the stream may be larger than
memory.
"""

import sys

import duckdb

import millrace
from millrace import blocking


def query(address: str) -> None:
    with blocking.connect(address) as client, client.reader("shop/orders", end=millrace.TAIL) as reader:
        orders = reader.to_arrow(json=True)  # noqa: F841  # DuckDB finds it by its name
        sql = "SELECT _key AS customer, sum(amount) AS total FROM orders GROUP BY ALL ORDER BY customer"
        for customer, total in duckdb.execute(sql).fetchall():
            print(customer, total)


if __name__ == "__main__":
    query(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9240")
