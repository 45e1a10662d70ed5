"""Requests that `[memcache] refuse` names. Libraries for caches send them, and they harm queues without causing an
error.

docs/libraries.md says which library sends which. The `delete` and `flush_all` of a client that has logged in as a user
are not refused here: the user's role decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from staniel.broker.session import Session
from staniel.protocol.memcache import requests as memcache
from staniel.protocol.memcache.item_requests import Get, Set

Handler = Callable[[Session, Any, int], None]
Handlers = dict[type, Handler]

SETTING = "[memcache] refuse"
NOREPLY = f"noreply is refused here ({SETTING}): wait for the answer to each set"
MULTI_GET = f"a get that removes several items is refused here ({SETTING}): get one, or open them with QUEUE/open"
DELETE = f"delete removes a whole queue and is refused here ({SETTING}): QUEUE/close confirms an item"
FLUSH_ALL = f"flush_all empties every queue and is refused here ({SETTING})"


def _removes(get: Get) -> bool:
    return not (get.open or get.close or get.abort or get.peek)


def _removes_several(request: memcache.GetMany) -> bool:
    return sum(map(_removes, request.gets)) > 1


def _refusing(handler: Handler, why: str, is_harmful: Callable[[Any], bool], spares_users: bool = False) -> Handler:
    """Return a handler that refuses harmful requests with `why`, and passes the others to `handler`."""

    def serve(session: Session, request: Any, now_ms: int) -> None:
        if is_harmful(request) and not (spares_users and session.user):
            if getattr(request, "noreply", False):
                session.note_unheard(getattr(request, "queue", ""), why, now_ms)
            session.client_error(why, noreply=getattr(request, "noreply", False))
        else:
            handler(session, request, now_ms)

    return serve


def _without_noreply(handler: Handler) -> Handler:
    """Return a handler of sets that disconnects the client of a set with noreply, because no reply may tell it of the
    refusal.
    """

    def serve(session: Session, request: Set | memcache.KeyedSet | memcache.DelayedSet, now_ms: int) -> None:
        if request.noreply:
            session.note_unheard(request.queue, NOREPLY, now_ms)
            session.hang_up(session.replies.client_error(NOREPLY))
        else:
            handler(session, request, now_ms)

    return serve


def _always(request: object) -> bool:
    return True


def refusing(names: frozenset[str], handlers: Handlers) -> Handlers:
    """Return the table `handlers` with refusals for the requests that `names`, words of `[memcache] refuse`,
    stand for.
    """
    table = dict(handlers)
    if "noreply" in names:
        for put in (Set, memcache.KeyedSet, memcache.DelayedSet):
            table[put] = _without_noreply(table[put])
    if "multi_get" in names:
        table[memcache.GetMany] = _refusing(table[memcache.GetMany], MULTI_GET, _removes_several)
        table[memcache.GetKeys] = _refusing(table[memcache.GetKeys], MULTI_GET, _always)
        table[memcache.GetSome] = _refusing(table[memcache.GetSome], MULTI_GET, lambda request: _removes(request.get))
    if "delete" in names:
        for kind in (memcache.Delete, memcache.MetaDelete):
            table[kind] = _refusing(table[kind], DELETE, _always, spares_users=True)
    if "flush_all" in names:
        table[memcache.FlushAll] = _refusing(table[memcache.FlushAll], FLUSH_ALL, _always, spares_users=True)
    return table
