"""Lines for standard error, which may be a pipe without a reader: no write blocks. What cannot be written is kept in a
bounded buffer, and what does not fit there is dropped and counted.
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
PIECE_BYTES = select.PIPE_BUF  # of a pipe that is ready for more, this much can be written without waiting
LAST_WAIT_S = 1.0  # for a reader, once the process ends


class Outlet:
    """One descriptor. `dropped`: lines that were not written because the buffer was full. `on_held` is called when a
    line has been kept: `flush` is to be called once `fd` can be written to.
    """

    def __init__(self, fd: int) -> None:
        self.dropped = 0
        self.on_held: Callable[[], None] = nothing
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
                # A description of our own: O_NONBLOCK on the shared one would surprise the other programs that have it.
                self.fd = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            except OSError:  # another user's: write only what the kernel says it takes
                self._polled = select.poll()
                self._polled.register(fd, select.POLLOUT)

    @property
    def is_holding(self) -> bool:
        """Whether lines wait for a reader."""
        return bool(self._held)

    def write(self, line: bytes) -> None:
        """Write a line, or keep it behind those that wait."""
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
        """Give a reader a last moment to take what is held."""
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
    """A text stream over an outlet, in place of sys.stderr: neither a traceback nor a warning may block either."""

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


def nothing() -> None:
    """No reader is waited for: the next line tries again."""
