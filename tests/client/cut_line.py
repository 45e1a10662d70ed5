"""A line from one client to a server, which is cut at a step of one request while the server is killed."""

from __future__ import annotations

import select
import socket
import threading
from contextlib import suppress
from enum import Enum

WAIT_S = 60.0


class Step(Enum):
    """How far a request has come when the server is killed."""

    UNSENT = "the client has not sent it"
    NOTHING = "the client has sent it, and the server has none of it"
    HALF = "the server has half of it"
    WHOLE = "the server has it in its buffer, and has not read it"
    ANSWERED = "the server has replied, and the client has no reply"


class Kill:
    """What all lines of one server wait for."""

    def __init__(self) -> None:
        self.is_stopped = threading.Event()  # it reads nothing any more, and lives
        self.is_dead = threading.Event()


class CutLine:
    """A line for one connection. `arm` says that the request after `skip` more ones is the one to cut. `is_there`: it
    has come to its step; `is_sent`: it has been given to a server that is stopped.
    """

    def __init__(self, server: tuple[str, int], step: Step, skip: int, kill: Kill) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self.step = step
        self.is_there = threading.Event()
        self.is_sent = threading.Event()
        self.is_cut = threading.Event()
        self._server = server
        self._skip = skip
        self._kill = kill
        self._is_armed = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def arm(self) -> None:
        """Cut the next request, or one after it. The client calls this between two requests."""
        self._is_armed = True
        if self.step is Step.UNSENT:
            self.is_there.set()
            assert self.is_cut.wait(WAIT_S)

    def _serve(self) -> None:
        with suppress(OSError):
            with self._listener:
                client, _ = self._listener.accept()
            with client, socket.create_connection(self._server) as server:
                self._carry(client, server)
        self.is_cut.set()

    def _carry(self, client: socket.socket, server: socket.socket) -> None:
        poll = select.poll()
        poll.register(client, select.POLLIN)
        poll.register(server, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll()]
            if server.fileno() in ready:
                if not (data := server.recv(65_536)):
                    return
                client.sendall(data)
            if client.fileno() in ready:
                if not (data := client.recv(65_536)):
                    return
                if self._is_armed and self.step is not Step.UNSENT:
                    if not self._skip:
                        return self._cut(server, data)
                    self._skip -= 1
                server.sendall(data)

    def _cut(self, server: socket.socket, data: bytes) -> None:
        if self.step is Step.HALF:
            server.sendall(data[: len(data) // 2])
        elif self.step is Step.ANSWERED:
            server.sendall(data)
            assert server.recv(65_536)
        self.is_there.set()
        if self.step is Step.WHOLE:
            assert self._kill.is_stopped.wait(WAIT_S)
            server.sendall(data)
            self.is_sent.set()
        assert self._kill.is_dead.wait(WAIT_S)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(WAIT_S)
