"""HTTP/1.1 with one endpoint, without a socket: a request to bytes, and bytes to its reply. h11 does the reading.

Whatever a peer sends, no more than a head, a piece of a body and, for a whole reply, REPLY_BYTES_MAX is kept.
"""

from __future__ import annotations

import re

import h11

from staniel.cluster.etcd.errors import BadReplyError
from staniel.cluster.etcd.messages import Request

HEAD_BYTES_MAX = 16_384
REPLY_BYTES_MAX = 1 << 20
"""The limit of a reply, and of a message of a stream. etcd takes requests of 1.5 MB; the keys of a cluster have some
hundred bytes.
"""
OK = 200
JSON = b"application/json"
TOKEN = re.compile(r"[!-~]{1,4096}")
# A member that has lost the others refuses at once, and ends its watches, instead of waiting or replying from the past.
REQUIRE_LEADER = ("Grpc-Metadata-Hasleader", "true")


class Exchange:
    """The requests and replies of one connection, one after the other."""

    def __init__(self, authority: str) -> None:
        self._authority = authority
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
        self.status = 0

    def encode(self, request: Request, token: str) -> bytes:
        """Return the bytes of a request. The reply to the one before has been received."""
        headers = [
            ("Host", self._authority),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(request.body))),
            REQUIRE_LEADER,
        ]
        if token:
            headers.append(("Authorization", token))
        try:
            if self._http.our_state is h11.DONE:
                self._http.start_next_cycle()
            self.status = 0
            head = self._http.send(h11.Request(method="POST", target=request.path, headers=headers))
            body = self._http.send(h11.Data(data=request.body))
            end = self._http.send(h11.EndOfMessage())
        except h11.LocalProtocolError as error:
            raise BadReplyError(f"it has ended the connection with its last reply: {error}") from None
        return b"".join(part for part in (head, body, end) if part)

    @property
    def has_reply(self) -> bool:
        """The reply is complete."""
        return self._http.their_state is h11.DONE or self._http.their_state is h11.MUST_CLOSE

    def receive(self, data: bytes) -> bytes:
        """Return the next part of the reply's body that `data` has, maybe none; no data is the end of the connection.
        Raises BadReplyError.
        """
        if not data and not self.status:
            raise BadReplyError("it has ended the connection before its reply")
        parts = []
        try:
            self._http.receive_data(data)
            while not self.has_reply:
                event = self._http.next_event()
                if isinstance(event, h11.Response):
                    self._check_head(event)
                elif isinstance(event, h11.Data):
                    parts.append(bytes(event.data))
                elif isinstance(event, h11.InformationalResponse | h11.ConnectionClosed):
                    raise BadReplyError("its reply is not of HTTP as etcd speaks it")
                elif event is h11.NEED_DATA or event is h11.PAUSED:
                    break
        except h11.RemoteProtocolError as error:
            raise BadReplyError(f"its reply is not of HTTP, or ends in the middle: {error}") from None
        return b"".join(parts)

    def _check_head(self, response: h11.Response) -> None:
        self.status = response.status_code
        headers = dict(response.headers)
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind != JSON:
            what = "" if self.status == OK else f", with HTTP's status {self.status}"
            raise BadReplyError(f"its reply is not JSON{what}: is it etcd, with its gateway enabled?")
        if int(headers.get(b"content-length", b"0")) > REPLY_BYTES_MAX:
            raise BadReplyError(f"its reply has more than {REPLY_BYTES_MAX} bytes")


class Body:
    """A reply that is collected as a whole."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, part: bytes) -> None:
        """Keep a part. Raises BadReplyError if it is too much."""
        self._size += len(part)
        if self._size > REPLY_BYTES_MAX:
            raise BadReplyError(f"its reply has more than {REPLY_BYTES_MAX} bytes")
        if part:
            self._parts.append(part)

    def join(self) -> bytes:
        """Return all of it."""
        return b"".join(self._parts)


class Lines:
    """A reply that is a row of messages, each in a line."""

    def __init__(self) -> None:
        self._begun = bytearray()

    def split(self, part: bytes) -> list[bytes]:
        """Return the messages that `part` completes. Raises BadReplyError if one is too long."""
        *whole, begun = part.split(b"\n")
        lines = []
        for line in whole:
            lines.append(bytes(self._begun) + line)
            self._begun.clear()
        self._begun += begun
        if len(self._begun) > REPLY_BYTES_MAX:
            raise BadReplyError(f"a message of its watch has more than {REPLY_BYTES_MAX} bytes")
        return [line for line in lines if line.strip()]
