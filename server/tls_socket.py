"""A client's socket under TLS: the calls of a plain one (interfaces.py), with OpenSSL between two buffers in memory.

The hub, connections and sessions see plain bytes and never learn of it. Nothing blocks and there is no thread: what
OpenSSL wants to say waits in memory until the socket takes it. A socket that has been read holds nothing back: what
has arrived is decrypted at once, because the poller only tells of what is still in the kernel.
"""

from __future__ import annotations

import errno
import socket
import ssl
from collections import deque
from typing import Any

from staniel.server.interfaces import HandshakeError, Sock

RECORD_BYTES_MAX = 16 << 10  # of plain bytes in one record; RFC 8446, 5.1
OVERHEAD_BYTES = 1 << 10  # what is read more than is asked for: headers and tags of as many records
# Encrypted together.
SEND_BYTES_MAX = 4 * RECORD_BYTES_MAX
# Of answers that TLS itself gives (key updates, alerts), to a client that asks for them and reads none.
CONTROL_BYTES_MAX = 64 << 10
# Records that carry nothing for us: a key update takes as long as an answered request, and libraries send one in
# millions of records. So many may come at once, and one more for each so many records that carry something.
EMPTY_RECORDS_MAX, RECORDS_PER_EMPTY = 32, 1024
RECORD_HEADER_BYTES = 5
NAME_KINDS = ("DNS", "email", "URI")
HANDSHAKE = 0x16  # the first byte of a client that speaks TLS
PLAIN_TEXT = "plain text on a TLS port"
UNREADABLE = "its certificate holds text that is no UTF-8"


class RecordEnds:
    """Where records end in what has arrived. Their headers are not encrypted."""

    __slots__ = ("_header", "_left")

    def __init__(self) -> None:
        self._header = b""  # the part of one that has arrived
        self._left = 0  # bytes of the record that has begun, which are still to come

    def find(self, data: bytes) -> list[int]:
        """The ends in `data`, which follows what was given before."""
        size, shift = len(data), len(self._header)
        if shift:
            data = self._header + data
        at, ends = self._left, list[int]()
        if at > size:
            self._left = at - size
            return ends
        if at:
            ends.append(at)
        self._left = 0
        while at + RECORD_HEADER_BYTES <= size + shift:
            at += RECORD_HEADER_BYTES + (data[at + 3] << 8 | data[at + 4])
            if at > size + shift:
                self._left, self._header = at - size - shift, b""
                return ends
            ends.append(at - shift)
        self._header = data[at:]
        return ends


class TlsSocket:
    """The server's side of one connection. `below`: the plain socket."""

    __slots__ = (
        "_arrived",
        "_empty_records",
        "_encrypted",
        "_ends",
        "_heard_all",
        "_is_shaken",
        "_leaving",
        "_left_bytes",
        "_records",
        "_rest",
        "_said_all",
        "_tls",
        "below",
        "read_bytes",
    )

    def __init__(self, below: Sock, context: ssl.SSLContext) -> None:
        self.below = below
        self.read_bytes = 0  # encrypted ones, during the handshake
        self._arrived, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._arrived, self._leaving, server_side=True)
        self._encrypted: bytes | memoryview = b""  # what the socket has not taken
        # (where it ends, counted back from the end of `_encrypted`; its plain bytes) of each record that has not left.
        self._records: deque[tuple[int, int]] = deque()
        self._left_bytes = 0  # plain bytes of records that have left, and were not told yet
        self._ends = RecordEnds()
        self._is_shaken = False  # the handshake is done
        self._rest = b""  # what has come with the end of the handshake
        self._empty_records = 0  # counted in shares of RECORDS_PER_EMPTY
        self._heard_all = False  # the client has said that nothing more follows, or what it says makes no sense
        self._said_all = False  # our side is shut

    def fileno(self) -> int:
        return self.below.fileno()

    # the handshake

    def handshake(self, count: int) -> bool:
        """Go on with it, reading `count` bytes at most; whether it is done. Raises HandshakeError, OSError; then the
        socket is of no use, but the client has been told why if it could be.
        """
        try:
            data = self.below.recv(count)
        except BlockingIOError:
            data = None
        if data:
            if not self.read_bytes and data[0] != HANDSHAKE:
                raise HandshakeError(PLAIN_TEXT)
            self.read_bytes += len(data)
        elif data is not None:
            raise HandshakeError("the client has hung up" + ("" if self.read_bytes else " without a word"))
        try:
            is_done = self._shake(data or b"")
        except ssl.SSLError as error:
            self._try_to_send()
            raise HandshakeError(reason(error)) from error
        self._try_to_send()
        return is_done

    def _shake(self, data: bytes) -> bool:
        """Record by record: what follows the last one is for `recv`. Raises SSLError."""
        if self._is_shaken:
            self._rest += data
            return True
        begin = 0
        for end in [*self._ends.find(data), len(data)]:
            self._arrived.write(data[begin:end])
            begin = end
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                continue
            self._is_shaken, self._rest, self._ends = True, data[end:], RecordEnds()
            return True
        return False

    @property
    def wants_write(self) -> bool:
        """Whether something waits for the socket to take it."""
        return bool(self._encrypted)

    def names(self) -> tuple[str, ...]:
        """What the client's certificate calls it: common name, DNS names, addresses; none without one. It was signed by
        `client_ca`, or the handshake would have failed. Raises HandshakeError.
        """
        try:
            found: Any = self._tls.getpeercert() or {}
        except (ssl.SSLError, ValueError) as error:  # an authority may sign names that are no UTF-8
            raise HandshakeError(UNREADABLE) from error
        names = [value for part in found.get("subject", ()) for key, value in part if key == "commonName"]
        names += [value for kind, value in found.get("subjectAltName", ()) if kind in NAME_KINDS]
        return tuple(dict.fromkeys(names))

    # the stream

    def recv(self, count: int, /) -> bytes:
        """All that has arrived, about `count` bytes at most; b"" at the end of the stream, announced or not. Raises
        BlockingIOError; other OSErrors for what is no TLS.
        """
        if self._said_all:
            return self.below.recv(count)  # what is still said is not heard
        if self._heard_all:
            return b""
        data, self._rest = self._rest, b""
        if not data:
            try:
                data = self.below.recv(count + OVERHEAD_BYTES)
            except BlockingIOError:
                if not (self._tls.pending() or self._arrived.pending):
                    raise
            else:
                if not (data or self._tls.pending() or self._arrived.pending):
                    return b""
        pieces = self._take(data)
        if self._leaving.pending:
            self._answer()
        if pieces:
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return self._nothing()

    def _take(self, data: bytes) -> list[bytes]:
        """Decrypt it, a few records at a time, so that a client that sends too many empty ones is noticed before
        OpenSSL has worked on all of them. Raises ConnectionResetError.
        """
        ends, pieces, begin = self._ends.find(data), list[bytes](), 0
        view = memoryview(data)
        for first in range(0, len(ends) + 1, EMPTY_RECORDS_MAX):
            some = ends[first : first + EMPTY_RECORDS_MAX]
            end = some[-1] if len(some) == EMPTY_RECORDS_MAX else len(data)
            self._arrived.write(view[begin:end])
            begin, found = end, len(pieces)
            self._decrypt(pieces)
            if self._heard_all:
                break
            found = len(pieces) - found
            empty = RECORDS_PER_EMPTY * (len(some) - found) - found
            self._empty_records = max(0, self._empty_records + empty)
            if self._empty_records > RECORDS_PER_EMPTY * EMPTY_RECORDS_MAX:
                raise ConnectionResetError(errno.ECONNRESET, "it sends records that carry nothing")
        return pieces

    def _nothing(self) -> bytes:
        if self._heard_all:
            return b""
        raise BlockingIOError(errno.EAGAIN, "part of a record")

    def _decrypt(self, pieces: list[bytes]) -> None:
        try:
            while piece := self._tls.read(RECORD_BYTES_MAX):
                pieces.append(piece)
                if not self._arrived.pending and not self._tls.pending():
                    return
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError:
            pass  # what follows cannot be read, nor trusted
        self._heard_all = True
        if pieces:
            self._have_end_told()

    def _have_end_told(self) -> None:
        """The poller is to wake us once more: what was read with the end of the stream comes first."""
        try:
            self.below.shutdown(socket.SHUT_RD)
        except OSError:
            pass  # gone: that wakes us, too

    def _answer(self) -> None:
        """What TLS itself has to say goes out, or waits for the next `send`."""
        self._try_to_send()
        # Behind what the socket is taking there is nothing else: replies are encrypted once that has left.
        if self._leaving.pending > CONTROL_BYTES_MAX:
            raise ConnectionResetError(errno.ECONNRESET, "it asks for TLS's own answers and reads none")

    def send(self, data: bytes | memoryview, /) -> int:
        """How many bytes have left, in whole records: the client can read no part of one. What was given and has not
        left must be given again, as the first bytes of the next call: 0 says so, too. Raises BlockingIOError if nothing
        of this has been taken, OSError.
        """
        size, view = len(data), memoryview(data)
        try:
            if self._encrypted or self._leaving.pending:
                self._flush()
        except BlockingIOError:
            if not self._left_bytes:
                raise
            return self._tell()
        at = self._left_bytes
        while at < size:
            end = min(at + SEND_BYTES_MAX, size)
            self._encrypt(view[at:end])
            try:
                self._flush()
            except BlockingIOError:
                break
            at = end
        return self._tell()

    def _tell(self) -> int:
        told, self._left_bytes = self._left_bytes, 0
        return told

    def _encrypt(self, data: memoryview) -> None:
        """All that was encrypted before has left."""
        ends, at = [], 0
        while at < len(data):
            count = self._tls.write(data[at : at + RECORD_BYTES_MAX])
            at += count
            ends.append((self._leaving.pending, count))
        self._records.extend([(self._leaving.pending - end, count) for end, count in ends])

    def _flush(self) -> None:
        """Raises BlockingIOError if the socket does not take all, OSError."""
        while True:
            if not self._encrypted:
                if not self._leaving.pending:
                    return
                self._encrypted = self._leaving.read()
            left = len(self._encrypted) - self.below.send(self._encrypted)
            records = self._records
            while records and records[0][0] >= left:
                self._left_bytes += records.popleft()[1]
            self._encrypted = memoryview(self._encrypted)[-left:] if left else b""
            if left:
                raise BlockingIOError(errno.EAGAIN, "the socket is full")

    def _try_to_send(self) -> None:
        """What cannot leave now waits. The client may be gone already."""
        try:
            self._flush()
        except OSError:
            pass

    def shutdown(self, how: int, /) -> None:
        """Say that nothing more follows, and shut our side. Raises OSError."""
        self._say_goodbye()
        self.below.shutdown(how)

    def close(self) -> None:
        self._say_goodbye()
        self.below.close()

    def _say_goodbye(self) -> None:
        """close_notify, if the stream is whole and the socket takes it."""
        if self._said_all:
            return
        self._said_all = True
        if self._encrypted:
            return
        try:
            self._tls.unwrap()
        except (OSError, ValueError):
            pass  # the client has not said it yet, or there was no handshake
        self._try_to_send()


def reason(error: ssl.SSLError) -> str:
    """In a few words, for the log."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if error.reason:
        return error.reason.lower().replace("_", " ")
    return "no TLS"
