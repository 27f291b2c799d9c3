from millrace.model.exclusive_writer import ExclusiveWriter
from millrace.server.container.state.exclusive_writers import step
from millrace.wire import messages as m
from tests.server.container.histories import apply
from tests.server.container.states import new_state

FIRST = ExclusiveWriter(21, 1, "a", 5)
SECOND = ExclusiveWriter(22, 4, "", 6)


def opening(writer: ExclusiveWriter, *, stream_id: int = 31, fenced: ExclusiveWriter | None = None) -> m.WriterRecorded:
    return m.WriterRecorded(
        writer_number=writer.number,
        writer_epoch=writer.epoch,
        opened_us=writer.since_us,
        writer_id=writer.writer_id,
        stream_id=stream_id,
        is_exclusive=1,
        fenced_number=0 if fenced is None else fenced.number,
        fenced_epoch=0 if fenced is None else fenced.epoch + 1,
    )


def released(writer: ExclusiveWriter, *, epoch: int | None = None) -> m.ExclusiveReleased:
    return m.ExclusiveReleased(
        stream_id=31, writer_number=writer.number, writer_epoch=writer.epoch if epoch is None else epoch
    )


def test_a_step_returns_the_writer_after_a_record() -> None:
    assert step(None, opening(FIRST)) == FIRST
    assert step(FIRST, opening(SECOND)) == SECOND
    assert step(SECOND, m.StreamSealed(31)) is None
    assert step(SECOND, m.StreamDeleted(31)) is None
    assert step(SECOND, m.WritersExpired(expired_us=9, marked=[22], forgotten=[])) is None


def test_a_release_is_of_one_writer() -> None:
    """A record of a release that comes after a takeover is no release of the new one."""
    assert step(SECOND, released(FIRST)) == SECOND
    assert step(SECOND, released(SECOND, epoch=SECOND.epoch - 1)) == SECOND
    assert step(SECOND, released(SECOND)) is None
    assert step(None, released(SECOND)) is None


def test_the_next_checkpoint_stores_what_changed() -> None:
    state = new_state()
    apply(state, released(SECOND), m.StreamDeleted(31))
    assert not state.changed_exclusive
    apply(state, opening(FIRST))
    assert list(state.changed_exclusive) == [31]


def test_expiry_ends_what_the_writers_have() -> None:
    state = new_state()
    apply(state, opening(FIRST), opening(SECOND, stream_id=32), opening(FIRST, stream_id=33))

    apply(state, m.WritersExpired(expired_us=9, marked=[FIRST.number], forgotten=[]))

    assert state.durable.exclusive_writers == {32: SECOND}
    assert state.admitted.exclusive_writers == {}, "nothing was admitted"
    state.admit_as_durable()
    assert state.admitted.exclusive_writers == {32: SECOND}


def test_a_takeover_fences_by_the_same_record() -> None:
    state = new_state()
    apply(state, opening(FIRST))
    assert state.durable.exclusive_writers == {31: FIRST}

    apply(state, opening(SECOND, fenced=FIRST))

    assert state.durable.exclusive_writers == {31: SECOND}
    assert (state.writers[21].row.epoch, state.writers[22].row.epoch) == (2, 4)
    assert state.writers[21].row.nonces.endswith(m.NO_NONCE)


def test_a_writer_without_an_id_has_no_row_on_the_stream() -> None:
    state = new_state()

    apply(state, opening(FIRST), opening(SECOND))

    assert (list(state.writers[21].streams), list(state.writers[22].streams)) == ([31], [])


def test_a_release_by_force_fences() -> None:
    state = new_state()
    apply(state, opening(SECOND))

    apply(state, m.ExclusiveReleased(stream_id=31, writer_number=22, writer_epoch=4, fenced_epoch=5))

    assert (state.durable.exclusive_writers, state.writers[22].row.epoch) == ({}, 5)


def test_what_damage_has_made_unknown_is_left_aside() -> None:
    state = new_state()

    apply(state, m.ExclusiveReleased(stream_id=31, writer_number=22, writer_epoch=4, fenced_epoch=5))
    apply(state, opening(FIRST, fenced=SECOND))

    assert state.durable.exclusive_writers == {31: FIRST}
    assert state.writers.get(22) is None
