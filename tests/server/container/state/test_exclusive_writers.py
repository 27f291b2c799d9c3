from millrace.model.exclusive_writer import ExclusiveWriter
from millrace.server.container.state.exclusive_writers import ExclusiveWriters
from millrace.wire import messages as m
from tests.server.container.histories import apply
from tests.server.container.states import new_state

FIRST = ExclusiveWriter(21, 1, "a", 5)
SECOND = ExclusiveWriter(22, 4, "", 6)


def opening(writer: ExclusiveWriter, *, fenced: ExclusiveWriter | None = None) -> m.WriterRecorded:
    return m.WriterRecorded(
        writer_number=writer.number,
        writer_epoch=writer.epoch,
        opened_us=writer.since_us,
        writer_id=writer.writer_id,
        stream_id=31,
        is_exclusive=1,
        fenced_number=0 if fenced is None else fenced.number,
        fenced_epoch=0 if fenced is None else fenced.epoch + 1,
    )


def test_what_is_queued_is_admitted_and_not_durable() -> None:
    writers = ExclusiveWriters({31: FIRST})

    writers.admit(31, SECOND)
    assert (writers.admitted, writers.durable) == ({31: SECOND}, {31: FIRST})
    writers.admit_release(31)
    assert (writers.admitted, writers.durable) == ({}, {31: FIRST})
    assert not writers.unstored
    writers.admit_as_durable()
    assert writers.admitted == {31: FIRST}


def test_a_release_is_of_one_writer() -> None:
    """A record of a release that comes after a takeover is no release of the new one."""
    writers = ExclusiveWriters({31: SECOND})

    writers.release(31, number=FIRST.number, epoch=FIRST.epoch)
    writers.release(31, number=SECOND.number, epoch=SECOND.epoch - 1)
    writers.release(32, number=SECOND.number, epoch=SECOND.epoch)
    assert (writers.durable, list(writers.unstored)) == ({31: SECOND}, [])
    writers.release(31, number=SECOND.number, epoch=SECOND.epoch)
    assert (writers.durable, list(writers.unstored)) == ({}, [31])


def test_expiry_ends_what_the_writers_have() -> None:
    writers = ExclusiveWriters({31: FIRST, 32: SECOND, 33: FIRST})

    writers.admit_expiry([FIRST.number])
    assert (list(writers.admitted), list(writers.durable)) == ([32], [31, 32, 33])
    writers.expire([FIRST.number])
    assert (list(writers.durable), sorted(writers.unstored)) == ([32], [31, 33])


def test_a_takeover_fences_by_the_same_record() -> None:
    state = new_state()
    apply(state, opening(FIRST))
    assert state.exclusive_writers.durable == {31: FIRST}

    apply(state, opening(SECOND, fenced=FIRST))

    assert state.exclusive_writers.durable == {31: SECOND}
    assert (state.writers[21].epoch, state.writers[22].epoch) == (2, 4)
    assert state.writers[21].nonces.endswith(m.NO_NONCE)


def test_a_writer_without_an_id_has_no_row_on_the_stream() -> None:
    state = new_state()

    apply(state, opening(FIRST), opening(SECOND))

    assert (list(state.writers[21].streams), list(state.writers[22].streams)) == ([31], [])


def test_a_release_by_force_fences() -> None:
    state = new_state()
    apply(state, opening(SECOND))

    apply(state, m.ExclusiveReleased(stream_id=31, writer_number=22, writer_epoch=4, fenced_epoch=5))

    assert (state.exclusive_writers.durable, state.writers[22].epoch) == ({}, 5)


def test_what_damage_has_made_unknown_is_left_aside() -> None:
    state = new_state()

    apply(state, m.ExclusiveReleased(stream_id=31, writer_number=22, writer_epoch=4, fenced_epoch=5))
    apply(state, opening(FIRST, fenced=SECOND))

    assert state.exclusive_writers.durable == {31: FIRST}
    assert state.writers.get(22) is None
