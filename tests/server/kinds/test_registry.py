"""The list of kinds: nothing that the log can hold is left out."""

from collections import Counter

from millrace.server.kinds.registry import KINDS
from millrace.wire import messages as m


def test_each_record_has_the_step_of_one_kind() -> None:
    records = [cls for cls in m.MESSAGES.values() if issubclass(cls, m.Record)]
    assert Counter(record for kind in KINDS for record in kind.records) == Counter(records)


def test_no_two_tables_have_the_same_name_or_number() -> None:
    assert max(Counter(table.number for table in KINDS.tables).values()) == 1
    assert max(Counter(table.name for table in KINDS.tables).values()) == 1
