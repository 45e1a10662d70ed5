"""A server that plays a script: what it answers to each request, whole, in part, wrong, late or never."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

HANG_UP = b""
Answer = bytes | tuple[bytes, threading.Event] | None


class Last(bytes):
    """An answer after which the server closes the connection."""


class FakeServer:
    """One connection at a time. Each piece that arrives is answered with the script's next entry: bytes; HANG_UP; None
    for silence; bytes and the event to wait for before they are sent. `heard`: the pieces.
    """

    def __init__(self, script: list[Answer]) -> None:
        self._script = iter(script)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self.heard: list[bytes] = []
        self.is_left = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        try:
            while True:
                connection, _ = self._listener.accept()
                with connection:
                    self._talk(connection)
                self.is_left.set()
        except OSError:
            return  # closed

    def _talk(self, connection: socket.socket) -> None:
        try:
            while data := connection.recv(65536):
                self.heard.append(data)
                answer = next(self._script, None)
                if answer == HANG_UP:
                    return
                if isinstance(answer, tuple):
                    answer, event = answer
                    event.wait(60)
                if answer is not None:
                    connection.sendall(answer)
                if isinstance(answer, Last):
                    return
        except OSError:
            return  # the client has gone

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(60)


@contextmanager
def playing(*script: Answer) -> Iterator[FakeServer]:
    server = FakeServer(list(script))
    try:
        yield server
    finally:
        server.close()


@contextmanager
def scripted(*scripts: list[Answer]) -> Iterator[list[FakeServer]]:
    """Several servers, each with its script."""
    with ExitStack() as stack:
        yield [stack.enter_context(playing(*script)) for script in scripts]


def item(data: bytes, key: bytes = b"q/open", number: int = 9) -> bytes:
    return b"VALUE %b 0 %d %d\r\n%b\r\nEND\r\n" % (key, len(data), number, data)
