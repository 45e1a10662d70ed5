"""A server in memory whose queue is never empty: which items are open on which connection is all that it knows."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

Address = tuple[str, int]


class ItemServer:
    """`open` has the ids of the items that each connection holds, by the client's address; a connection that has ended
    is not in it.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.address: Address = self._listener.getsockname()
        self.open: dict[Address, set[int]] = {}
        self._last_id = 0
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, peer = self._listener.accept()
                self.open[peer] = set()
                threading.Thread(target=self._serve, args=(connection, peer), daemon=True).start()

    def _serve(self, connection: socket.socket, peer: Address) -> None:
        unread = b""
        with suppress(OSError), connection:
            while data := connection.recv(65_536):
                unread += data
                while b"\r\n" in unread:
                    line, _, rest = unread.partition(b"\r\n")
                    words = line.split()
                    if words[0] == b"set":
                        size = int(words[4]) + 2
                        if len(rest) < size:
                            break
                        rest = rest[size:]
                    unread = rest
                    connection.sendall(self._reply(words, self.open[peer]))
        del self.open[peer]

    def _reply(self, words: list[bytes], held: set[int]) -> bytes:
        if words[0] == b"set":
            return b"STORED\r\n"
        if words[0] in (b"gets", b"get"):
            return self._item(words[1], held)
        if words[0] == b"monitor":
            return self._item(words[1], held) + self._item(words[1], held) + b"END\r\n"
        if words[0] == b"confirm":
            held.clear()
            return b"END\r\n"
        if words[0] in (b"delete", b"touch"):
            number = int(words[1].partition(b"/id=")[2].partition(b"/")[0])
            if number not in held:
                return b"NOT_FOUND\r\n"
            if words[0] == b"delete" or b"/abort" in words[1]:
                held.remove(number)
            return b"DELETED\r\n" if words[0] == b"delete" else b"TOUCHED\r\n"
        return b"ERROR\r\n" if words[0] == b"client_name" else b"VERSION 1\r\n"

    def _item(self, key: bytes, held: set[int]) -> bytes:
        self._last_id += 1
        if b"/peek" not in key:
            held.add(self._last_id)
        return b"VALUE %b 0 1 %d\r\na\r\nEND\r\n" % (key, self._last_id)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(60)
