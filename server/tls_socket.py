"""A client's socket under TLS: the calls of a plain one (interfaces.py), with OpenSSL between two buffers in memory.

The hub, connections and sessions see plain bytes only. Nothing blocks and there is no thread: OpenSSL's output waits in
memory until the socket takes it. After a read the socket holds nothing back: received bytes are decrypted at once,
because the poller only reports bytes that are still in the kernel.
"""

from __future__ import annotations

import errno
import socket
import ssl
from collections import deque
from typing import Any

from staniel.server.interfaces import HandshakeError, Sock

RECORD_BYTES_MAX = 16 << 10  # plain bytes of one record; RFC 8446, 5.1
OVERHEAD_BYTES = 1 << 10  # read beyond the requested count: headers and tags of as many records
# Encrypted together.
SEND_BYTES_MAX = 4 * RECORD_BYTES_MAX
# The limit of TLS's own replies (key updates, alerts) that a client requests and does not read.
CONTROL_BYTES_MAX = 64 << 10
# Records without data: a key update takes as long as a request, and libraries send one in millions of records. The
# first number may come at once, and one more for each RECORDS_PER_EMPTY records with data.
EMPTY_RECORDS_MAX, RECORDS_PER_EMPTY = 32, 1024
RECORD_HEADER_BYTES = 5
NAME_KINDS = ("DNS", "email", "URI")
HANDSHAKE = 0x16  # the first byte of a client that speaks TLS
PLAIN_TEXT = "plain text on a TLS port"
UNREADABLE = "its certificate has text that is not UTF-8"


class RecordEnds:
    """A finder of the ends of records in received bytes. Their headers are not encrypted."""

    __slots__ = ("_header", "_left")

    def __init__(self) -> None:
        self._header = b""  # the arrived part of a header
        self._left = 0  # bytes of the unfinished record that are still to come

    def find(self, data: bytes) -> list[int]:
        """Return the ends in `data`, which follows the data of earlier calls."""
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
    """A side of a connection, the server's unless `is_client`. `below` is the plain socket."""

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

    def __init__(self, below: Sock, context: ssl.SSLContext, *, is_client: bool = False) -> None:
        self.below = below
        self.read_bytes = 0  # encrypted ones, during the handshake
        self._arrived, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._arrived, self._leaving, server_side=not is_client)
        self._encrypted: bytes | memoryview = b""  # bytes that the socket has not taken
        # (its end, counted back from the end of `_encrypted`; its plain bytes) of each record that has not left.
        self._records: deque[tuple[int, int]] = deque()
        self._left_bytes = 0  # plain bytes of records that have left and are not reported yet
        self._ends = RecordEnds()
        self._is_shaken = False  # the handshake is done
        self._rest = b""  # bytes that came with the end of the handshake
        self._empty_records = 0  # counted in shares of RECORDS_PER_EMPTY
        self._heard_all = False  # the client has ended its stream, or sent unreadable bytes
        self._said_all = False  # our side is shut

    def fileno(self) -> int:
        return self.below.fileno()

    # the handshake

    def handshake(self, count: int) -> bool:
        """Continue the handshake, reading at most `count` bytes. Return True once it is done.

        Raises HandshakeError, OSError; then the socket is unusable, but the client has received the reason if possible.
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
        """Run the handshake record by record: bytes behind the last one are for `recv`. Raises SSLError."""
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
        """True if encrypted bytes wait for the socket."""
        return bool(self._encrypted)

    def names(self) -> tuple[str, ...]:
        """Return the names in the client's certificate: common name, DNS names, addresses; none without one.
        `client_ca` has signed it, or the handshake would have failed. Raises HandshakeError.
        """
        try:
            certificate: Any = self._tls.getpeercert() or {}
        except (ssl.SSLError, ValueError) as error:  # an authority may sign names that are not UTF-8
            raise HandshakeError(UNREADABLE) from error
        names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
        names += [value for kind, value in certificate.get("subjectAltName", ()) if kind in NAME_KINDS]
        return tuple(dict.fromkeys(names))

    # the stream

    def recv(self, count: int, /) -> bytes:
        """Return received bytes, about `count` at most; b"" at the end of the stream, announced or not. Raises
        BlockingIOError; other OSErrors for bytes that are no TLS.
        """
        if self._said_all:
            return self.below.recv(count)  # dropped by the caller, so it need not be decrypted
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
        pieces = self._decrypt_arrived(data)
        if self._leaving.pending:
            self._answer()
        if pieces:
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return self._end_or_wait()

    def _decrypt_arrived(self, data: bytes) -> list[bytes]:
        """Decrypt `data`, a few records at a time, so that a client that sends too many empty ones is noticed before
        OpenSSL has processed all of them. Raises ConnectionResetError.
        """
        ends, pieces, begin = self._ends.find(data), list[bytes](), 0
        view = memoryview(data)
        for first in range(0, len(ends) + 1, EMPTY_RECORDS_MAX):
            some = ends[first : first + EMPTY_RECORDS_MAX]
            end = some[-1] if len(some) == EMPTY_RECORDS_MAX else len(data)
            self._arrived.write(view[begin:end])
            begin, count_before = end, len(pieces)
            self._decrypt(pieces)
            if self._heard_all:
                break
            count_before = len(pieces) - count_before
            empty = RECORDS_PER_EMPTY * (len(some) - count_before) - count_before
            self._empty_records = max(0, self._empty_records + empty)
            if self._empty_records > RECORDS_PER_EMPTY * EMPTY_RECORDS_MAX:
                raise ConnectionResetError(errno.ECONNRESET, "it sends records that carry nothing")
        return pieces

    def _end_or_wait(self) -> bytes:
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
            pass  # further bytes are unreadable, or not to be trusted
        self._heard_all = True
        if pieces:
            self._have_end_told()

    def _have_end_told(self) -> None:
        """Make the poller wake us once more: bytes read together with the end of the stream come first."""
        try:
            self.below.shutdown(socket.SHUT_RD)
        except OSError:
            pass  # the client is gone, which also wakes us

    def _answer(self) -> None:
        """Send TLS's own messages, or leave them to the next `send`."""
        self._try_to_send()
        # No replies are among the pending bytes: they are encrypted only when earlier bytes have left.
        if self._leaving.pending > CONTROL_BYTES_MAX:
            raise ConnectionResetError(errno.ECONNRESET, "it asks for TLS's own answers and reads none")

    def send(self, data: bytes | memoryview, /) -> int:
        """Send bytes, and return how many have left, in whole records: the client cannot read a part of one.

        Bytes that have not left must be given again, as the first bytes of the next call, also after 0. Raises
        BlockingIOError if none of these bytes has been taken, OSError.
        """
        size, view = len(data), memoryview(data)
        try:
            if self._encrypted or self._leaving.pending:
                self._flush()
        except BlockingIOError:
            if not self._left_bytes:
                raise
            return self._pop_left_bytes()
        at = self._left_bytes
        while at < size:
            end = min(at + SEND_BYTES_MAX, size)
            self._encrypt(view[at:end])
            try:
                self._flush()
            except BlockingIOError:
                break
            at = end
        return self._pop_left_bytes()

    def _pop_left_bytes(self) -> int:
        told, self._left_bytes = self._left_bytes, 0
        return told

    def _encrypt(self, data: memoryview) -> None:
        """Encrypt bytes. Everything encrypted before has left."""
        ends, at = [], 0
        while at < len(data):
            count = self._tls.write(data[at : at + RECORD_BYTES_MAX])
            at += count
            ends.append((self._leaving.pending, count))
        self._records.extend([(self._leaving.pending - end, count) for end, count in ends])

    def _flush(self) -> None:
        """Send the encrypted bytes. Raises BlockingIOError if the socket does not take all, OSError."""
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
        """Send what the socket takes; the rest waits. The client may be gone already."""
        try:
            self._flush()
        except OSError:
            pass

    def shutdown(self, how: int, /) -> None:
        """Send close_notify, and shut our side. Raises OSError."""
        self._say_goodbye()
        self.below.shutdown(how)

    def close(self) -> None:
        self._say_goodbye()
        self.below.close()

    def _say_goodbye(self) -> None:
        """Send close_notify, if the stream is whole and the socket takes it."""
        if self._said_all:
            return
        self._said_all = True
        if self._encrypted:
            return
        try:
            self._tls.unwrap()
        except (OSError, ValueError):
            pass  # the client has not sent its own yet, or there was no handshake
        self._try_to_send()


def reason(error: ssl.SSLError) -> str:
    """Return an SSL error in a few words, for the log."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if error.reason:
        return error.reason.lower().replace("_", " ")
    return "no TLS"
