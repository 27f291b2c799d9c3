from millrace.server.container.checkpoint.schema import FORMAT, Schema
from millrace.server.kinds.registry import KINDS


def test_no_two_tables_share_a_number() -> None:
    schema = Schema(KINDS)
    numbers = [table.number for table in (FORMAT, schema.meta, *schema.tables)]
    assert len(set(numbers)) == len(numbers)
