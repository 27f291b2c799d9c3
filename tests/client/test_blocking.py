import inspect
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import millrace
from millrace import blocking
from millrace.client.admin.bookmarks import Bookmarks, Cursors
from millrace.client.admin.segments import Segments
from millrace.client.client import Client
from millrace.client.read.byte_reader import ByteReader
from millrace.client.read.reader import Reader, ReaderOptions
from millrace.client.read.streams_reader import StreamsReader
from millrace.client.testing import TestServer
from millrace.client.transactions.branch import Branch
from millrace.client.transactions.transaction import Transaction
from millrace.client.write.byte_writer import ByteWriter
from millrace.client.write.options import WriterOptions
from millrace.client.write.writer import Writer
from tests.support.tables import table
from tests.support.waiting import PATIENCE_S

# What a class for threads leaves out, and why.
LEFT_OUT: dict[type, set[str]] = {
    Client: {"cut_at_time_in", "segment_scan", "split_range"},  # what planners ask many times at once
    Segments: {"open"},  # a handle to pipeline appends from inside the loop: `append_nowait` is the one for threads
    Bookmarks: set(),
    Cursors: set(),
    # `write` waits for room, and `client.writer` opens.
    Writer: {"open", "send", "drain", "has_room", "refused", "statistics"},
    Transaction: {"begin", "send", "drain"},  # `write` waits for room, and `client.transaction` begins
    Branch: {"send", "drain", "end"},  # `write` waits for room, and the transaction ends it
    # What a reader of several streams asks of that of each.
    Reader: {"poll", "is_over", "begin", "rest", "leave", "take_batch"} | {"stop_before"},  # and a conditional cut
    StreamsReader: set(),
    ByteWriter: {"durable_offset"},
    ByteReader: {"readexactly"},  # of a file: `io.BufferedReader`
}


def public_names(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers_static(kind, callable_or_property) if not name.startswith("_")}


def callable_or_property(member: object) -> bool:
    return callable(member) or isinstance(member, property)


@table("source", LEFT_OUT, ids=lambda kind: kind.__name__)
def test_threads_have_every_method_of_the_async_client(source: type) -> None:
    """A method that is added to the async client needs one line in `blocking`, or a reason above."""
    threaded = getattr(blocking, source.__name__)

    assert public_names(source) - public_names(threaded) == LEFT_OUT[source]
    for name in sorted(public_names(source) & public_names(threaded)):
        member = inspect.getattr_static(threaded, name)
        assert inspect.getdoc(member), f"{threaded.__name__}.{name} has no docstring"


def test_signatures_and_docstrings_are_those_of_the_async_client() -> None:
    assert inspect.signature(blocking.Client.create_stream) == inspect.signature(Client.create_stream)
    assert inspect.getdoc(blocking.Client.create_stream) == inspect.getdoc(Client.create_stream)
    assert "entered with `with`" in (inspect.getdoc(blocking.Client.writer) or "")


def test_segments_and_streams_without_await(server: TestServer, name: str) -> None:
    with millrace.blocking.connect(server.address) as client:
        client.segments.create(name)
        assert client.segments.append(name, b"abc") == 0
        assert [client.segments.append_nowait(name, b"x").result() for _ in range(3)] == [3, 4, 5]
        assert client.segments.read(name, 0).data == b"abcxxx"
        client.segments.set_attribute(name, "a", expected=None, value=b"1")
        assert client.segments.get_attribute(name, "a") == b"1"
        with pytest.raises(millrace.ConditionFailedError):
            client.segments.append(name, b"x", expected_offset=0)
        assert name in [info.name for info in client.segments.list("tests/")]
        client.segments.seal(name)
        assert b"".join(chunk.data for chunk in client.segments.tail(name, 1)) == b"bcxxx"

        assert client.create_stream(name)
        assert name in list(client.list_streams("tests/"))
        with client.writer(name, writer_id=f"{name}:w") as writer:
            assert writer.write(b"0", key="k").result().event_number == 1
            writer.write_many([b"%d" % number for number in range(1, 100)])
            writer.flush()
            assert list(writer.last_event_numbers.values()) == [100]
        with client.reader(name, end=millrace.TAIL) as reader:
            first = [next(reader).value for _ in range(5)]
            middle = reader.position()
            assert [*first, *(event.value for event in reader)] == [b"%d" % number for number in range(100)]
        with client.reader(name, start=middle, end=client.stream_cut(name)) as reader:
            assert sum(batch.num_rows for batch in reader.arrow_batches()) == 95
        ranges = client.plan_ranges(name)
        assert sum(batch.num_rows for part in ranges for batch in client.read_range(part)) == 100


def test_events_come_in_blocks(server: TestServer, name: str) -> None:
    """What is left of the block in hand, then one block at a time; the position follows."""
    with millrace.blocking.connect(server.address) as client:
        client.create_stream(name)
        with client.writer(name) as writer:
            for block in (b"abc", b"de"):
                writer.write_many([bytes([each]) for each in block]).result()
        with client.reader(name, end=millrace.TAIL) as reader:
            assert next(reader).value == b"a"
            assert [event.value for event in reader.next_events()] == [b"b", b"c"]
            middle = reader.position()
            assert [event.value for event in reader.next_events()] == [b"d", b"e"]
            assert reader.next_events() == []
            assert reader.position() == client.stream_cut(name)
        with client.reader(name, start=middle, end=millrace.TAIL) as reader:
            assert [event.value for event in reader] == [b"d", b"e"]


def test_a_place_before_an_event_in_hand(server: TestServer, name: str) -> None:
    """Behaviour 26: of any event of the block, whatever of it was handed out; and of no other event."""
    with millrace.blocking.connect(server.address) as client:
        client.create_stream(name)
        with client.writer(name) as writer:
            for block in (b"abc", b"de"):
                writer.write_many([bytes([each]) for each in block]).result()
        with client.reader(name, end=millrace.TAIL) as reader:
            first = next(reader)
            assert reader.position(before=first) == client.stream_head(name)
            _, third = reader.next_events()
            for event, left in ((first, b"abcde"), (third, b"cde")):
                with client.reader(name, start=reader.position(before=event), end=millrace.TAIL) as again:
                    assert b"".join(each.value for each in again) == left
            fourth = next(reader)
            assert reader.position(before=fourth) != reader.position()
            with pytest.raises(millrace.InvalidArgumentError, match="not an event of the current block"):
                reader.position(before=third)


def test_a_bookmark_where_a_condition_begins_to_hold(server: TestServer, name: str) -> None:
    """Behaviour 79, for threads."""
    with millrace.blocking.connect(server.address) as client:
        client.create_stream(name)
        with client.writer(name) as writer:
            writer.write_many([b"%d" % number for number in range(100)]).result()
        cut = client.bookmarks(name).save_when("fifty", lambda event: event.value == b"50")
        assert client.bookmarks(name).get("fifty") == cut
        with client.reader(name, start="bookmark:fifty") as reader:
            assert next(reader).value == b"50"


def test_a_wrong_block_is_refused_where_it_is_written(server: TestServer, name: str) -> None:
    with millrace.blocking.connect(server.address) as client:
        client.create_stream(name)
        with client.writer(name) as writer, pytest.raises(millrace.InvalidArgumentError):
            writer.write_many([b"x"], keys=["a", "b"])


def test_writers_and_readers_work_without_with(server: TestServer, name: str) -> None:
    with millrace.blocking.connect(server.address) as client:
        client.create_stream(name)
        writer = client.writer(name)
        futures = [writer.write(b"%d" % number, key="k") for number in range(100)]
        writer.close()
        writer.close()
        assert sum(future.result(0).event_count > 0 for future in futures) == 100
        with pytest.raises(millrace.ClientClosedError, match="the writer was closed"):
            writer.write_many([b"x"])
        with pytest.raises(millrace.ClientClosedError, match="the writer was closed"):
            writer.write(b"x").result()
        reader = client.reader(name, end=millrace.TAIL)
        assert next(reader).value == b"0"
        assert [int(event.value) for event in reader] == list(range(1, 100))
        reader.close()
        with pytest.raises(millrace.ClientClosedError, match="the reader was closed"):
            next(reader)
        with pytest.raises(millrace.StreamNotFoundError):
            client.writer(f"{name}-missing")


def test_many_threads_share_a_client_and_a_writer(server: TestServer, name: str) -> None:
    with millrace.blocking.connect(server.address) as client, ThreadPoolExecutor(8) as pool:
        client.create_stream(name)
        with client.writer(name) as writer:

            def write(thread: int) -> None:
                for number in range(50):
                    writer.write(b"%d" % number, key=f"{thread}")

            list(pool.map(write, range(8)))
        seen: dict[str | None, list[int]] = {}
        with client.reader(name, end=millrace.TAIL) as reader:
            for event in reader:
                seen.setdefault(event.key, []).append(int(event.value))
        assert seen == {f"{thread}": list(range(50)) for thread in range(8)}


def test_writes_of_a_thread_stay_in_order_while_the_buffer_is_full(server: TestServer, name: str) -> None:
    """Leaving the writer waits for all of them, and each future is done."""
    options = WriterOptions(block_size_bytes=16 * 1024, drain_high_bytes=64 * 1024, drain_low_bytes=32 * 1024)
    with millrace.blocking.connect(server.address) as client:
        client.create_stream(name)
        with client.writer(name, options=options) as writer:
            futures = [writer.write(b"%d" % number, key="k") for number in range(20_000)]
            assert writer.pending_bytes <= 66 * 1024
        assert sum(future.result(10).event_count > 0 for future in futures) == 20_000
        with client.reader(name, end=millrace.TAIL) as reader:
            assert [int(event.value) for event in reader] == list(range(20_000))


def test_leaving_a_writer_raises_why_a_write_failed(server: TestServer, name: str) -> None:
    with millrace.blocking.connect(server.address) as client:
        client.create_stream(name)
        with client.writer(name) as writer:
            writer.write(b"stored", key="k")
            writer.write(b"x" * (9 << 20))
            with pytest.raises(millrace.EventTooLargeError):
                writer.flush()
            writer.write(b"stored, too", key="k")
        with pytest.raises(millrace.EventTooLargeError), client.writer(name) as writer:
            future = writer.write(b"x" * (9 << 20))
        assert isinstance(future.exception(10), millrace.EventTooLargeError)
        writing = client.writer(name)
        writer = writing.__enter__()
        client.seal_stream(name)
        futures = [writer.write(b"x") for _ in range(10)]
        with pytest.raises(millrace.StreamSealedError):
            writing.__exit__(None, None, None)
        assert {type(future.exception(10)) for future in futures} == {millrace.StreamSealedError}
        with client.reader(name, end=millrace.TAIL) as reader:
            assert [event.value for event in reader] == [b"stored", b"stored, too"]


@pytest.mark.parametrize("is_flushed", [False, True])
def test_an_error_that_the_program_handled_is_not_raised_again(
    server: TestServer, name: str, *, is_flushed: bool
) -> None:
    """As with the client for asyncio, whose `write` raises it in the call."""
    with millrace.blocking.connect(server.address) as client:
        client.create_stream(name)
        with client.writer(name) as writer:
            for value in (b"a", b"x" * (9 << 20), b"b"):
                try:
                    writer.write(value).result(PATIENCE_S)
                except millrace.EventTooLargeError:
                    writer.write(b"dead letter")
            if is_flushed:
                writer.flush()
        writer = client.writer(name)
        handled, _ignored = writer.write(b"x", timestamp_us=1 << 63), writer.write(b"x", timestamp_us=1 << 64)
        with pytest.raises(millrace.InvalidArgumentError):
            handled.result(PATIENCE_S)
        with pytest.raises(millrace.InvalidArgumentError, match=str(1 << 64)):
            writer.close()
        with client.reader(name, end=millrace.TAIL) as reader:
            assert [event.value for event in reader] == [b"a", b"dead letter", b"b"]


def test_what_is_written_from_a_buffer_is_copied(server: TestServer, name: str) -> None:
    with millrace.blocking.connect(server.address) as client:
        client.create_stream(name)
        buffer = bytearray(4)
        with client.writer(name) as writer:
            for number in range(100):
                buffer[:] = b"%04d" % number
                writer.write(buffer, key="k")  # type: ignore[arg-type]  # what has a buffer is taken, too
        with client.reader(name, end=millrace.TAIL) as reader:
            assert [int(event.value) for event in reader] == list(range(100))


def test_an_unreachable_server_leaves_no_thread() -> None:
    before = threading.active_count()
    with pytest.raises(millrace.ServerUnreachableError):
        millrace.blocking.connect("127.0.0.1:1")
    assert threading.active_count() == before


def test_a_closed_client_refuses(server: TestServer, name: str) -> None:
    client = millrace.blocking.connect(server.address)
    client.close()
    client.close()
    with pytest.raises(millrace.ClientClosedError):
        client.create_stream(name)


def test_closing_a_client_ends_the_threads_that_use_it(server: TestServer, name: str) -> None:
    """Each sees `ClientClosedError` and nothing else, wherever it is when another thread closes."""

    def read() -> None:
        with client.reader(name, start=millrace.HEAD) as reader:
            while reader.next_events():
                pass

    def read_batches() -> None:
        with client.reader(name, start=millrace.HEAD) as reader:
            for _ in reader.arrow_batches():
                pass

    def open_and_leave() -> None:
        while True:
            with client.reader(name, start=millrace.HEAD, end=millrace.TAIL) as reader:
                list(reader)

    def list_and_leave() -> None:
        while True:
            next(iter(client.list_streams("tests")))

    def write() -> None:
        with client.writer(name) as writer:
            while True:
                writer.write(b"x").result()

    uses = [read, read_batches, open_and_leave, list_and_leave, write]
    for round_number in range(30):
        with blocking.connect(server.address) as client, ThreadPoolExecutor(len(uses)) as pool:
            client.create_stream(name)
            done = [pool.submit(use) for use in uses]
            for _ in range(round_number):  # so that the threads are elsewhere in each round
                client.ping()
            client.close()
            errors = [future.exception(timeout=30) for future in done]
        assert [type(error) for error in errors] == [millrace.ClientClosedError] * len(uses), errors


def test_a_forked_child_gets_a_clear_error(server: TestServer) -> None:
    """Behaviour 10."""
    with millrace.blocking.connect(server.address) as client:
        child = os.fork()
        if child == 0:  # nothing of pytest may run here
            try:
                client.ping()
                os._exit(1)
            except millrace.ForkedClientError:
                os._exit(0)
            finally:
                os._exit(2)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert client.ping() > 0


def test_scaling_cuts_and_bookmarks_without_await(server: TestServer, name: str) -> None:
    with millrace.blocking.connect(server.address) as client:
        configuration = millrace.StreamConfig(tags=("blocking",))
        client.create_stream(name)
        assert client.update_stream(name, configuration).configuration == configuration
        (first,) = client.stream_info(name).open_segments
        with client.writer(name) as writer:
            writer.write_many([b"%d" % number for number in range(10)], key="k").result()
            info = client.scale_stream(name, seal=[first.segment_id], ranges=[(0.0, 0.5), (0.5, 1.0)])
            writer.write_many([b"%d" % number for number in range(10, 20)], key="k").result()
            assert writer.pending_bytes == 0
        assert len(info.open_segments) == 2
        assert [len(epoch.created) for epoch in client.stream_history(name)] == [1, 2]
        assert isinstance(client.explain_stream(name), dict)
        assert name in list(client.list_streams("tests/", tag="blocking"))
        assert name not in list(client.list_streams("tests/", tag="another"))

        middle = client.stream_cut(name, after_events=13)
        assert client.distance(millrace.HEAD, middle).events == 13
        assert client.stream_cut(name, after_events=2, start=middle) == client.stream_cut(name, after_events=15)
        assert client.distance(client.stream_cut(name, after_bytes=0), client.stream_head(name)).size_bytes == 0
        assert client.stream_cut(name, at_time=2**62) == client.stream_cut(name)
        with pytest.raises(millrace.InvalidArgumentError):
            client.stream_cut(name, at_time=1, after_events=1)
        with client.reader(name, start=middle, end=millrace.TAIL) as reader:
            events = list(reader)
        assert [event.value for event in events] == [b"%d" % number for number in range(13, 20)]
        assert client.fetch_event(events[3].position) == events[3]
        assert sum(batch.num_rows for part in client.plan_ranges(name) for batch in client.read_range(part)) == 20

        bookmarks, cursors = client.bookmarks(name), client.cursors(name)
        assert bookmarks.save("middle", middle) == bookmarks.get("middle") == middle
        assert cursors.set("reader") == cursors.get("reader") == client.stream_head(name)
        assert [saved.name for saved in bookmarks.list()] == ["middle"]
        assert [saved.name for saved in cursors.list()] == ["reader"]
        assert bookmarks.forget("middle")
        assert cursors.forget("reader")
        assert not cursors.forget("reader")


def test_a_reader_that_is_overtaken_by_a_truncation(server: TestServer, name: str) -> None:
    """Behaviour 26, for threads."""
    with millrace.blocking.connect(server.address) as client:
        client.create_stream(name)
        with client.writer(name) as writer:
            for number in range(100):
                writer.write_many([b"%06d" % number + b"." * 10_000]).result()
        with client.reader(name, options=ReaderOptions(window_bytes=64 * 1024)) as reader:
            seen = [next(reader).value]
            client.truncate_stream(name, millrace.TAIL)
            with client.writer(name) as writer:
                writer.write(b"after").result()
            with pytest.raises(millrace.CutTruncatedError, match=f"{name}: .* bytes are lost.* HEAD") as caught:
                seen.extend(event.value for event in reader)
        assert 1 < len(seen) < 100
        assert caught.value.resume_at is not None
        with client.reader(name, start=caught.value.resume_at, end=millrace.TAIL) as reader:
            assert [event.value for event in reader] == [b"after"]
