"""Lines for standard error, which may be a pipe without a reader: no write blocks. Lines that cannot be written are
kept in a bounded buffer; if it is full, they are dropped and counted.
"""

from __future__ import annotations

import errno
import io
import os
import select
import socket
import stat
import time
from collections import deque
from collections.abc import Callable

HELD_BYTES_MAX = 256 << 10
PIECE_BYTES = select.PIPE_BUF  # a writable pipe takes this much without blocking
LAST_WAIT_S = 1.0  # the wait for a reader when the process ends


class Outlet:
    """A writer to one descriptor. `dropped` counts lines lost because the buffer was full. `on_held` is called when a
    line is kept: call `flush` once `fd` is writable.
    """

    def __init__(self, fd: int) -> None:
        self.dropped = 0
        self.on_held: Callable[[], None] = do_nothing
        self._held: deque[bytes] = deque()
        self._held_bytes = 0
        self._sock: socket.socket | None = None
        self._polled: select.poll | None = None
        self.fd = fd
        try:
            mode = os.fstat(fd).st_mode
        except OSError:
            self.fd = -1  # closed: there is no reader
            return
        if stat.S_ISSOCK(mode):
            self._sock = socket.socket(fileno=os.dup(fd))  # journald's
        elif stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
            try:
                # An open file of our own: O_NONBLOCK on the shared one would surprise other programs that have it open.
                self.fd = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            except OSError:  # another user's: write only as much as the kernel takes
                self._polled = select.poll()
                self._polled.register(fd, select.POLLOUT)

    @property
    def is_holding(self) -> bool:
        """True if lines wait for a reader."""
        return bool(self._held)

    def write(self, line: bytes) -> None:
        """Write a line, or keep it behind the waiting ones."""
        if self._held:
            self.flush()
        if self._held_bytes + len(line) > HELD_BYTES_MAX:
            self.dropped += 1
            return
        was_held = bool(self._held)
        self._held.append(line)
        self._held_bytes += len(line)
        if not was_held:
            self.flush()
            if self._held:
                self.on_held()

    def flush(self) -> None:
        """Write as much as the descriptor takes at once."""
        held = self._held
        while held:
            line = held[0]
            try:
                done = self._write(line)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.EINTR:
                    continue
                self.dropped += len(held)  # the reader is gone, or the disk is full
                held.clear()
                self._held_bytes = 0
                return
            self._held_bytes -= done
            if done < len(line):
                held[0] = line[done:]
            else:
                held.popleft()

    def close(self) -> None:
        """Wait a last moment for a reader of the held lines."""
        until = time.monotonic() + LAST_WAIT_S
        flag = select.poll()
        if self.fd >= 0:
            flag.register(self.fd, select.POLLOUT)
        while self._held and (left := until - time.monotonic()) > 0:
            flag.poll(left * 1000)
            self.flush()

    def _write(self, data: bytes) -> int:
        if self.fd < 0:
            return len(data)
        if self._sock is not None:
            return self._sock.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        if self._polled is not None:
            if not self._polled.poll(0):
                raise BlockingIOError
            data = data[:PIECE_BYTES]
        return os.write(self.fd, data)


class OutletStream(io.TextIOBase):
    """A text stream over an outlet, in place of sys.stderr, so that neither a traceback nor a warning blocks."""

    def __init__(self, outlet: Outlet, fd: int) -> None:
        self._outlet, self._fd = outlet, fd

    def write(self, text: str, /) -> int:
        self._outlet.write(text.encode("utf-8", "backslashreplace"))
        return len(text)

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def writable(self) -> bool:
        return True


def do_nothing() -> None:
    """Do nothing, as the default of `on_held`: the next line tries again."""


def say(text: str) -> None:
    """Print on standard output, if it is open and takes the text at once."""
    Outlet(1).write(f"{text}\n".encode("utf-8", "backslashreplace"))
