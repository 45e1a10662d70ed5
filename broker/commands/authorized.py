"""The tables of commands for clients with limited rights, made from the tables COMMANDS.

A session of such a client has this table in place of its protocol's, so clients with all rights pay nothing. Allowed
queues are remembered with the rights, so that later requests need one lookup.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from staniel.broker.commands import delayed_puts, first_of, keyed_puts, meta
from staniel.broker.commands import memcache as memcache_commands
from staniel.broker.commands.login import login
from staniel.broker.commands.rules import Commands, Handler, Handlers, OnQueue, Rule
from staniel.broker.rights import STRANGER, Rights
from staniel.broker.session import Session
from staniel.protocol.memcache.item_requests import Set
from staniel.protocol.memcache.replies import MEMCACHED

PROTOCOLS = ("memcache", "text", "thrift", "workq")


def commands_of(protocol: str) -> Commands:
    """Return the commands of one of PROTOCOLS. Modules other than memcache's are imported at the first call."""
    match protocol:
        case "text":
            from staniel.broker.commands.text import COMMANDS
        case "thrift":
            from staniel.broker.commands.thrift import COMMANDS
        case "workq":
            from staniel.broker.commands.workq import COMMANDS
        case _:
            rare = {**meta.COMMANDS, **keyed_puts.COMMANDS, **delayed_puts.COMMANDS, **first_of.COMMANDS}
            return {**memcache_commands.COMMANDS, **rare}
    return COMMANDS


def refuse(session: Session, request: Any, why: str) -> None:
    """Refuse `request` in the words of the session's protocol. Kestrel's dialect has no words for users, and uses
    memcached's.
    """
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


class Tables(Struct, frozen=True):
    """The tables of one listener's protocol: `plain` for clients with all rights, `limited` for those with some rights,
    `strangers` for unauthenticated ones.
    """

    plain: Handlers
    limited: Handlers
    strangers: Handlers


_TABLES: dict[int, Tables] = {}  # by the id of each of the three tables; never removed, so no id is reused


def handlers_for(protocol: str, handlers: Handlers, rights: Rights) -> Handlers:
    """Return the table for a client with these rights. `handlers` is any of the tables of its listener. The admin
    listener checks the rights for each path itself.
    """
    if protocol not in PROTOCOLS:
        return handlers
    made = _TABLES.get(id(handlers))
    if made is None:
        commands = commands_of(protocol)
        limited = {kind: _guarded(handler, commands[kind][1]) for kind, handler in handlers.items()}
        strangers = {**limited, Set: login} if protocol == "memcache" else limited
        made = Tables(handlers, limited, strangers)
        for table in (handlers, limited, strangers):
            _TABLES[id(table)] = made
    return made.strangers if rights is STRANGER else made.limited
