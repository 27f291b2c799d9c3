"""What a type checker tells a user: checked by mypy, and never run. See `tests/docs/test_types.py`."""

# mypy: disable-error-code="unused-awaitable"
# A client and a future can be awaited, and here are only looked at.

import asyncio
import concurrent.futures
from collections.abc import AsyncGenerator, Iterator
from typing import assert_type

import millrace
from millrace import HEAD, TAIL, blocking


async def with_asyncio() -> None:
    async with millrace.connect("127.0.0.1:9240") as client:
        assert_type(client, millrace.Client)
        assert_type(await client.create_stream("a/b"), bool)
        assert_type(await client.stream_info("a/b"), millrace.StreamInfo)
        assert_type(await client.segments.append("a/s", b"x"), int)
        assert_type(await client.segments.read("a/s", 0), millrace.ReadResult)
        assert_type(await client.transaction_outcome("t"), millrace.TransactionOutcome)
        assert_type(await client.stream_cut("a/b"), millrace.StreamCut)
        assert_type(await client.bookmarks("a/b").get("name"), millrace.StreamCut | None)
        assert_type(client.list_streams("a"), AsyncGenerator[str])

        async with client.writer("a/b", writer_id="w") as writer:
            assert_type(writer, millrace.Writer)
            assert_type(writer.write(b"x", key="k"), asyncio.Future[millrace.WriteResult])
            assert_type(await writer.write_many([b"x"]), millrace.WriteResult)
            assert_type(writer.stored_through, int)

        async with client.reader("a/b", start=HEAD, end=TAIL) as reader:
            assert_type(reader, millrace.Reader)
            async for event in reader:
                assert_type(event, millrace.Event)
                assert_type(event.value, bytes)
                assert_type(event.key, str | None)
                assert_type(event.headers, dict[str, bytes])
                assert_type(event.position, millrace.EventPosition)
            assert_type(await reader.next_events(), list[millrace.Event])
            assert_type(reader.position(), millrace.StreamCut)

        async with client.reader(["a/*", "b/c"], end={"b/c": TAIL}) as several:
            assert_type(several, millrace.StreamsReader)
            async for event in several:
                assert_type(event, millrace.Event)
            assert_type(several.positions(), dict[str, millrace.StreamCut])

        async with client.transaction("a/b", name="t") as transaction:
            assert_type(transaction, millrace.Transaction)
            assert_type(transaction.write(b"x"), asyncio.Future[millrace.WriteResult])
            assert_type(await transaction.branch().finish(), millrace.BranchToken)
            assert_type(await transaction.commit(), millrace.CommitResult)

        async with client.byte_writer("a/b") as bytes_writer, client.byte_reader("a/b") as bytes_reader:
            assert_type(await bytes_writer.write(b"x"), int)
            assert_type(await bytes_reader.read(), bytes)


def with_threads() -> None:
    with blocking.connect("127.0.0.1:9240") as client:
        assert_type(client, blocking.Client)
        assert_type(client.create_stream("a/b"), bool)
        assert_type(client.stream_info("a/b"), millrace.StreamInfo)
        assert_type(client.segments.append("a/s", b"x"), int)
        assert_type(client.segments.read("a/s", 0), millrace.ReadResult)
        assert_type(client.transaction_outcome("t"), millrace.TransactionOutcome)
        assert_type(client.bookmarks("a/b").get("name"), millrace.StreamCut | None)
        assert_type(client.list_streams("a"), Iterator[str])

        with client.writer("a/b", writer_id="w") as writer:
            assert_type(writer, blocking.Writer)
            assert_type(writer.write(b"x", key="k"), concurrent.futures.Future[millrace.WriteResult])
            assert_type(writer.write_many([b"x"]).result(), millrace.WriteResult)
            assert_type(writer.stored_through, int)

        with client.reader("a/b", start=HEAD, end=TAIL) as reader:
            assert_type(reader, blocking.Reader)
            for event in reader:
                assert_type(event, millrace.Event)
            assert_type(reader.next_events(), list[millrace.Event])
            assert_type(reader.position(), millrace.StreamCut)

        with client.reader(["a/*", "b/c"]) as several:
            assert_type(several, blocking.StreamsReader)
            for event in several:
                assert_type(event, millrace.Event)
            assert_type(several.positions(), dict[str, millrace.StreamCut])

        with client.transaction("a/b", name="t") as transaction:
            assert_type(transaction, blocking.Transaction)
            assert_type(transaction.write(b"x"), concurrent.futures.Future[millrace.WriteResult])
            assert_type(transaction.branch().finish(), millrace.BranchToken)
            assert_type(transaction.commit(), millrace.CommitResult)

        with client.byte_writer("a/b") as bytes_writer, client.byte_reader("a/b") as bytes_reader:
            assert_type(bytes_writer, blocking.ByteWriter)
            assert_type(bytes_reader.read(), bytes)


def errors(error: Exception) -> None:
    if isinstance(error, millrace.CutTruncatedError):
        assert_type(error.resume_at, millrace.StreamCut | None)
    if isinstance(error, millrace.MillraceError):
        assert_type(error.retriable, bool)
        assert_type(error.code, int | None)
    if isinstance(error, millrace.DeliveryTimeoutError):
        assert_type(error.stored_count, int)
