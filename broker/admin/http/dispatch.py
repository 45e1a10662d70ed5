"""Passes a request to its handler: authentication, then the path, or a refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from staniel.broker.admin.access import bearer
from staniel.broker.admin.http import page
from staniel.broker.admin.http.exchange import BadBody, Exchange
from staniel.broker.admin.http.openapi import document
from staniel.broker.admin.http.routes import Route, find
from staniel.broker.commands.memcache import invalid, more
from staniel.broker.rights import STRANGER, Rights
from staniel.broker.session import Session
from staniel.protocol.http import replies
from staniel.protocol.http.requests import HttpHead, HttpRequest
from staniel.protocol.requests import Invalid, More

READING = ("GET", "HEAD")
BEARER = {"www-authenticate": "Bearer"}


class LoginBody(Struct, forbid_unknown_fields=True):
    token: str


def serve(session: Session, request: HttpRequest, now_ms: int) -> None:
    """Serve `request`. Raises TryNextTurn if it must be tried again; nothing has been done then."""
    exchange = Exchange(session, request)
    if not _is_admitted(exchange, now_ms):
        return
    try:
        _serve(exchange, now_ms)
    except BadBody as error:
        exchange.error(400, str(error))
    except Exception as error:
        if isinstance(error, AssertionError) and request.method not in READING:
            raise  # a queue may be half-changed: recovery restores what is durable
        exchange.fail(error, now_ms)


def _is_admitted(exchange: Exchange, now_ms: int) -> bool:
    """Tell whether the listener serves the client, and set `exchange.rights`. If not, the client has been sent an
    error.
    """
    session, request = exchange.session, exchange.request
    access = session.broker.admin
    exchange.rights, is_known, user = asker(session, request)
    session.broker.audit.asks(session, user)
    if access is None or session.address.startswith("unix:"):
        return True
    status, why = access.refusal(request, is_known)
    if status:
        session.broker.logins.failed += status == 401 and bool(bearer(request))
        session.log_event("admin.refused", now_ms, status=status, why=why)
        exchange.error(status, why, BEARER if status == 401 else None)
        return False
    if access.is_stranger(request, is_known):
        exchange.rights = STRANGER
    return True


def asker(session: Session, request: HttpRequest) -> tuple[Rights | None, bool, str]:
    """Return (rights, whether the client is authenticated, the user's name). Rights None: all that `AdminAccess` lets
    through. The name is "" if the client is not a user. A token takes precedence over a certificate or a Unix socket's
    user, because it comes with the request.
    """
    broker, given = session.broker, bearer(request)
    if given and (user := broker.users.of_token(given)) is not None:
        return user.rights, True, user.name
    if broker.admin is not None and given and broker.admin.is_token(given):
        return None, True, ""
    return session.rights, bool(session.user), session.user


def _serve(exchange: Exchange, now_ms: int) -> None:
    request = exchange.request
    if request.path == "/openapi.json" and request.method in READING:
        exchange.reply(200, document(), replies.JSON)
        return
    if request.method in READING and (file := page.file_of(request.path)):
        page.send(exchange, file)
        return
    if request.path == "/login" and request.method == "POST":
        login(exchange, now_ms)
        return
    route, names, others = find(request.method, request.path)
    if route is not None:
        exchange.names, exchange.operation, exchange.now_ms = names, route.operation, now_ms
        if _is_allowed(exchange, route):
            route.serve(exchange, now_ms)
    elif others:
        exchange.error(405, f"expected {' or '.join(sorted(set(others)))}", {"allow": ", ".join(sorted(set(others)))})
    else:
        exchange.error(404, "there is no such path; /openapi.json lists them")


def _is_allowed(exchange: Exchange, route: Route) -> bool:
    """Tell whether the client's rights allow the route. If not, the client has been sent an error."""
    rights = exchange.rights
    if rights is None:
        return True
    why = route.right(rights, exchange.broker.queues, exchange.names)
    if why:
        exchange.forbid(why)
    return not why


def login(exchange: Exchange, now_ms: int) -> None:
    """Give a browser that sends the token a cookie that replaces the token in later requests."""
    access = exchange.broker.admin
    if access is None or not access.is_token(exchange.body(LoginBody).token.encode("utf-8", "replace")):
        exchange.broker.logins.failed += 1
        exchange.session.log_event("admin.refused", now_ms, status=401, why="a wrong token")
        exchange.error(401, "this is not the token of [admin] token_file")
        return
    exchange.reply(200, b"{}\n", replies.JSON, {"set-cookie": access.cookie(exchange.request)})


def look_ahead(session: Session, head: HttpHead, now_ms: int) -> None:
    """Refuse a request by its head if possible, so that its body is not read. Send 100 Continue to a client that waits
    for it.
    """
    exchange = Exchange(session, head.request)
    if not _is_admitted(exchange, now_ms):
        return
    route, exchange.names, _ = find(head.request.method, head.request.path)
    if route is not None and not _is_allowed(exchange, route):
        return
    if head.waits:
        session.out.append(replies.CONTINUE)


HANDLERS: dict[type, Callable[[Session, Any, int], None]] = {
    HttpRequest: serve,
    HttpHead: look_ahead,
    Invalid: invalid,
    More: more,
}
