"""The copies that a leader makes for members that join: a thread compares and reads the files, one step for one member
after the other, while the loop serves clients.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from msgspec import Struct

from staniel.cluster.compare import Sums
from staniel.server.cluster.copying import CopySource, read_sums
from staniel.server.sync_thread import WorkerThread

UNSENT_BYTES_MAX = 4 << 20
"""Bytes of a copy that wait for a connection; beyond that, no more are read."""


class CopyStep(Struct):
    """A step for the member on a connection: `read` has the piece, unless it takes further steps; `error`: why not."""

    connection: int
    piece: int
    source: CopySource
    read: tuple[bytes, bool] | None = None
    error: str = ""

    def run(self) -> None:
        try:
            self.read = self.source.next_piece()
        except OSError as error:  # a file was cut meanwhile, or the disk refuses: the member begins anew
            self.error = str(error)


class Copies:
    """All copies, by connection. `hold` holds the files for a member with these sums; `unsent_bytes` tells what waits
    for a connection. `on_piece` gets each piece, `on_failure` the connection of a copy that cannot go on, and why.
    """

    def __init__(
        self,
        hold: Callable[[int, Sums], CopySource],
        unsent_bytes: Callable[[int], int],
        on_piece: Callable[[int, int, bytes, bool], None],
        on_failure: Callable[[int, str], None],
    ) -> None:
        self._hold, self._unsent_bytes, self._on_piece, self._on_failure = hold, unsent_bytes, on_piece, on_failure
        self._worker: WorkerThread[CopyStep] = WorkerThread("copies")
        self._sums: dict[int, Sums] = {}
        self._sources: dict[int, CopySource] = {}
        self._wanted: deque[tuple[int, int]] = deque()
        self._running: CopyStep | None = None
        self._copies = 0

    @property
    def fd(self) -> int:
        """The descriptor that is readable when a step has ended."""
        return self._worker.fd

    @property
    def is_busy(self) -> bool:
        """True if a step is under way."""
        return self._running is not None

    def take_sums(self, connection: int, data: bytes) -> bool:
        """Take what a member says of its files. Return False if it cannot be read."""
        return read_sums(self._sums.setdefault(connection, Sums()), data)

    def compared(self, connection: int) -> int:
        """Return how many chunks have been compared for a member."""
        source = self._sources.get(connection)
        return source.compared if source is not None else 0

    def ask_piece(self, connection: int, piece: int) -> None:
        """Have a piece read. With the first one the files are held."""
        if not piece:
            theirs = self._sums.get(connection, Sums())
            self.forget(connection)
            self._copies += 1
            try:
                self._sources[connection] = self._hold(self._copies, theirs)
            except OSError as error:
                self._on_failure(connection, str(error))
                return
        self._wanted.append((connection, piece))
        self.start_next_step()

    def start_next_step(self) -> None:
        """Start the next step for a member that takes more."""
        if self._running is not None:
            return
        for _ in range(len(self._wanted)):
            connection, piece = self._wanted.popleft()
            source = self._sources.get(connection)
            if source is not None and self._unsent_bytes(connection) <= UNSENT_BYTES_MAX:
                self._running = CopyStep(connection, piece, source)
                self._worker.start(self._running)
                return
            if source is not None:
                self._wanted.append((connection, piece))  # it goes on when the connection has taken all

    def on_ready(self, now_ms: int) -> None:
        """Go on behind a step that has ended."""
        step = self._worker.finished()
        if step is None:
            return
        self._running = None
        if self._sources.get(step.connection) is step.source:
            self._pass_on(step)
        self.start_next_step()

    def _pass_on(self, step: CopyStep) -> None:
        if step.error:
            self._on_failure(step.connection, step.error)
        elif step.read is None:
            self._wanted.append((step.connection, step.piece))
        else:
            data, is_last = step.read
            if is_last:
                self.forget(step.connection)
            self._on_piece(step.connection, step.piece, data, is_last)

    def forget(self, connection: int) -> None:
        """Let go of what a connection needed."""
        self._sums.pop(connection, None)
        source = self._sources.pop(connection, None)
        if source is not None:
            source.close()

    def close(self) -> None:
        """End the thread."""
        self._worker.close()
