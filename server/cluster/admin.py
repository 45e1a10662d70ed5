"""The requests of operators that are about the cluster, over the admin listener, in every role: see cluster/status.py.

They are served before the hub sees them and wait for no record, so that a leader that cannot answer can still say why.
"""

from __future__ import annotations

from collections.abc import Callable
from hmac import compare_digest

import msgspec
from msgspec import Struct

from staniel.cluster.status import Accepted, HandOver, MemberStatus, Refused
from staniel.server.cluster.gate import Gate, GatedSock
from staniel.server.interfaces import Sock

BODY_BYTES_MAX = 16 << 10
HEAD_BYTES_MAX = 16 << 10
LENGTH_DIGITS_MAX = 9
PATHS = (b"GET /cluster ", b"POST /cluster/", b"GET /health/live ")
TOO_LARGE = "the request is too large"


class Orders(Struct, frozen=True):
    """The requests that a member takes. An order returns its member's id, or why it is refused."""

    status: Callable[[], MemberStatus]
    init: Callable[[], Accepted | Refused]
    hand_over: Callable[[str], Accepted | Refused]


class Request(Struct, frozen=True):
    """A request: its method and path in one, its token, its body."""

    line: str
    token: bytes
    body: bytes


def read_request(data: bytes) -> Request | str | None:
    """Return the request that these bytes are: None if more are needed, a text if they are none."""
    head, end, body = data.partition(b"\r\n\r\n")
    if len(head) > HEAD_BYTES_MAX:
        return TOO_LARGE
    if not end:
        return None
    lines = head.decode("latin-1").split("\r\n")
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    length = fields.get("content-length", "0")
    if not (length.isascii() and length.isdigit()) or len(length) > LENGTH_DIGITS_MAX or int(length) > BODY_BYTES_MAX:
        return TOO_LARGE
    if len(body) < int(length):
        return None
    scheme, _, token = fields.get("authorization", "").partition(" ")
    line = " ".join(lines[0].split(" ")[:2])
    return Request(line, token.strip().encode("latin-1") if scheme.lower() == "bearer" else b"", body[: int(length)])


class MemberAdmin:
    """The service of these requests. `token`: what requests over TCP must carry, b"" if nothing; None: none is
    served there, because there are users.
    """

    def __init__(self, orders: Orders, token: bytes | None) -> None:
        self._orders = orders
        self._token = token

    def reply(self, data: bytes, is_of_spool: bool) -> bytes | None:
        """Return the reply to a request, or None if it is not whole. No bytes of a client may raise an error here: it
        would end the member.
        """
        request = read_request(data)
        if request is None:
            return None
        if isinstance(request, str):
            return respond(400, Refused(request))
        if request.line == "GET /health/live":
            return respond(200, None)
        if not is_of_spool and self._token is None:
            return respond(403, Refused("ask over the spool's socket, on this machine: there are users"))
        if not is_of_spool and self._token and not compare_digest(self._token, request.token):
            return respond(401, Refused("expected the token of [admin] token_file"))
        return self._serve(request)

    def _serve(self, request: Request) -> bytes:
        match request.line:
            case "GET /cluster":
                return respond(200, self._orders.status())
            case "POST /cluster/init":
                return self._respond_to_order(self._orders.init())
            case "POST /cluster/handover":
                try:
                    order = msgspec.json.decode(request.body or b"{}", type=HandOver)
                except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
                    return respond(400, Refused(str(error)))
                return self._respond_to_order(self._orders.hand_over(order.to))
        leader = self._orders.status().leader_address
        return respond(503, Refused(f"not the leader: {leader}" if leader else "not the leader"))

    def _respond_to_order(self, outcome: Accepted | Refused) -> bytes:
        return respond(409 if isinstance(outcome, Refused) else 202, outcome)


def respond(status: int, body: Struct | None) -> bytes:
    """Return a response in HTTP, which ends its connection."""
    content = b"{}" if body is None else msgspec.json.encode(body)
    reasons = {200: "OK", 202: "Accepted", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 409: "Conflict"}
    head = f"HTTP/1.1 {status} {reasons.get(status, 'Service Unavailable')}\r\nContent-Type: application/json\r\n"
    return f"{head}Connection: close\r\nContent-Length: {len(content) + 1}\r\n\r\n".encode() + content + b"\n"


class AdminSock(GatedSock):
    """An operator's socket of a leader. If its first request is about the cluster it is served here, else the hub gets
    all of it: later bytes may be within a body, and a reply from here would overtake those that wait. `_asked_bytes`:
    the first bytes, as long as they may be such a request; None behind them.
    """

    __slots__ = ("_admin", "_asked_bytes", "_is_of_spool")

    def __init__(self, gate: Gate, below: Sock, admin: MemberAdmin, is_of_spool: bool) -> None:
        super().__init__(gate, below)
        self._admin = admin
        self._is_of_spool = is_of_spool
        self._asked_bytes: bytes | None = b""

    def recv(self, count: int, /) -> bytes:
        data = super().recv(count)
        if self._asked_bytes is None:
            return data
        asked = self._asked_bytes + data
        if not data or not any(asked.startswith(path) or path.startswith(asked) for path in PATHS):
            self._asked_bytes = None
            return b"" if asked.startswith(PATHS) else asked  # at the end of the stream the hub judges a part of a word
        reply = self._admin.reply(asked, self._is_of_spool)
        if reply is None:
            self._asked_bytes = asked
            raise BlockingIOError
        self._asked_bytes = None
        self.below.send(reply)
        return b""  # to the hub the client has ended its stream
