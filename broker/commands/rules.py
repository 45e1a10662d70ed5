"""Rules of rights: why a request is refused to a client with limited rights. Each table COMMANDS names one rule for
each type of request, beside the function that serves it; authorized.py makes the tables of such clients from them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from staniel.broker.access import making_refusal, target_refusal
from staniel.broker.rights import STRANGER, Rights, Role
from staniel.broker.session import Session
from staniel.protocol.memcache import requests as memcache
from staniel.protocol.words import text
from staniel.queues.names import parent_of

Handler = Callable[[Session, Any, int], None]
Handlers = dict[type, Handler]
Rule = Callable[[Session, Any, int], str]
"""Returns why the request is refused to this session; "" if it is not."""
Commands = dict[type, tuple[Handler, Rule]]


def handlers_of(commands: Commands) -> Handlers:
    """Return the table of a client with all rights."""
    return {kind: handler for kind, (handler, _) in commands.items()}


def rights_of(session: Session) -> Rights:
    rights: Rights = session.rights
    return rights


class OnQueue:
    """A rule for requests with a `queue`."""

    def __init__(self, role: Role) -> None:
        self.role = role

    def __call__(self, session: Session, request: Any, now_ms: int) -> str:
        why = refusal(session, self.role, request.queue)
        if not why and self.role in (Role.READ, Role.WRITE):
            rights_of(session).remember(self.role, request.queue)
        return why

    def remembering(self, handler: Handler, careful: Handler) -> Handler:
        """Return a handler that calls `handler` if the queue is known to be allowed, else `careful`. It does not call
        `Session.knows`, which would be one more call for each request in plain Python.
        """
        reads = self.role is Role.READ

        def serve(session: Session, request: Any, now_ms: int) -> None:
            name, allowed = request.queue, session.readable if reads else session.writable
            if allowed is not None and name in allowed and (session.makes or name in session.by_name):
                handler(session, request, now_ms)
            else:
                careful(session, request, now_ms)

        return careful if self.role is Role.OPERATE else serve


READ, WRITE, OPERATE = OnQueue(Role.READ), OnQueue(Role.WRITE), OnQueue(Role.OPERATE)


def on_part(role: Role, part: str) -> Rule:
    """Return a rule for requests with a part that has the `queue`."""

    def rule(session: Session, request: Any, now_ms: int) -> str:
        return refusal(session, role, getattr(request, part).queue)

    return rule


def on_all(role: Role) -> Rule:
    """Return a rule for requests about all queues, or about the server."""

    def rule(session: Session, request: Any, now_ms: int) -> str:
        return rights_of(session).refusal_of_all(role)

    return rule


OPERATE_ALL, ADMIN = on_all(Role.OPERATE), on_all(Role.ADMIN)


def known(session: Session, request: Any, now_ms: int) -> str:
    """Refuse unauthenticated clients."""
    return "unauthenticated" if session.rights is STRANGER else ""


def always(session: Session, request: Any, now_ms: int) -> str:
    """Refuse no client."""
    return ""


def look_at_all(session: Session, request: Any, now_ms: int) -> str:
    return rights_of(session).refusal_to_look()


def read_each_get(session: Session, request: memcache.GetMany, now_ms: int) -> str:
    return refusal_of_each(session, Role.READ, {get.queue for get in request.gets})


def read_each_key(session: Session, request: memcache.GetKeys, now_ms: int) -> str:
    return refusal_of_each(session, Role.READ, {text(key.partition(b"/")[0]) for key in request.keys})


def read_named(session: Session, request: memcache.DumpStats | memcache.DumpConfig, now_ms: int) -> str:
    """Require the right to read each named queue, or all queues if none is named."""
    if request.queues:
        return refusal_of_each(session, Role.READ, set(request.queues))
    return look_at_all(session, request, now_ms)


def operate_both(session: Session, request: memcache.Move, now_ms: int) -> str:
    why = refusal(session, Role.OPERATE, request.source)
    return why or target_refusal(rights_of(session), session.broker.queues, request.target)


def known_or_admin(session: Session, request: memcache.Status, now_ms: int) -> str:
    """Require an admin if the status is set; any authenticated client may see it."""
    return known(session, request, now_ms) if request.name is None else ADMIN(session, request, now_ms)


def refusal_of_each(session: Session, role: Role, names: set[str]) -> str:
    return next((why for name in sorted(names) if (why := refusal(session, role, name))), "")


def refusal(session: Session, role: Role, name: str) -> str:
    """Return why this may not be done to the queue, or to the one that it would create; "" if it may."""
    rights = rights_of(session)
    if (why := rights.refusal(role, name)) or rights.creates or role is Role.OPERATE:
        return why
    makes = role is Role.WRITE or session.creates or bool(parent_of(name))
    return making_refusal(rights, session.broker.queues, name) if makes else ""
