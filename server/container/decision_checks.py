"""Checks of a decision before it is logged: a record that the fold would refuse does not become durable.

The code that decides checks the request. This module checks the record that results, so a fault of that code costs one
request and not the log. What the record names is pinned. There are two steps:

1. The fold's own checks (`state.apply.check_item`) compare the record with the admitted rows of the kinds that have
   them (`container.views`), and else with the durable state: numbers, ids of new entities, key ranges, kinds of cuts,
   owners of segments.
2. The checks that kinds declare for records that depend on decisions in flight (`RecordStep.admission`). They compare
   it with the admitted view:

    record of                   fits if, after all that is in flight,
    merge, commit               each source has that many bytes, and goes to the end of a segment that takes appends
    truncation                  no segment starts beyond its end, and each belongs to the stream
    scale, epochs of a commit   the epoch is the next one, and replaces open segments by others with the same keys
    transaction                 the number is new, or the state is the one which the step starts from
    writer                      the epoch is the next one
"""

import logging

from millrace.server.container.state.apply import check_item
from millrace.server.container.state.container_state import ContainerState
from millrace.server.container.state.current_batch import CurrentBatch, number_above_max
from millrace.server.container.state.quarantine import UnfitRecordError
from millrace.server.errors import DecisionMisfitError
from millrace.wire import messages as m

logger = logging.getLogger(__name__)


def check_decision(state: ContainerState, record: m.Record) -> CurrentBatch:
    """Raise DecisionMisfitError unless a record fits the state, durable and admitted; nothing is changed.

    Returns:
        The batch for `move_rows`, once the record is queued.
    """
    try:
        return _check(state, record)
    except DecisionMisfitError as error:
        logger.critical("decision contradicts the state error=%s", error)
        raise


def _check(state: ContainerState, record: m.Record) -> CurrentBatch:
    # The ranges of transactions are those of streams, which are stored, and there may be thousands.
    too_large = number_above_max(record, but=("streams",))
    if too_large is not None:
        raise DecisionMisfitError(f"{record.type.name} was not logged, since {too_large} cannot be stored")
    batch = CurrentBatch(state, state.admitted, sequence=state.sequence + 1, wall_time_us=0)
    batch.item = record
    admission = state.kinds.records[type(record)].admission
    try:
        check_item(batch, record)
        if admission is not None:
            admission(batch, record)
    except UnfitRecordError as error:
        damage = error.damage
        raise DecisionMisfitError(
            f"{record.type.name} was not logged, since it contradicts {damage.entity}: {damage.reason}"
        ) from None
    return batch
