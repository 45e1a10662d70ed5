"""One client's socket: it says bytes, and hears exactly what it should, or the case fails."""

from __future__ import annotations

import re
import socket
import time

from tests.conformance.server import Mismatch
from tests.support.ready import is_readable

QUIET_S = 0.05  # after a pattern has matched: anything more would come within this
SHOWN_BYTES = 400


class ExpectingWire:
    """A connection. What was received and not yet asked for stays in `unheard`."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.unheard = b""
        self.ended = False

    def close(self) -> None:
        self.sock.close()

    def says(self, data: bytes, byte_by_byte: bool = False) -> float:
        """Send; the moment when the last byte left. The peer may hang up before it has read everything."""
        pieces = [data[at : at + 1] for at in range(len(data))] if byte_by_byte else [data]
        moment = time.monotonic()
        try:
            for piece in pieces:
                moment = time.monotonic()
                self.sock.sendall(piece)
        except ConnectionError:
            pass
        return moment

    def hears(self, wanted: bytes, until: float) -> None:
        """Exactly `wanted` comes next; more may follow."""
        self._fill(len(wanted), until)
        heard, self.unheard = self.unheard[: len(wanted)], self.unheard[len(wanted) :]
        if heard != wanted:
            raise Mismatch(f"expected {shown(wanted)}, heard {shown(heard)}" + " and the end" * self.ended)

    def hears_like(self, pattern: str, until: float, to_the_end: bool) -> re.Match[bytes]:
        """All that comes matches `pattern` (latin-1), until it is quiet or, if asked, until the end."""
        wanted = re.compile(pattern.encode("latin-1"))
        while self._receive(until if to_the_end or not wanted.fullmatch(self.unheard) else _soon(until)):
            pass
        match = wanted.fullmatch(self.unheard)
        if match is None:
            raise Mismatch(f"expected all to match {pattern!r}, heard {shown(self.unheard)}")
        self.unheard = b""
        return match

    def hears_item(self, until: float) -> bytes | None:
        """The answer to a `get`: the item's data, or None."""
        if (head := self._line(until)) == b"END":
            return None
        words = head.split(b" ")
        if len(words) < 4 or words[0] != b"VALUE":
            raise Mismatch(f"expected an item or END, heard {shown(head)}")
        self._fill(length := int(words[3]), until)
        data, self.unheard = self.unheard[:length], self.unheard[length:]
        self.hears(b"\r\nEND\r\n", until)
        return data

    def hears_nothing(self, until: float) -> None:
        """Neither a byte nor the end comes before `until`."""
        self._receive(until)
        if self.unheard or self.ended:
            raise Mismatch(f"expected silence, heard {shown(self.unheard)}" + " and the end" * self.ended)

    def hears_the_end(self, until: float) -> None:
        while not self.unheard and self._receive(until):
            pass
        if self.unheard:
            raise Mismatch(f"expected the end, heard {shown(self.unheard)}")
        if not self.ended:
            raise Mismatch("expected the end, but the connection stays open")

    def _line(self, until: float) -> bytes:
        while b"\r\n" not in self.unheard and self._receive(until):
            pass
        line, _, self.unheard = self.unheard.partition(b"\r\n")
        return line

    def _fill(self, count: int, until: float) -> None:
        while len(self.unheard) < count and self._receive(until):
            pass

    def _receive(self, until: float) -> bool:
        """Whether something more came before `until`."""
        wait_s = until - time.monotonic()
        if self.ended or wait_s <= 0 or not is_readable(self.sock, wait_s):
            return False
        try:
            data = self.sock.recv(1 << 16)
        except ConnectionError:
            data = b""
        self.ended = not data
        self.unheard += data
        return not self.ended


def _soon(until: float) -> float:
    return min(until, time.monotonic() + QUIET_S)


def shown(data: bytes) -> str:
    return repr(data) if len(data) <= SHOWN_BYTES else f"{data[:SHOWN_BYTES]!r}... ({len(data)} bytes)"
