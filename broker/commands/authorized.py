"""Which right each request needs, and the tables of commands for clients that do not have all of them.

Such a client's session has a table of its own in place of its protocol's, so a client that may do everything pays
nothing. What was allowed is remembered with the rights, queue by queue, so that one look finds it later. What is in no
list here is refused: a new command has to be thought of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from staniel.broker.access import making_refusal, target_refusal
from staniel.broker.commands.login import login
from staniel.broker.rights import STRANGER, Rights, Role
from staniel.broker.session import Session
from staniel.protocol.memcache import requests as memcache
from staniel.protocol.memcache.replies import MEMCACHED
from staniel.protocol.requests import Invalid, More
from staniel.protocol.words import text
from staniel.queues.names import parent_of
from staniel.queues.registry import Queues

Handler = Callable[[Session, Any, int], None]
Handlers = dict[type, Handler]
Rule = Callable[[Session, Any, int], str]
"""Why the request is refused to this session; empty if it is not."""


def rights_of(session: Session) -> Rights:
    rights: Rights = session.rights
    return rights


class OnQueue:
    """For requests with a `queue`."""

    def __init__(self, role: Role) -> None:
        self.role = role

    def __call__(self, session: Session, request: Any, now_ms: int) -> str:
        why = _refusal(session, self.role, request.queue)
        if not why and self.role in (Role.READ, Role.WRITE):
            rights_of(session).remember(self.role, request.queue)
        return why

    def remembering(self, handler: Handler, careful: Handler) -> Handler:
        """Calls `handler` if the queue is known to be allowed, else `careful`. `Session.knows` says the same, and would
        be one more call for each request in plain Python.
        """
        reads = self.role is Role.READ

        def serve(session: Session, request: Any, now_ms: int) -> None:
            name, allowed = request.queue, session.readable if reads else session.writable
            if allowed is not None and name in allowed and (session.makes or name in session.by_name):
                handler(session, request, now_ms)
            else:
                careful(session, request, now_ms)

        return careful if self.role is Role.OPERATE else serve


def on_part(role: Role, part: str) -> Rule:
    """For requests with a part that has the `queue`."""

    def rule(session: Session, request: Any, now_ms: int) -> str:
        return _refusal(session, role, getattr(request, part).queue)

    return rule


def on_all(role: Role) -> Rule:
    def rule(session: Session, request: Any, now_ms: int) -> str:
        return rights_of(session).refusal_of_all(role)

    return rule


def known(session: Session, request: Any, now_ms: int) -> str:
    """For every client that has said who it is."""
    return "unauthenticated" if session.rights is STRANGER else ""


def always(session: Session, request: Any, now_ms: int) -> str:
    return ""


def _each(session: Session, role: Role, names: set[str]) -> str:
    return next((why for name in sorted(names) if (why := _refusal(session, role, name))), "")


def _refusal(session: Session, role: Role, name: str) -> str:
    """Why this may not be done to the queue, or to the one that it would make."""
    rights = rights_of(session)
    if (why := rights.refusal(role, name)) or rights.creates or role is Role.OPERATE:
        return why
    makes = role is Role.WRITE or session.creates or bool(parent_of(name))
    return making_refusal(rights, session.broker.queues, name) if makes else ""


def _many(session: Session, request: memcache.GetMany, now_ms: int) -> str:
    return _each(session, Role.READ, {get.queue for get in request.gets})


def _keys(session: Session, request: memcache.GetKeys, now_ms: int) -> str:
    return _each(session, Role.READ, {text(key.partition(b"/")[0]) for key in request.keys})


def _move(session: Session, request: memcache.Move, now_ms: int) -> str:
    why = _refusal(session, Role.OPERATE, request.source)
    return why or target_refusal(rights_of(session), session.broker.queues, request.target)


def _named(session: Session, request: memcache.DumpStats | memcache.DumpConfig, now_ms: int) -> str:
    if request.queues:
        return _each(session, Role.READ, set(request.queues))
    return _statistics(session, request, now_ms)


def _statistics(session: Session, request: Any, now_ms: int) -> str:
    return rights_of(session).refusal_to_look()


def _status(session: Session, request: memcache.Status, now_ms: int) -> str:
    return known(session, request, now_ms) if request.name is None else rights_of(session).refusal_of_all(Role.ADMIN)


COMMON: dict[type, Rule] = {
    memcache.Flush: OnQueue(Role.OPERATE),
    memcache.Delete: OnQueue(Role.OPERATE),
    memcache.Status: _status,
    memcache.Version: known,
    memcache.Quit: always,
    memcache.Shutdown: on_all(Role.ADMIN),
    Invalid: always,
    More: always,
}
MEMCACHE: dict[type, Rule] = {
    **COMMON,
    memcache.Set: OnQueue(Role.WRITE),
    memcache.Get: OnQueue(Role.READ),
    memcache.GetMany: _many,
    memcache.GetKeys: _keys,
    memcache.GetSome: on_part(Role.READ, "get"),
    memcache.Touch: OnQueue(Role.READ),
    memcache.ConfirmItem: OnQueue(Role.READ),
    memcache.AbortItem: OnQueue(Role.READ),
    memcache.ExtendItem: OnQueue(Role.READ),
    memcache.Monitor: OnQueue(Role.READ),
    memcache.Confirm: OnQueue(Role.READ),
    memcache.MetaSet: on_part(Role.WRITE, "set"),
    memcache.MetaGet: on_part(Role.READ, "get"),
    memcache.MetaDelete: OnQueue(Role.OPERATE),
    memcache.MetaNoop: known,
    memcache.MetaDebug: known,
    memcache.FlushAll: on_all(Role.OPERATE),
    memcache.FlushExpired: OnQueue(Role.OPERATE),
    memcache.FlushAllExpired: on_all(Role.OPERATE),
    memcache.Move: _move,
    memcache.Pause: OnQueue(Role.OPERATE),
    memcache.Stats: _statistics,
    memcache.DumpStats: _named,
    memcache.DumpConfig: _named,
    memcache.Reload: on_all(Role.ADMIN),
    memcache.Verbosity: known,
}


def _text_rules() -> dict[type, Rule]:
    from staniel.protocol.text import requests

    reads = (requests.TextGet, requests.TextPeek, requests.TextMonitor, requests.TextConfirm)
    return {**COMMON, requests.TextPut: OnQueue(Role.WRITE), **dict.fromkeys(reads, OnQueue(Role.READ))}


def _thrift_rules() -> dict[type, Rule]:
    from staniel.protocol.thrift import requests as thrift

    reads = (thrift.ThriftGet, thrift.ThriftConfirm, thrift.ThriftAbort, thrift.ThriftPeek)
    return {
        **dict.fromkeys(reads, OnQueue(Role.READ)),
        thrift.ThriftPut: OnQueue(Role.WRITE),
        thrift.ThriftFlush: OnQueue(Role.OPERATE),
        thrift.ThriftDelete: OnQueue(Role.OPERATE),
        thrift.ThriftFlushAll: on_all(Role.OPERATE),
        thrift.ThriftSetStatus: on_all(Role.ADMIN),
        thrift.ThriftCurrentStatus: known,
        thrift.ThriftVersion: known,
        thrift.ThriftUpgrade: always,
        Invalid: always,
        More: always,
    }


def _workq_rules() -> dict[type, Rule]:
    """Jobs have names as queues do; a job that is asked for by its id is that of its name."""
    from staniel.protocol.workq import requests as workq

    def by_terms(session: Session, request: Any, now_ms: int) -> str:
        return rights_of(session).refusal(Role.WRITE, request.terms.name.decode("latin-1"))

    def by_names(session: Session, request: workq.LeaseJob, now_ms: int) -> str:
        return _each(session, Role.READ, {name.decode("latin-1") for name in request.names})

    def by_id(role: Role) -> Rule:
        def rule(session: Session, request: Any, now_ms: int) -> str:
            job = session.workq.jobs.find(request.id, now_ms)
            if job is None:
                return known(session, request, now_ms)
            return rights_of(session).refusal(role, job.terms.queue.name.decode("latin-1"))

        return rule

    def by_name(session: Session, request: Any, now_ms: int) -> str:
        return rights_of(session).refusal(Role.READ, request.name.decode("latin-1"))

    return {
        **dict.fromkeys((workq.AddJob, workq.ScheduleJob, workq.RunJob), by_terms),
        workq.LeaseJob: by_names,
        workq.FinishJob: by_id(Role.READ),
        workq.DeleteJob: by_id(Role.WRITE),
        workq.AwaitResult: by_id(Role.WRITE),
        workq.InspectJob: by_id(Role.READ),
        workq.InspectJobs: by_name,
        workq.InspectQueue: by_name,
        workq.InspectQueues: _statistics,
        workq.InspectServer: known,
        Invalid: always,
        More: always,
    }


OPEN_PATHS = frozenset(("/health/live", "/health/ready", "/ping"))
ADMIN_PATHS = frozenset(
    (
        "/api/status",
        "/api/reload",
        "/api/stop",
        "/api/backup",
        "/api/backup/made",
        "/api/audit",
        "/api/clients/{number}/abort",
    )
)
OF_QUEUE = "/api/queues/{queue}"
RESERVED = f"{OF_QUEUE}/reserved/"
OF_OPERATION = "/api/operations/{number}"  # `queries.find_operation` asks for rights: they are those of its queue


def path_refusal(rights: Rights, queues: Queues, method: str, path: str, names: tuple[str, ...]) -> str:
    """Why this path of the admin listener is not for a client with these rights; empty if it is. `path` is a route's,
    `names` what its open parts are. Where a move goes to stands in its body: it asks `target_refusal` besides.
    """
    if path in OPEN_PATHS or path.startswith(OF_OPERATION):
        return ""
    if path in ADMIN_PATHS:
        return rights.refusal_of_all(Role.ADMIN)
    last = path.rpartition("/")[2]
    if method == "GET" or last == "find":
        if path.startswith(OF_QUEUE):
            return rights.refusal(Role.READ, names[0])
        return rights.refusal_to_look()
    if not path.startswith(OF_QUEUE):
        return rights.refusal_of_all(Role.ADMIN)
    role = {"put": Role.WRITE, "take": Role.READ, "reserve": Role.READ}.get(last, Role.OPERATE)
    if path.startswith(RESERVED):
        role = Role.READ
    why, makes = rights.refusal(role, names[0]), role is Role.WRITE or (role is Role.READ and parent_of(names[0]))
    return why or (making_refusal(rights, queues, names[0]) if makes else "")


RULES: dict[str, Callable[[], dict[type, Rule]]] = {
    "memcache": lambda: MEMCACHE,
    "text": _text_rules,
    "thrift": _thrift_rules,
    "workq": _workq_rules,
}


def refuse(session: Session, request: Any, why: str) -> None:
    """In the words of the session's protocol; memcached's in Kestrel's dialect too, which has no users."""
    match session.protocol:
        case "text":
            from staniel.protocol.text.replies import TextReplies

            session.out.append(TextReplies.error(why))
        case "thrift":
            from staniel.protocol.thrift.replies import ThriftReplies

            session.out.append(ThriftReplies.failure(request, why))
        case "workq":
            from staniel.protocol.workq import replies

            session.out.append(replies.server_error(why))
        case _:
            if not getattr(request, "noreply", False):
                session.out.append(MEMCACHED.client_error(why))


def _guarded(handler: Handler, rule: Rule) -> Handler:
    def serve(session: Session, request: Any, now_ms: int) -> None:
        if why := rule(session, request, now_ms):
            session.broker.logins.refused += 1
            if getattr(request, "noreply", False):
                session.note_unheard(getattr(request, "queue", ""), why, now_ms)
            if session.rights is not STRANGER:
                session.log_refusal(why, now_ms)
            refuse(session, request, why)
        else:
            handler(session, request, now_ms)

    return rule.remembering(handler, serve) if isinstance(rule, OnQueue) else serve


def _unlisted(session: Session, request: Any, now_ms: int) -> str:
    return rights_of(session).refusal_of_all(Role.ADMIN)


class Tables(Struct, frozen=True):
    """The tables of one listener's protocol: `plain` for clients that may do everything, `limited` for those with
    rights, `strangers` for those who have not said who they are.
    """

    plain: Handlers
    limited: Handlers
    strangers: Handlers


_TABLES: dict[int, Tables] = {}  # by the id of each of the three; what is in here stays, so that no id is used again


def handlers_for(protocol: str, handlers: Handlers, rights: Rights) -> Handlers:
    """Return the table of a client with these rights; `handlers` is any of the tables of its listener. The admin
    listener asks for each path by itself.
    """
    if protocol not in RULES:
        return handlers
    made = _TABLES.get(id(handlers))
    if made is None:
        rules = RULES[protocol]()
        limited = {kind: _guarded(each, rules.get(kind, _unlisted)) for kind, each in handlers.items()}
        strangers = {**limited, memcache.Set: login} if protocol == "memcache" else limited
        made = Tables(handlers, limited, strangers)
        for each in (handlers, limited, strangers):
            _TABLES[id(each)] = made
    return made.strangers if rights is STRANGER else made.limited
