"""Decisions about damaged entities are refused, whatever kind of record they are. Behaviour 96."""

import pytest

from millrace.server.container.state.quarantine import EntityDamage, Quarantine
from millrace.server.errors import ContentLostError
from millrace.server.kinds.registry import KINDS
from millrace.wire import messages as m
from tests.golden.samples import SAMPLES
from tests.support.tables import table

REMOVING = {"StreamTruncated", "StreamStartMoved", "StreamDeleted", "ExclusiveReleased"}
ABOUT_A_STREAM = [
    each
    for each in SAMPLES.values()
    if isinstance(each, m.Record) and "stream_id" in [name for name, _, _ in each.entity_paths]
]


@table("record", ABOUT_A_STREAM, ids=lambda record: record.type.name)
def test_a_record_about_a_damaged_stream_is_refused_unless_it_only_removes_something(record: m.Record) -> None:
    stream_id: int = getattr(record, "stream_id")  # noqa: B009  # a field of these records only
    quarantine = Quarantine(KINDS, [EntityDamage("streams", stream_id, 1, 0, "STREAM_SCALED", "a test damaged it")])
    if type(record).__name__ in REMOVING:
        quarantine.check_changeable(record)
    else:
        with pytest.raises(ContentLostError, match="a test damaged it"):
            quarantine.check_changeable(record)
