"""A blocking client with nothing between the test and the bytes: sends and reads lines, always with a deadline."""

from __future__ import annotations

import socket
from types import TracebackType

HEAR_SECONDS_MAX = 60.0


class Wire:
    """One connection."""

    def __init__(self, address: tuple[str, int], receive_buffer_bytes: int = 0) -> None:
        self.sock = socket.socket()
        if receive_buffer_bytes:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.sock.settimeout(HEAR_SECONDS_MAX)
        self.sock.connect(address)
        self._heard = b""

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, kind: type[BaseException] | None, wrong: BaseException | None, at: TracebackType | None) -> None:
        self.sock.close()

    def _receive(self) -> bytes:
        return self.sock.recv(1 << 16)

    def say(self, data: bytes) -> Wire:
        """Send `data` as it is."""
        self.sock.sendall(data)
        return self

    @property
    def has_line(self) -> bool:
        """Whether a whole line was received with an earlier one."""
        return b"\n" in self._heard

    def line(self) -> bytes:
        """The next line without its line end; b"" at the end of the stream."""
        while b"\n" not in self._heard:
            data = self._receive()
            if not data:
                rest, self._heard = self._heard, b""
                return rest
            self._heard += data
        line, _, self._heard = self._heard.partition(b"\n")
        return line.removesuffix(b"\r")

    def hear(self, count: int) -> bytes:
        """The next `count` bytes; fewer at the end of the stream."""
        parts, have = [self._heard], len(self._heard)
        while have < count and (data := self._receive()):
            parts.append(data)
            have += len(data)
        heard = b"".join(parts)
        self._heard = heard[count:]
        return heard[:count]

    def rest(self) -> bytes:
        """Everything until the server closes its side."""
        return self.hear(1 << 40)

    def ask(self, request: bytes) -> bytes:
        """One line there, one line back."""
        return self.say(request + b"\r\n").line()

    def put(self, queue: str, data: bytes, words: bytes = b"0 0") -> bytes:
        """The answer to a set; `words` are flags and expiry."""
        return self.ask(b"set %b %b %d\r\n%b" % (queue.encode(), words, len(data), data))

    def get(self, key: str) -> bytes | None:
        """The item of a single get; None after a lone END. Anything else is an error of the test."""
        return self.say(b"get %b\r\n" % key.encode()).item()

    def item(self) -> bytes | None:
        """The answer to a get that has been said."""
        head = self.line()
        if head == b"END":
            return None
        assert head.startswith(b"VALUE "), head
        data = self.hear(int(head.split()[3]))
        assert self.line() == b""
        assert self.line() == b"END"
        return data

    def end_sending(self) -> Wire:
        self.sock.shutdown(socket.SHUT_WR)
        return self

    def closed_by_server(self) -> bool:
        """Whether the stream has ended, with nothing more in it."""
        try:
            return self.rest() == b""
        except ConnectionResetError:
            return True


def drain(address: tuple[str, int], queue: str) -> list[bytes]:
    """Every item of a queue, in order. Of a long queue, several are asked for at a time."""
    found: list[bytes] = []
    count = 1
    with Wire(address) as wire:
        while True:
            wire.say(b"get %b\r\n" % queue.encode() * count)
            items = [wire.item() for _ in range(count)]
            found += [item for item in items if item is not None]
            if None in items:
                return found
            count = min(2 * count, 32)


def stats(address: tuple[str, int]) -> dict[str, str]:
    """The plain `stats`."""
    with Wire(address) as wire:
        wire.say(b"stats\r\n")
        found = {}
        while (line := wire.line()) != b"END":
            _, name, value = line.decode("latin-1").split(" ", 2)
            found[name] = value
        return found
