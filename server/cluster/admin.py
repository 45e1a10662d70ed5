"""The requests of operators that are about the cluster, over the admin listener, in every role: see cluster/status.py.

They are served before the hub sees them and wait for no record, so that a leader that cannot answer can still say why.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import parse_qsl, unquote

import msgspec
from msgspec import Struct

from staniel.broker.admin.access import AdminAccess, bearer
from staniel.broker.admin.health import for_strangers
from staniel.broker.admin.http import page
from staniel.broker.admin.http.dispatch import BEARER, LoginBody
from staniel.broker.admin.metrics import CONTENT_TYPE
from staniel.broker.rights import Rights, Role
from staniel.broker.users import Users
from staniel.cluster.status import Accepted, HandOver, MemberStatus, Refused, Remove
from staniel.protocol.http import replies
from staniel.protocol.http.requests import HttpRequest
from staniel.server.cluster.gate import Gate, GatedSock
from staniel.server.cluster.member_metrics import health_of
from staniel.server.interfaces import Sock

BODY_BYTES_MAX = 16 << 10
HEAD_BYTES_MAX = 16 << 10
LENGTH_DIGITS_MAX = 9
HEAD_END = b"\r\n\r\n"
PATHS = (b"GET /cluster ", b"POST /cluster/", b"GET /health/live ")
FIGURES = (b"GET /metrics ", b"GET /health/", b"GET /api/cluster ")
"""Requests to a leader about no item: what it replies to them waits for no record."""
TOO_LARGE = "the request is too large"
INVALID = HttpRequest("GET", "/", keep_alive=False)


def read_request(data: bytes) -> HttpRequest | str | None:
    """Return the request that these bytes are: None if more are needed, a text if they are none."""
    head, end, body = data.partition(HEAD_END)
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
    method, _, target = lines[0].rpartition(" ")[0].partition(" ")
    path, _, query = target.partition("?")
    asked = dict(parse_qsl(query[:HEAD_BYTES_MAX], max_num_fields=100)) if query.count("&") < 100 else {}
    return HttpRequest(method, unquote(path), asked, fields, body[: int(length)], keep_alive=False)


class Guard:
    """The checks of requests over TCP, those of the admin listener (broker/admin/access.py). `certificate`: the names
    in the client's. `access` None: there is no TCP address.
    """

    def __init__(self, access: AdminAccess | None, users: Users) -> None:
        self._access = access
        self._users = users

    def rights_of(self, request: HttpRequest, certificate: tuple[str, ...]) -> tuple[Rights | None, int, str]:
        """Return (rights, status, why): rights None are all; a status above 0 is that of a refusal."""
        if self._access is None:
            return None, 0, ""
        name, rights = self._identify(request, certificate)
        return rights, *self._access.refusal(request, is_known=bool(name))

    def is_stranger(self, request: HttpRequest, certificate: tuple[str, ...]) -> bool:
        """Tell whether the request is unauthenticated although the listener requires authentication."""
        is_known = bool(self._identify(request, certificate)[0])
        return self._access is not None and self._access.is_stranger(request, is_known)

    def _identify(self, request: HttpRequest, certificate: tuple[str, ...]) -> tuple[str, Rights | None]:
        """Return the user's name, "" if the client is none, and the rights; a token comes before a certificate."""
        given = bearer(request)
        if given and (user := self._users.of_token(given)) is not None:
            return user.name, user.rights
        if given and self._access is not None and self._access.is_token(given):
            return "", None
        return self._users.identify("admin", "", certificate)

    def cookie_for(self, token: bytes, request: HttpRequest) -> str:
        """Return the cookie of a browser that gives the right token, else ""."""
        return self._access.cookie(request) if self._access is not None and self._access.is_token(token) else ""


class Orders(Struct, frozen=True):
    """The requests that a member takes. An order returns its member's id, or why it is refused. `reload` returns why
    the configuration is refused, "" if it is taken over, and the keys that only a restart applies. `guard` returns who
    may ask now.
    """

    status: Callable[[], MemberStatus]
    init: Callable[[], Accepted | Refused]
    hand_over: Callable[[str], Accepted | Refused]
    remove: Callable[[str], Accepted | Refused]
    reload: Callable[[], tuple[str, str]]
    guard: Callable[[], Guard]


class MemberAdmin:
    """The service of these requests. `metrics`: of a member that does not lead."""

    def __init__(self, orders: Orders, metrics: Callable[[], str] = str) -> None:
        self._orders = orders
        self.metrics = metrics

    def reply(self, data: bytes, is_of_spool: bool, certificate: tuple[str, ...] = ()) -> bytes | None:
        """Return the reply to a request, or None if it is not whole. `certificate`: the names in the client's. No bytes
        of a client may raise an error here: it would end the member.
        """
        try:
            request = read_request(data)
        except ValueError as error:  # of the query
            request = str(error)
        if request is None:
            return None
        if isinstance(request, str):
            return respond(INVALID, 400, Refused(request))
        if is_of_spool:
            return self._serve(request, None, is_stranger=False)
        guard = self._orders.guard()
        rights, status, why = guard.rights_of(request, certificate)
        if status:
            return replies.error_reply(request, status, why, BEARER if status == 401 else None)
        return self._serve(request, rights, is_stranger=guard.is_stranger(request, certificate))

    def _serve(self, request: HttpRequest, rights: Rights | None, *, is_stranger: bool) -> bytes:
        path, is_read = request.path, request.method in ("GET", "HEAD")
        if path == "/health/live" and is_read:
            return replies.reply(request, 200, b"{}\n")
        if path == "/health/ready" and is_read:
            return self._tell_readiness(request, is_stranger=is_stranger)
        if is_read and (file := page.file_of(path)):
            return replies.reply(request, 200, *page.content_of(file, request))
        if path == "/login" and request.method == "POST":
            return self._login(request)
        needed = "" if rights is None else rights.refusal_to_look() if is_read else rights.refusal_of_all(Role.ADMIN)
        if needed:
            return replies.error_reply(request, 403, needed)
        if path in ("/cluster", "/api/cluster") and is_read:
            return respond(request, 200, self._orders.status())
        if path == "/metrics" and is_read:
            return replies.reply(request, 200, self.metrics().encode(), CONTENT_TYPE)
        return self._take_order(request)

    def _take_order(self, request: HttpRequest) -> bytes:
        match request.method, request.path:
            case "POST", "/cluster/init":
                return self._respond_to_order(request, self._orders.init())
            case "POST", "/cluster/handover" | "/cluster/remove":
                kind: type[HandOver | Remove] = HandOver if request.path == "/cluster/handover" else Remove
                try:
                    order = msgspec.json.decode(request.body or b"{}", type=kind)
                except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
                    return respond(request, 400, Refused(str(error)))
                orders = self._orders
                outcome = orders.hand_over(order.to) if isinstance(order, HandOver) else orders.remove(order.member)
                return self._respond_to_order(request, outcome)
            case "POST", "/api/reload":
                why, later = self._orders.reload()
                if why:
                    return respond(request, 409, Refused(why))
                return replies.json_reply(request, 200, {"reloaded": True, "only_after_restart": later})
        status = self._orders.status()
        leader = status.leader_address if status.leader_id != status.id else ""
        return respond(request, 503, Refused(f"not the leader: {leader}" if leader else "not the leader"))

    def _tell_readiness(self, request: HttpRequest, *, is_stranger: bool) -> bytes:
        health = health_of(self._orders.status(), is_for_member=request.query.get("for") == "member")
        return respond(request, 200 if health.ready else 503, for_strangers(health) if is_stranger else health)

    def _login(self, request: HttpRequest) -> bytes:
        try:
            token = msgspec.json.decode(request.body or b"{}", type=LoginBody).token.encode("utf-8", "replace")
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            return respond(request, 400, Refused(str(error)))
        cookie = self._orders.guard().cookie_for(token, request)
        if not cookie:
            return replies.error_reply(request, 401, "this is not the token of [admin] token_file")
        return replies.reply(request, 200, b"{}\n", replies.JSON, {"set-cookie": cookie})

    def _respond_to_order(self, request: HttpRequest, outcome: Accepted | Refused) -> bytes:
        return respond(request, 409 if isinstance(outcome, Refused) else 202, outcome)


def respond(request: HttpRequest, status: int, body: Struct) -> bytes:
    """Return a response with JSON, which ends its connection."""
    return replies.json_reply(request, status, body)


def are_figures(data: bytes) -> bool:
    """Tell whether these bytes are one whole request for figures."""
    return data.startswith(FIGURES) and data.endswith(HEAD_END) and data.count(HEAD_END) == 1


class AdminSock(GatedSock):
    """An operator's socket of a leader. If its first request is about the cluster it is served here, else the hub gets
    all of it: later bytes may be within a body, and a reply from here would overtake those that wait. `_asked_bytes`:
    the first bytes, as long as they may be such a request; None behind them. `_is_for_figures`: all that the hub got
    were whole requests for figures, so its replies need not wait: a scrape must work when replies are held. `below` is
    the system's socket, or TLS on it.
    """

    __slots__ = ("_admin", "_asked_bytes", "_certificate", "_is_for_figures", "_is_of_spool")

    def __init__(
        self, gate: Gate, below: Sock, admin: MemberAdmin, is_of_spool: bool, certificate: tuple[str, ...] = ()
    ) -> None:
        super().__init__(gate, below)
        self._admin = admin
        self._is_of_spool = is_of_spool
        self._certificate = certificate
        self._asked_bytes: bytes | None = b""
        self._is_for_figures = True

    def recv(self, count: int, /) -> bytes:
        data = super().recv(count)
        if self._asked_bytes is None:
            self._is_for_figures = self._is_for_figures and are_figures(data)
            return data
        asked = self._asked_bytes + data
        if not data or not any(asked.startswith(path) or path.startswith(asked) for path in PATHS):
            self._asked_bytes = None
            self._is_for_figures = are_figures(asked)
            return b"" if asked.startswith(PATHS) else asked  # at the end of the stream the hub judges a part of a word
        reply = self._admin.reply(asked, self._is_of_spool, self._certificate)
        if reply is None:
            self._asked_bytes = asked
            raise BlockingIOError
        self._asked_bytes = None
        self.below.send(reply)
        return b""  # to the hub the client has ended its stream

    def send(self, data: bytes | memoryview, /) -> int:
        return self.below.send(data) if self._is_for_figures else super().send(data)
