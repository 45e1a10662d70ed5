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
NAME_KINDS = ("DNS", "email", "URI")
HANDSHAKE = 0x16  # the first byte of a client that speaks TLS
PLAIN_TEXT = "plain text on a TLS port"


class TlsSocket:
    """The server's side of one connection. `below`: the plain socket."""

    __slots__ = (
        "_arrived",
        "_encrypted",
        "_heard_all",
        "_leaving",
        "_left_bytes",
        "_records",
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
            self._arrived.write(data)
        elif data is not None:
            raise HandshakeError("the client has hung up" + ("" if self.read_bytes else " without a word"))
        try:
            self._tls.do_handshake()
            is_done = True
        except ssl.SSLWantReadError:
            is_done = False
        except ssl.SSLError as error:
            self._try_to_send()
            raise HandshakeError(reason(error)) from error
        self._try_to_send()
        return is_done

    @property
    def wants_write(self) -> bool:
        """Whether something waits for the socket to take it."""
        return bool(self._encrypted)

    def names(self) -> tuple[str, ...]:
        """What the client's certificate calls it: common name, DNS names, addresses; none without one. It was signed by
        `client_ca`, or the handshake would have failed.
        """
        found: Any = self._tls.getpeercert() or {}
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
        try:
            data = self.below.recv(count + OVERHEAD_BYTES)
            if data:
                self._arrived.write(data)
            elif not (self._tls.pending() or self._arrived.pending):
                return b""
        except BlockingIOError:
            if not (self._tls.pending() or self._arrived.pending):
                raise
        pieces = self._decrypt()
        if self._leaving.pending:
            self._answer()
        if pieces:
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return self._nothing()

    def _nothing(self) -> bytes:
        if self._heard_all:
            return b""
        raise BlockingIOError(errno.EAGAIN, "part of a record")

    def _decrypt(self) -> list[bytes]:
        pieces = []
        try:
            while piece := self._tls.read(RECORD_BYTES_MAX):
                pieces.append(piece)
                if not self._arrived.pending and not self._tls.pending():
                    return pieces
        except ssl.SSLWantReadError:
            return pieces
        except ssl.SSLError:
            pass  # what follows cannot be read, nor trusted
        self._heard_all = True
        if pieces:
            self._have_end_told()
        return pieces

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
