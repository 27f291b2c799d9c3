"""What a user sees of the things at hand: in `repr` and in `dir`, in every state."""

import inspect
from types import ModuleType
from typing import Any, cast

import pytest

import millrace
from millrace import blocking
from millrace.client.client import Client
from millrace.client.testing import TestServer
from millrace.model.shown import Handle
from tests.support.tables import table

SECRET = "a-secret-token"


@table("module", [millrace, blocking, millrace.testing])
def test_a_public_module_lists_its_public_names(module: ModuleType) -> None:
    assert dir(module) == list(module.__all__) == sorted(module.__all__)
    assert [name for name in dir(module) if not hasattr(module, name) or name.startswith("_")] == []


def test_every_public_method_is_annotated_with_public_names_or_those_of_python() -> None:
    """What a method of the client returns can be imported by who annotates a variable with it."""
    returned = {
        inspect.signature(method).return_annotation
        for cls in (millrace.Client, millrace.Writer, millrace.Reader, millrace.Transaction)
        for name, method in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_")
    }
    classes = {each for each in returned if isinstance(each, type) and each.__module__.startswith("millrace.")}

    assert {cls.__name__ for cls in classes} <= {*millrace.__all__}


@pytest.mark.asyncio
async def test_a_client_shows_its_server_and_its_state_and_never_its_token(server: TestServer) -> None:
    client = millrace.connect(server.address, token=SECRET)
    at = f"<millrace.Client of {server.address}, "

    seen = [repr(client)]
    async with client:
        seen += [repr(client), repr(client.options), repr(client.segments), repr(client.statistics())]
    seen.append(repr(client))

    assert seen[:2] == [at + "not connected>", at + "connected>"]
    assert seen[-1] == at + "closed>"
    assert [text for text in seen if SECRET in text] == []
    assert [text for text in vars(client) if SECRET in repr(vars(client)[text])] == []


@pytest.mark.asyncio
async def test_what_is_opened_shows_whether_it_is_open(client: Client, name: str) -> None:
    await client.create_stream(name)
    await client.create_stream(f"{name}-bytes")
    at = f"{name} at {client.address}"
    seen = []

    writer = client.writer(name, writer_id="till-7")
    seen.append(repr(writer))
    async with writer:
        _ = writer.write(b"x" * 1000, key="k")
        seen.append(repr(writer))
    seen.append(repr(writer))
    assert seen == [
        f"<millrace.Writer of {at}, id 'till-7', not open yet>",
        f"<millrace.Writer of {at}, id 'till-7', open, 1,065 bytes pending>",
        f"<millrace.Writer of {at}, id 'till-7', closed>",
    ]

    async with client.reader(name, key="k") as reader:
        event = await anext(reader)
        assert repr(reader) == f"<millrace.Reader of {at}, key 'k', open>"
        assert dir(reader) == [
            "arrow_batches", "close", "is_over", "key", "next_events", "position", "stop_before", "stream",
            "to_arrow",
        ]  # fmt: skip
    assert repr(reader) == f"<millrace.Reader of {at}, key 'k', closed>"
    assert "(1,000 bytes)" in repr(event)
    async with client.reader(name, end=millrace.TAIL) as reader:
        assert [each.key async for each in reader] == ["k"]
        assert repr(reader) == f"<millrace.Reader of {at}, at its end>"

    async with client.reader([name]) as several:
        assert repr(several) == f"<millrace.StreamsReader of ('{name}',) at {client.address}, open>"

    transaction = client.transaction(name, name=f"{name}/t")
    assert repr(transaction).endswith("not begun>")
    async with transaction:
        branch = transaction.branch()
        assert repr(branch).endswith("open>")
        await branch.finish()
        assert repr(branch).endswith("finished>")
        assert repr(transaction).endswith(f"'{name}/t', open>")
    assert repr(transaction).endswith("committed>")

    async with client.byte_writer(f"{name}-bytes") as bytes_writer:
        await bytes_writer.write(b"0123456789")
        assert repr(bytes_writer) == f"<millrace.ByteWriter of {name}-bytes at {client.address}, open, at 10>"
    assert repr(client.bookmarks(name)) == f"<millrace.Bookmarks of {at}>"
    for held in (client, writer, reader, several, transaction, branch, bytes_writer, client.segments):
        assert [each for each in dir(held) if each.startswith("_") or not hasattr(held, each)] == []
        assert "refused" not in dir(held)


@pytest.mark.asyncio
async def test_a_stream_of_many_segments_is_shown_shortly(client: Client, name: str) -> None:
    await client.create_stream(name, millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(100)))
    info = await client.stream_info(name)

    assert "... 95 more" in repr(info)
    assert len(repr(info)) < 2000
    assert {"name", "segments", "tail"} <= {*dir(info)}


HANDLES = [
    cls
    for module in (millrace, blocking)
    for name in module.__all__
    if isinstance(cls := getattr(module, name), type) and (module is blocking or issubclass(cls, Handle))
]


@table("cls", HANDLES)
def test_what_was_not_made_can_be_shown(cls: type[Any]) -> None:
    """As a debugger does in an `__init__` that fails."""
    made = cast("Any", cls).__new__(cls)
    assert repr(made).endswith(f"{cls.__name__} not made>")


def test_for_threads_things_show_the_same(server: TestServer, name: str) -> None:
    with blocking.connect(server.address) as client:
        assert repr(client) == f"<millrace.blocking.Client of {server.address}, connected>"
        client.create_stream(name)
        with client.writer(name) as writer, client.reader(name) as reader:
            assert repr(writer) == f"<millrace.blocking.Writer of {name} at {server.address}, open>"
            assert repr(reader) == f"<millrace.blocking.Reader of {name} at {server.address}, open>"
            assert dir(reader) == ["arrow_batches", "close", "next_events", "position", "to_arrow"]
        with client.byte_reader(name) as file:
            assert repr(file) == f"<millrace.blocking.ByteReader of {name} at {server.address}, at 0>"
    assert repr(client) == f"<millrace.blocking.Client of {server.address}, closed>"
    assert repr(writer).endswith("closed>")
    assert repr(server).startswith(f"<millrace.testing.TestServer at {server.address}, ")


def test_what_tests_use_lists_its_public_names(server: TestServer) -> None:
    with millrace.testing.chaos(server, every_s=(3600.0, 3600.0)) as disturber:
        assert {"address", "kill", "restart"} <= {*dir(server)}
        assert {"address", "over"} <= {*dir(disturber)}
        assert [name for shown in (server, disturber) for name in dir(shown) if name.startswith("_")] == []
