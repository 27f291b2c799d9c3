"""Requests that are neither appends nor reads, over real sockets."""

import asyncio
from collections import Counter
from inspect import isfunction
from pathlib import Path
from typing import Any, cast, get_type_hints

import pytest

from millrace.server.app import Server
from millrace.server.kinds.producers.requests import ProducerRequests
from millrace.server.kinds.segments.requests import SegmentRequests
from millrace.server.kinds.streams.requests import StreamRequests
from millrace.server.kinds.transactions.requests import TransactionRequests
from millrace.server.kinds.writers.requests import WriterRequests
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from millrace.wire.limits import KIB
from tests.support.protocol import Peer, code_of, set_attribute
from tests.support.servers import BUSY, server_options
from tests.support.waiting import settled

HANDLED = [
    cls
    for cls in m.MESSAGES.values()
    if issubclass(cls, m.Request)
    and cls not in {m.Hello, m.Append, m.SequencedAppend, m.Read, m.Subscribe, m.BeginTransaction, m.AddParts}
]
"""Requests that the connection does not answer itself, and that appends do not depend on."""


GROUPS = [SegmentRequests, WriterRequests, StreamRequests, TransactionRequests, ProducerRequests]


def test_every_request_has_one_method_that_returns_its_reply() -> None:
    methods = [
        get_type_hints(method)
        for group in GROUPS
        for name, method in vars(group).items()
        if isfunction(method) and not name.startswith("_")
    ]

    assert [hints["message"] for hints in methods if hints["message"].reply is not hints["return"]] == []
    assert Counter(hints["message"] for hints in methods) == Counter(HANDLED)


def test_a_request_that_is_decided_in_order_is_decided_by_its_message() -> None:
    ordered = TransactionRequests(cast("Any", None)).ordered
    assert {cls for cls, request in ordered.items() if request.precedes_appends} == {m.BeginTransaction, m.AddParts}
    for cls, request in ordered.items():
        assert get_type_hints(request.decide)["message"] is cls


async def listed(peer: Peer, prefix: str, *, page: int) -> list[str]:
    """Walk a list page by page."""
    names: list[str] = []
    while True:
        after = names[-1] if names else ""
        reply = await peer.ask(m.ListSegments(prefix, after, page), m.SegmentList)
        assert len(reply.segments) <= page
        names += [segment.name for segment in reply.segments]
        if not reply.more:
            return names


@pytest.mark.asyncio
async def test_segments_are_listed_in_pages(peer: Peer) -> None:
    names = sorted(f"{scope}/s{number}" for scope in ("a", "b", "bb", "c") for number in range(7))
    for name in names:
        await peer.create_segment(name)
    assert await listed(peer, "", page=5) == names
    for prefix in ("b/", "b", "bb/s", "c/s6", "zz", "a/s1"):
        expected = [name for name in names if name.startswith(prefix)]
        for page in (1, 3, 7, 1000):
            assert await listed(peer, prefix, page=page) == expected


@pytest.mark.asyncio
async def test_names_obey_one_rule(tmp_path: Path) -> None:
    """Behaviour 52: names never become paths; whatever is not `scope/name` is refused, for streams too."""
    names = [
        "",
        "a",
        "a/b/c",
        "../a",
        "a/..",
        "a/.b",
        "/a",
        "a/",
        "a/b\n",
        "a/\u00e9",
        "a/b#0",
        "a/" + "x" * 101,
        "a/b c",
        "a\\b/c",
    ]
    async with Server(server_options(tmp_path)) as server, await Peer.connect(server.address) as peer:
        for name in names:
            assert await code_of(peer.ask(m.CreateSegment(name), m.SegmentInfo)) is ErrorCode.INVALID_NAME
            assert await code_of(peer.ask(m.CreateStream(name, 1, ""), m.StreamInfo)) is ErrorCode.INVALID_NAME
        for writer_id in ("a\nb", "x" * 256, "\u200b"):
            assert await code_of(peer.ask(m.OpenWriter(writer_id, [], 0), m.WriterOpened)) is ErrorCode.INVALID_NAME
            assert await code_of(peer.ask(m.GetWriter(writer_id, []), m.WriterOpened)) is ErrorCode.INVALID_NAME
        assert (await peer.ask(m.ListSegments("", "", 10), m.SegmentList)).segments == []
        files = await asyncio.to_thread(lambda: {path.name for path in tmp_path.rglob("*")})
        assert not files & {"a", "b", "c"}


@pytest.mark.asyncio
async def test_keys_and_values_of_attributes_are_bounded(peer: Peer) -> None:
    segment_id = await peer.create_segment("raw/a")
    for key, value in (("", b""), ("k" * 256, b""), ("#merged/1", b""), ("k", bytes(64 * KIB + 1))):
        request = set_attribute(segment_id, key, expected=None, value=value)
        assert await code_of(peer.ask(request, m.Attribute)) is ErrorCode.INVALID_ARGUMENT
    await peer.ask(set_attribute(segment_id, "k", expected=None, value=bytes(60 * KIB)), m.Attribute)
    found = await peer.ask(m.GetAttribute(segment_id, "k"), m.Attribute)
    assert (found.present, found.value) == (1, bytes(60 * KIB))


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("moved", [False, True], ids=["tail", "tier 2"])
async def test_the_index_names_borders_of_appends_and_events_before_them(tmp_path: Path, moved: bool) -> None:
    options = server_options(tmp_path, container=BUSY) if moved else server_options(tmp_path)
    async with Server(options) as server, await Peer.connect(server.address) as peer:
        segment_id = await peer.create_segment("raw/a")
        borders = {0: 0}
        length = 0
        for number in range(60):
            size = 3 * KIB + number
            await peer.store(segment_id, bytes(size), event_count=3)
            length += size
            borders[length] = 3 * (number + 1)
        if moved:
            await settled(server)
        index = await peer.ask(
            m.GetIndex(segment_id=segment_id, start=0, end=length, spacing_bytes=1, count_max=1000), m.Index
        )
        assert len(index.entries) >= 2
        for entry in index.entries:
            assert borders[entry.offset] == entry.events
        first = index.entries[0]
        found = await peer.ask(m.Seek(segment_id, first.wall_time_us), m.Index)
        assert found.entries[0].offset <= first.offset
        found = await peer.ask(m.Seek(segment_id, 0), m.Index)
        assert found.entries[0].offset == 0
        request = m.GetIndex(segment_id=segment_id, start=0, end=length, spacing_bytes=0, count_max=10)
        assert await code_of(peer.ask(request, m.Index)) is ErrorCode.INVALID_ARGUMENT
