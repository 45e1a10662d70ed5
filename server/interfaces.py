"""What a hub needs of its world: readiness, sockets, threads, a clock. machine.py has the real ones, sim/ others.

Everything here returns at once, but for `Worker.wait`, which only a stop calls.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from staniel.journal.background import BackgroundTask
from staniel.journal.group_commit import Sync


class Clock(Protocol):
    def now_ms(self) -> int: ...


class Poller(Protocol):
    """Which descriptors are ready, as epoll has it: level-triggered, errors and hang-ups always reported."""

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


class Acceptor(Protocol):
    """A listening socket. `name`: its address, for the log."""

    @property
    def name(self) -> str: ...

    def fileno(self) -> int: ...

    def accept(self) -> tuple[Sock, str]:
        """A client's socket, ready for use, and who is at the other end. Raises BlockingIOError, OSError."""

    def close(self) -> None: ...


class Runnable(Protocol):
    """`run` calls nothing but what releases the interpreter."""

    def run(self) -> None: ...


E = TypeVar("E", bound=Runnable)


class Worker(Protocol[E]):
    """A thread that runs one errand at a time. `fd` becomes readable when the errand has ended. `took_ns`: by the last
    one.
    """

    fd: int
    took_ns: int

    def start(self, task: E) -> None: ...

    def finished(self) -> E | None:
        """The errand that has ended since the last call, if one has. Raises what it raised."""

    def wait(self) -> E:
        """The same for the errand that was started, however long it takes. For a stop alone."""

    def close(self) -> None:
        """End the thread once it is idle."""


class Machine(Protocol):
    """All of it. `syncs` and `tasks`: what replies wait for, and what nobody waits for."""

    clock: Clock

    @property
    def poller(self) -> Poller: ...

    @property
    def syncs(self) -> Worker[Sync]: ...

    @property
    def tasks(self) -> Worker[BackgroundTask]: ...

    def now_ns(self) -> int:
        """A stopwatch."""

    def elapsed_ns(self) -> int:
        """A stopwatch too, looked at for every client that is served."""

    def waiting_bytes(self, fd: int) -> int:
        """How much has arrived at a client's socket and was not read."""
