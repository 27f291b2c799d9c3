from millrace.server.container.checkpoint.schema import FORMAT, META, TABLES


def test_no_two_tables_share_a_number() -> None:
    numbers = [table.number for table in (FORMAT, META, *TABLES)]
    assert len(set(numbers)) == len(numbers)
