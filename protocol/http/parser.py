"""The parser of HTTP/1.1, without a socket: bytes in, requests out, in order. h11 does the reading.

    state   waits for               then
    HEAD    the end of the headers  BODY; CLOSED if it is no request
    BODY    the end of the body     HEAD; CLOSED if it is too large or the client asks to close
    PAUSED  `More.resume`           the state that it was paused in; what arrives until then is stored
    CLOSED  nothing                 for ever

h11 pairs each request with its reply. Here the replies are made elsewhere, so each request gets an h11 connection of
its own, which receives the bytes behind the request before. No bytes of a peer raise: an unreadable request yields an
`Invalid`, whose reply says why, and the connection ends there, because the start of the next request is unknown.
"""

from __future__ import annotations

from enum import Enum
from functools import partial
from io import BytesIO
from urllib.parse import parse_qsl, unquote_to_bytes

import h11
from msgspec import structs

from staniel.protocol.http import replies
from staniel.protocol.http.detect import TLS_HELLO, TLS_REFUSED
from staniel.protocol.http.requests import RAW, HttpHead, HttpMessage, HttpRequest
from staniel.protocol.limits import Limits
from staniel.protocol.parser import Parser
from staniel.protocol.requests import Invalid, More

HEAD_BYTES_MAX = 16 << 10
"""The limit for the request line and all headers. Browsers send one or two KB."""

BODY_BYTES_MAX = 1 << 20
"""The limit for a JSON body. A raw body may be as long as an item; once it is longer than this, its head is handed out,
so that the client's permissions are checked before more of it is stored.
"""

QUERY_FIELDS_MAX = 32

WORK_PER_FEED = 48
"""The work of one turn: pieces of bodies, 10 to 20 us each,"""

WORK_OF_HEAD = 9
"""and heads, which take h11 0.1 to 0.2 ms."""

WHY = {
    431: f"the request line and the headers are larger than {HEAD_BYTES_MAX} bytes",
    501: "this transfer encoding is not known here",
}


class HttpState(Enum):
    HEAD = "head"
    BODY = "body"
    PAUSED = "paused"
    CLOSED = "closed"


_NEXT = {
    HttpState.HEAD: (HttpState.BODY, HttpState.PAUSED, HttpState.CLOSED),
    HttpState.BODY: (HttpState.HEAD, HttpState.PAUSED, HttpState.CLOSED),
    HttpState.PAUSED: (HttpState.HEAD, HttpState.BODY),
    HttpState.CLOSED: (),
}
"""The states that may follow a state; `_enter` asserts it."""


class HttpParser(Parser):
    """A parser of one connection. It uses only the item size of `limits`."""

    def __init__(self, limits: Limits) -> None:
        self._state = HttpState.HEAD
        self._is_new = True  # nothing has arrived yet
        self._connection = _new_connection()
        self._request: h11.Request | None = None
        self._body = BytesIO()  # a bytearray would be copied once more to become the item
        self._body_bytes_max = BODY_BYTES_MAX
        self._item_bytes_max = limits.item_bytes_max
        self._rest = bytearray()  # bytes that arrived while PAUSED
        self._kept_bytes = 0  # in h11: an unfinished head, or bytes for the next turn
        self.pending_bytes = 0

    def limit(self, limits: Limits) -> None:
        """Change the limits for requests that have not begun."""
        self._item_bytes_max = limits.item_bytes_max

    @property
    def state(self) -> HttpState:
        return self._state

    def feed(self, data: bytes) -> list[HttpMessage]:
        """Return the requests that `data` completes, in order. If they exceed a turn's time, the last one is a
        `More`.
        """
        if self._state is HttpState.CLOSED:
            return []
        if self._state is HttpState.PAUSED:
            self._rest += data
            self.pending_bytes += len(data)
            return []
        messages: list[HttpMessage] = []
        if data and self._is_new and data[0] == TLS_HELLO[0]:
            messages.append(TLS_REFUSED)
            self._close()
        elif data:
            self._is_new = False
            self._connection.receive_data(data)
            self._read_events(messages)
        self._count_pending()
        return messages

    def _resume(self, state: HttpState) -> list[HttpMessage]:
        self._enter(state)
        if self._rest:
            self._connection.receive_data(bytes(self._rest))
            self._rest.clear()
        messages: list[HttpMessage] = []
        self._read_events(messages)
        self._count_pending()
        return messages

    def _count_pending(self) -> None:
        self.pending_bytes = self._body.tell() + self._kept_bytes + len(self._rest)

    def _read_events(self, messages: list[HttpMessage]) -> None:
        work_left = WORK_PER_FEED
        while self._state is not HttpState.CLOSED and work_left > 0:
            work_left -= 1
            try:
                event = self._connection.next_event()
            except h11.RemoteProtocolError as error:
                self._refuse(error.error_status_hint, messages)
                return
            if isinstance(event, h11.Request):
                self._begin_request(event, messages)
                work_left -= WORK_OF_HEAD
            elif isinstance(event, h11.Data):
                self._add_to_body(bytes(event.data), messages)
            elif isinstance(event, h11.EndOfMessage):
                self._end_request(messages)
            else:  # NEED_DATA, or the client asks to switch protocols
                self._kept_bytes = len(self._connection.trailing_data[0])
                return
        if self._state is not HttpState.CLOSED:
            self._kept_bytes = len(self._connection.trailing_data[0])
            messages.append(More(partial(self._resume, self._state)))
            self._enter(HttpState.PAUSED)

    def _begin_request(self, event: h11.Request, messages: list[HttpMessage]) -> None:
        self._enter(HttpState.BODY)
        self._request = event
        # h11 limits only unfinished heads; one that arrives in one piece has the same limit.
        if sum([len(name) + len(value) for name, value in event.headers]) + len(event.target) > HEAD_BYTES_MAX:
            self._refuse(431, messages)
            return
        names = {name for name, _ in event.headers}
        if b"content-length" in names and b"transfer-encoding" in names:
            self._refuse(400, messages)  # a proxy before us may see the end of this body elsewhere
            return
        length = next((value for name, value in event.headers if name == b"content-length"), b"0")
        self._body_bytes_max = max(BODY_BYTES_MAX, self._item_bytes_max if _is_raw(event) else 0)
        if len(length) > 12 or int(length) > self._body_bytes_max:
            self._refuse(413, messages)
        elif self._connection.they_are_waiting_for_100_continue:
            messages.append(HttpHead(_head(event), waits=True))

    def _add_to_body(self, data: bytes, messages: list[HttpMessage]) -> None:
        assert self._request is not None
        before = self._body.tell()
        if before + len(data) > self._body_bytes_max:
            self._refuse(413, messages)
            return
        self._body.write(data)
        if before <= BODY_BYTES_MAX < before + len(data):
            messages.append(HttpHead(_head(self._request), waits=False))

    def _end_request(self, messages: list[HttpMessage]) -> None:
        assert self._request is not None
        request = _translated(self._request, self._body.getvalue())
        messages.append(request)
        if not request.keep_alive:
            self._close()
            return
        trailing_data, _ = self._connection.trailing_data
        self._forget()
        self._enter(HttpState.HEAD)
        if trailing_data:
            self._connection.receive_data(trailing_data)

    def _refuse(self, status: int, messages: list[HttpMessage]) -> None:
        why = WHY.get(status, "these bytes are no request of HTTP/1.1")
        if status == 413:
            why = f"the body is larger than {self._body_bytes_max} bytes"
            if self._body_bytes_max < self._item_bytes_max:
                why += f"; one item of up to {self._item_bytes_max} goes as {RAW}, or through a queue protocol"
        nothing = HttpRequest("GET", "/", keep_alive=False)
        reply = replies.error_reply(nothing, status if status in (413, *WHY) else 400, why)
        messages.append(Invalid(reply, hang_up=True, why=why))
        self._close()

    def _close(self) -> None:
        self._forget()
        self._enter(HttpState.CLOSED)

    def _enter(self, state: HttpState) -> None:
        assert state in _NEXT[self._state], f"{state} after {self._state}"
        self._state = state

    def _forget(self) -> None:
        """Forget the finished request: the next one begins in a new connection of h11."""
        self._connection = _new_connection()
        self._request, self._body, self._kept_bytes = None, BytesIO(), 0


def _new_connection() -> h11.Connection:
    return h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)


def _is_raw(event: h11.Request) -> bool:
    types = [value for name, value in event.headers if name == b"content-type"]
    return len(types) == 1 and types[0].partition(b";")[0].strip().lower() == RAW.encode()


def _head(event: h11.Request) -> HttpRequest:
    """Return the request without its body. Refusing it ends the connection, because its body is not read."""
    return structs.replace(_translated(event, b""), keep_alive=False)


def _translated(event: h11.Request, body: bytes) -> HttpRequest:
    headers: dict[str, str] = {}
    for name, value in event.headers:
        key, text = name.decode("latin-1"), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    target = event.target.decode("latin-1")
    path, _, query = target.partition("?")
    words = [word.strip().lower() for word in headers.get("connection", "").split(",")]
    version = event.http_version.decode("latin-1")
    keep_alive = "keep-alive" in words if version == "1.0" else "close" not in words
    return HttpRequest(
        event.method.decode("latin-1"), _decoded(path), _fields(query), headers, body, keep_alive, version
    )


def _decoded(path: str) -> str:
    """Decode a path. File names, and so queue names, need not be UTF-8."""
    return unquote_to_bytes(path).decode("utf-8", "surrogateescape")


def _fields(query: str) -> dict[str, str]:
    """Return the fields of a query. A repeated name keeps its last value; too many fields count as none."""
    try:
        return dict(parse_qsl(query, keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX, errors="surrogateescape"))
    except ValueError:
        return {}
