"""The poller, sockets, threads and clock that a hub uses. machine.py has the real ones, sim/hub/ simulated ones.

No method blocks except `Worker.wait`, which only a stop calls, and `Worker.join`, for a file name that is used again
while the redo log is being written.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from staniel.journal.background import BackgroundTask
from staniel.journal.group_commit import Sync


class Clock(Protocol):
    def now_ms(self) -> int: ...


class Poller(Protocol):
    """A set of watched descriptors, like epoll: level-triggered; errors and hang-ups are always reported. Each call
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
        """Return received bytes, b"" at the end of the stream. Raises BlockingIOError, OSError."""

    def send(self, data: bytes | memoryview, /) -> int: ...

    def shutdown(self, how: int, /) -> None: ...

    def close(self) -> None: ...


class Closable(Protocol):
    def close(self) -> None: ...


def close_quietly(sock: Closable) -> None:
    """Close a socket. close(2) releases the descriptor even if it reports an error."""
    try:
        sock.close()
    except OSError:
        pass


class ClientRefused(Exception):
    """A client is refused after connecting, and its socket is closed; the text says why."""

    def __init__(self, client: str, why: str) -> None:
        super().__init__(why)
        self.client = client


class HandshakeError(OSError):
    """A TLS handshake failed; the text says why."""


class SecureSock(Sock, Protocol):
    """A client's socket under TLS. `read_bytes` counts encrypted bytes during the handshake."""

    read_bytes: int

    def handshake(self, count: int, /) -> bool:
        """Continue the handshake, reading at most `count` bytes. Return True once it is done. Raises HandshakeError,
        OSError.
        """

    @property
    def wants_write(self) -> bool:
        """True if encrypted bytes wait for the socket."""

    def names(self) -> tuple[str, ...]:
        """Return the names in the client's certificate; none without one. Raises HandshakeError."""


class Security(Protocol):
    """A factory of TLS sockets. `timeout_ms` is the time-out of a handshake."""

    @property
    def timeout_ms(self) -> int: ...

    def wrap(self, sock: Sock) -> SecureSock:
        """Put TLS on a socket, with the present certificate."""


class Acceptor(Protocol):
    """A listening socket. `name` is its address, for the log."""

    @property
    def name(self) -> str: ...

    def fileno(self) -> int: ...

    def accept(self) -> tuple[Sock, str]:
        """Return a client's socket, ready for use, and the client's address. Raises BlockingIOError; ClientRefused;
        OSError if the system call on the listening socket fails.
        """

    def close(self) -> None: ...


class Runnable(Protocol):
    """A task whose `run` calls only functions that release the interpreter."""

    def run(self) -> None: ...


E = TypeVar("E", bound=Runnable)


class Worker(Protocol[E]):
    """A runner of one task at a time beside the turns. `fd` becomes readable when the task has ended. `took_ns` is the
    duration of the last one. `is_cheap`: a sync of the redo log takes no time from the turns meanwhile.
    """

    fd: int
    took_ns: int
    is_cheap: bool

    def start(self, task: E) -> None: ...

    def finished(self) -> E | None:
        """Return the task that has ended since the last call, if any. Raises what it raised."""

    def wait(self) -> E:
        """Block until the started task has ended, and return it. Only for the stop of the server."""

    def join(self) -> None:
        """Block until the started task has run. `finished` returns it afterwards."""

    def close(self) -> None:
        """End the thread once it is idle."""


class Machine(Protocol):
    """The outside world of a hub. `syncs` runs the syncs that replies wait for, `tasks` the disk work that no reply
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
        """Return the time of a monotonic clock, for durations."""

    def elapsed_ns(self) -> int:
        """Return the same time; called for every client served."""

    def step_ns(self) -> int:
        """Return the same time; called during one client's requests."""

    def waiting_bytes(self, fd: int) -> int:
        """Return how many received bytes of a client's socket are unread."""
