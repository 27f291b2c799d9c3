"""The other end of the bare loopback: a process that echoes messages of one size, or takes bytes and counts them.

`python -m benchmarks.echo echo SIZE` or `python -m benchmarks.echo source SIZE`: listens on the port it prints, serves
one connection, ends.
"""

import contextlib
import socket
import sys


def main() -> None:
    """Serve one connection in the mode named by the arguments."""
    mode, size = sys.argv[1], int(sys.argv[2])
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        print(listener.getsockname()[1], flush=True)
        peer, _ = listener.accept()
    with peer, contextlib.suppress(ConnectionError):
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if mode == "echo":
            _echo(peer, memoryview(bytearray(size)))
        else:
            _send_forever(peer, bytes(size))


def _echo(peer: socket.socket, buffer: memoryview) -> None:
    while True:
        filled = 0
        while filled < len(buffer):
            received = peer.recv_into(buffer[filled:])
            if received == 0:
                return
            filled += received
        peer.sendall(buffer)


def _send_forever(peer: socket.socket, piece: bytes) -> None:
    while True:
        peer.sendall(piece)


if __name__ == "__main__":
    main()
