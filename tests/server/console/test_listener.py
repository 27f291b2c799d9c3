"""HTTP with bounds: connections, their time, and what they may send."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from http import HTTPStatus
from select import select

import pytest

from millrace.server.console.listener import (
    REQUEST_SIZE_BYTES_MAX,
    HttpListener,
    HttpRequest,
    HttpResponse,
    StreamedResponse,
)
from millrace.server.host.proxy_protocol import TrustedProxies
from tests.support.waiting import PATIENCE_S

LARGE = bytes(64 << 20)
PROXIES = TrustedProxies("127.0.0.2")


async def numbers() -> AsyncIterator[bytes]:
    """Two chunks, and then nothing."""
    yield b"bc"
    yield b"def"
    await asyncio.Event().wait()


@asynccontextmanager
async def respond(request: HttpRequest) -> AsyncIterator[HttpResponse | StreamedResponse]:
    if request.path == "/stream":
        yield StreamedResponse(
            content_type="text/plain", headers={}, opening=b"a", chunks=numbers(), patience_s=PATIENCE_S
        )
        return
    if request.path == "/never":
        await asyncio.Event().wait()
    if request.path == "/slow":
        yield HttpResponse(HTTPStatus.UNAUTHORIZED, "text/plain", b"", delay_s=PATIENCE_S)
        return
    if request.path == "/address":
        yield HttpResponse(HTTPStatus.OK, "text/plain", request.address.encode())
        return
    path, accept = request.path, request.headers.get("accept", "")
    yield HttpResponse(HTTPStatus.OK, "text/plain", LARGE if path == "/large" else f"{path} {accept}".encode())


@pytest.fixture
def listener() -> Iterator[HttpListener]:
    listener = HttpListener(
        host="127.0.0.1", port=0, respond=respond, proxies=PROXIES, connections_count_max=4, deadline_s=60.0
    )
    yield listener
    listener.close()


@pytest.fixture
def hasty() -> Iterator[HttpListener]:
    listener = HttpListener(host="127.0.0.1", port=0, respond=respond, deadline_s=0.3)
    yield listener
    listener.close()


def connected(listener: HttpListener, *, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", listener.port), timeout=60, source_address=(source, 0))


def answer(listener: HttpListener, request: bytes) -> bytes:
    with connected(listener) as peer:
        peer.sendall(request)
        return received(peer)


def streaming(listener: HttpListener) -> socket.socket:
    """A peer that has received all that a stream gives."""
    peer = connected(listener)
    peer.sendall(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
    got = b""
    while not got.endswith(b"\r\ndef\r\n"):
        got += peer.recv(1 << 16)
    assert got.endswith(b"\r\n\r\n1\r\na\r\n2\r\nbc\r\n3\r\ndef\r\n")
    return peer


def received(peer: socket.socket) -> bytes:
    parts = []
    try:
        while part := peer.recv(1 << 16):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


def test_a_request_is_answered_and_the_connection_ended(listener: HttpListener) -> None:
    got = answer(listener, b"GET /a?b HTTP/1.1\r\nHost: x\r\nAccept: text/html\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nConnection: close\r\n" in got
    assert got.endswith(b"\r\n\r\n/a text/html")


def test_head_is_answered_without_a_body(listener: HttpListener) -> None:
    got = answer(listener, b"HEAD /a HTTP/1.1\r\nHost: x\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 200 OK\r\n")
    assert got.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + bytes(b"a" * 2 * REQUEST_SIZE_BYTES_MAX), b"431"),
    ],
)
def test_what_cannot_be_answered_is_told(listener: HttpListener, request_bytes: bytes, status: bytes) -> None:
    assert answer(listener, request_bytes).startswith(b"HTTP/1.1 " + status)


def test_peers_that_send_no_request_keep_nobody_out(listener: HttpListener) -> None:
    """Behaviour 87, of the console: the one that has been silent for longest makes room."""
    with ExitStack() as stack:
        silent = [stack.enter_context(connected(listener)) for _ in range(4)]
        for peer in silent:
            peer.sendall(b"GET / HT")
        for _ in range(3):
            assert answer(listener, b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n").endswith(b"/a ")
        assert received(silent[0]) == b""
        silent[3].sendall(b"TP/1.1\r\nHost: x\r\n\r\n")
        assert received(silent[3]).startswith(b"HTTP/1.1 200 OK")


def test_one_address_does_not_take_all_places_with_requests_that_take_long(listener: HttpListener) -> None:
    """Behaviour 104: addresses share the places of connections that are being answered."""
    with ExitStack() as stack:
        for _ in range(2):
            peer = stack.enter_context(connected(listener))
            peer.sendall(b"GET /never HTTP/1.1\r\nHost: x\r\n\r\n")
        while len(listener._answering) < 2:
            time.sleep(0.01)
        assert answer(listener, b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 503 ")
        other = stack.enter_context(connected(listener, source="127.0.0.3"))
        other.sendall(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n")
        assert received(other).endswith(b"/a ")


def test_a_refusal_that_is_withheld_takes_no_place(listener: HttpListener) -> None:
    """Behaviour 104: wrong tokens keep nobody out."""
    with ExitStack() as stack:
        for _ in range(10):
            peer = stack.enter_context(connected(listener))
            peer.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        for _ in range(3):
            assert answer(listener, b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n").endswith(b"/a ")


@pytest.mark.parametrize(
    ("header", "address"),
    [
        (b"PROXY TCP4 192.0.2.7 192.0.2.8 1 2\r\n", "192.0.2.7"),
        (b"PROXY UNKNOWN\r\n", "127.0.0.2"),
        (b"", "127.0.0.2"),
    ],
)
def test_a_trusted_proxy_names_the_host_that_uses_it(listener: HttpListener, header: bytes, address: str) -> None:
    """Behaviour 104: each host that uses a proxy has its own share."""
    with connected(listener, source="127.0.0.2") as peer:
        peer.sendall(header[:9])
        peer.sendall(header[9:] + b"GET /address HTTP/1.1\r\nHost: x\r\n\r\n")
        assert received(peer).endswith(b"\r\n\r\n" + address.encode())


def test_a_proxy_may_send_its_header_alone(listener: HttpListener) -> None:
    with connected(listener, source="127.0.0.2") as peer:
        peer.sendall(b"PROXY TCP4 192.0.2.7 192.0.2.8 1 2\r\n")
        while "192.0.2.7" not in listener._waiting.values() and not select([peer], [], [], 0.01)[0]:
            pass
        peer.sendall(b"GET /address HTTP/1.1\r\nHost: x\r\n\r\n")
        assert received(peer).endswith(b"\r\n\r\n192.0.2.7")


def test_a_header_of_another_host_or_an_invalid_one_is_refused(listener: HttpListener) -> None:
    assert answer(listener, b"PROXY TCP4 192.0.2.7 192.0.2.8 1 2\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    with connected(listener, source="127.0.0.2") as peer:
        peer.sendall(b"PROXY TCP4 x y 1 2\r\n")
        assert b"is not a PROXY header" in received(peer)


@pytest.mark.slow
def test_a_request_that_trickles_in_has_a_deadline_in_all(hasty: HttpListener) -> None:
    """Behaviour 50: slowloris, however busily its bytes arrive."""
    started_s = time.monotonic()
    with connected(hasty) as peer:
        try:
            while time.monotonic() - started_s < 60:
                peer.sendall(b"X")
                time.sleep(0.01)
        except OSError:
            pass
    assert time.monotonic() - started_s < 30


@pytest.mark.slow
def test_an_answer_that_is_not_taken_has_a_deadline_too(hasty: HttpListener) -> None:
    """Behaviour 50: who does not take the answer holds it for no longer."""
    with connected(hasty) as peer:
        peer.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        assert peer.recv(1) == b"H", "from here on the answer is on its way"
        while hasty._tasks:
            time.sleep(0.01)
        assert len(received(peer)) < len(LARGE)


@pytest.mark.slow
def test_closing_cuts_who_is_there() -> None:
    """Also a peer that is just being accepted, as some of so many are."""
    for _ in range(100):
        listener = HttpListener(host="127.0.0.1", port=0, respond=respond)
        with connected(listener) as peer:
            peer.sendall(b"GET")
            listener.close()
            assert received(peer) == b""


def test_streams_take_no_place_of_others(listener: HttpListener) -> None:
    with ExitStack() as stack:
        for _ in range(6):
            stack.enter_context(streaming(listener))
        silent = [stack.enter_context(connected(listener)) for _ in range(4)]
        for peer in silent:
            peer.sendall(b"G")
        assert answer(listener, b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n").endswith(b"/a ")


def test_a_stream_has_no_deadline_and_ends_when_its_peer_leaves(hasty: HttpListener) -> None:
    with streaming(hasty) as peer:
        # Another one outlives its deadline meanwhile.
        with connected(hasty) as silent:
            assert received(silent) == b""
        assert len(hasty._streaming) == 1
        peer.sendall(b"whatever is said now is dropped")
        peer.shutdown(socket.SHUT_WR)
        assert received(peer) == b""
    while hasty._tasks:
        time.sleep(0.01)


def test_streams_can_be_ended_before_the_listener_is(listener: HttpListener) -> None:
    with streaming(listener) as first, streaming(listener) as second:
        listener.end_streams()
        assert (received(first), received(second)) == (b"", b"")
    assert answer(listener, b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n") == b""
    assert answer(listener, b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n").endswith(b"/a ")


@pytest.mark.parametrize("end", [HttpListener.end_streams, HttpListener.close])
def test_an_end_waits_for_no_answer(end: Callable[[HttpListener], None]) -> None:
    """What would begin a stream may take its time."""
    listener = HttpListener(host="127.0.0.1", port=0, respond=respond, deadline_s=PATIENCE_S)
    with connected(listener) as peer:
        peer.sendall(b"GET /never HTTP/1.1\r\nHost: x\r\n\r\n")
        while not (listener._tasks and not listener._waiting):
            time.sleep(0.01)
        started_s = time.monotonic()
        end(listener)
        assert received(peer) == b""
        assert time.monotonic() - started_s < PATIENCE_S / 2
    if end is HttpListener.end_streams:
        listener.close()


def test_closing_cuts_streams() -> None:
    listener = HttpListener(host="127.0.0.1", port=0, respond=respond)
    with streaming(listener) as peer:
        listener.close()
        assert received(peer) == b""


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="the machine has no IPv6, or not both in one")
def test_all_addresses_are_those_of_ipv4_too() -> None:
    listener = HttpListener(host="::", port=0, respond=respond)
    try:
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, listener.port), timeout=PATIENCE_S).close()
    finally:
        listener.close()
