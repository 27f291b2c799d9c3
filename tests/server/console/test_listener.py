"""HTTP with bounds: connections, their time, and what they may send."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from http import HTTPStatus

import pytest

from millrace.server.console.listener import REQUEST_SIZE_BYTES_MAX, HttpListener, Response

LARGE = bytes(64 << 20)


def respond(path: str, accept: str) -> Response:
    return Response(HTTPStatus.OK, "text/plain", LARGE if path == "/large" else f"{path} {accept}".encode())


@pytest.fixture
def listener() -> Iterator[HttpListener]:
    listener = HttpListener(host="127.0.0.1", port=0, respond=respond, connections_count_max=4, deadline_s=60.0)
    yield listener
    listener.close()


@pytest.fixture
def hasty() -> Iterator[HttpListener]:
    listener = HttpListener(host="127.0.0.1", port=0, respond=respond, deadline_s=0.3)
    yield listener
    listener.close()


def connected(listener: HttpListener) -> socket.socket:
    return socket.create_connection(("127.0.0.1", listener.port), timeout=60)


def answer(listener: HttpListener, request: bytes) -> bytes:
    with connected(listener) as peer:
        peer.sendall(request)
        return received(peer)


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
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n", b"405"),
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
