"""The poller, sockets, threads and clock that a hub uses. machine.py has the real ones, sim/hub/ simulated ones.

Nothing here blocks but `Worker.wait`, which only a stop calls, and `Worker.join`, for a file name that is used again
while the redo log is being written.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from staniel.journal.background import BackgroundTask
from staniel.journal.group_commit import Sync


class Clock(Protocol):
    def now_ms(self) -> int: ...


class Poller(Protocol):
    """Which descriptors are ready, as epoll has it: level-triggered, errors and hang-ups always reported. Each call
    raises OSError.
    """

    def register(self, fd: int, mask: int) -> None: ...

    def modify(self, fd: int, mask: int) -> None: ...

    def unregister(self, fd: int) -> None: ...

    def close(self) -> None: ...


class Sock(Protocol):
    """A client's socket; it never blocks."""

    def fileno(self) -> int: ...

    def recv(self, count: int, /) -> bytes:
        """b"" at the end of the stream. Raises BlockingIOError, OSError."""

    def send(self, data: bytes | memoryview, /) -> int: ...

    def shutdown(self, how: int, /) -> None: ...

    def close(self) -> None: ...


class Closable(Protocol):
    def close(self) -> None: ...


def close_quietly(sock: Closable) -> None:
    """Close a socket. close(2) releases the descriptor even where it reports an error."""
    try:
        sock.close()
    except OSError:
        pass


class ClientRefused(Exception):
    """A client that has connected is not served, and its socket is closed; the text says why."""

    def __init__(self, client: str, why: str) -> None:
        super().__init__(why)
        self.client = client


class HandshakeError(OSError):
    """A client has not become one under TLS; the text says why."""


class SecureSock(Sock, Protocol):
    """A client's socket under TLS. `read_bytes`: encrypted ones, during the handshake."""

    read_bytes: int

    def handshake(self, count: int, /) -> bool:
        """Go on with it, reading `count` bytes at most; whether it is done. Raises HandshakeError, OSError."""

    @property
    def wants_write(self) -> bool:
        """Whether something waits for the socket to take it."""

    def names(self) -> tuple[str, ...]:
        """What the client's certificate calls it; none without one. Raises HandshakeError."""


class Security(Protocol):
    """What makes sockets secure ones. `timeout_ms`: of a handshake."""

    @property
    def timeout_ms(self) -> int: ...

    def wrap(self, sock: Sock) -> SecureSock:
        """With the certificate of now."""


class Acceptor(Protocol):
    """A listening socket. `name`: its address, for the log."""

    @property
    def name(self) -> str: ...

    def fileno(self) -> int: ...

    def accept(self) -> tuple[Sock, str]:
        """A client's socket, ready for use, and the client's address. Raises BlockingIOError; ClientRefused; OSError,
        where the system call on the listening socket fails.
        """

    def close(self) -> None: ...


class Runnable(Protocol):
    """`run` calls nothing but what releases the interpreter."""

    def run(self) -> None: ...


E = TypeVar("E", bound=Runnable)


class Worker(Protocol[E]):
    """Runs one task at a time beside the turns. `fd` becomes readable when the task has ended. `took_ns`: the duration
    of the last one. `is_cheap`: a sync of the redo log takes nothing from the turns meanwhile.
    """

    fd: int
    took_ns: int
    is_cheap: bool

    def start(self, task: E) -> None: ...

    def finished(self) -> E | None:
        """The task that has ended since the last call, if one has. Raises what it raised."""

    def wait(self) -> E:
        """Block until the task that was started has ended, and return it. For the stop of the server alone."""

    def join(self) -> None:
        """Block until the task that was started has run. `finished` returns it afterwards."""

    def close(self) -> None:
        """End the thread once it is idle."""


class Machine(Protocol):
    """What a hub is given. `syncs` runs the syncs that replies wait for, `tasks` the work on the disk that no reply
    waits for.
    """

    clock: Clock

    @property
    def poller(self) -> Poller: ...

    @property
    def syncs(self) -> Worker[Sync]: ...

    @property
    def tasks(self) -> Worker[BackgroundTask]: ...

    def now_ns(self) -> int:
        """A monotonic clock, for durations."""

    def elapsed_ns(self) -> int:
        """The same; read for every client that is served."""

    def step_ns(self) -> int:
        """The same; read within what one client has asked for."""

    def waiting_bytes(self, fd: int) -> int:
        """How many bytes have arrived at a client's socket and were not read."""
