"""The protocols that a client can use, each as a ProtocolSpec: its parser and its table of commands.

All except memcache's are imported when they are requested: few servers use them, and thrift's library is an extra.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import msgspec

from staniel.broker.commands import delayed_puts, first_of, keyed_puts
from staniel.broker.commands import memcache as commands
from staniel.broker.commands import meta as meta_commands
from staniel.broker.rights import Rights
from staniel.broker.session import ProtocolSpec, RequestParser, Session
from staniel.compiled import IS_COMPILED
from staniel.protocol.limits import Limits
from staniel.protocol.memcache.parser import MemcacheParser
from staniel.protocol.memcache.replies import replies_for
from staniel.protocol.memcache.requests import Dialect

MEMCACHE_HANDLERS = {
    **commands.HANDLERS,
    **meta_commands.HANDLERS,
    **keyed_puts.HANDLERS,
    **delayed_puts.HANDLERS,
    **first_of.HANDLERS,
}


def memcache(
    dialect: Dialect, create_on_read: bool | None = None, refused: frozenset[str] = frozenset()
) -> ProtocolSpec:
    """Return memcache's protocol. `create_on_read` None: the default of the dialect. `refused`: words of `[memcache]
    refuse`.
    """
    creates = dialect is Dialect.KESTREL if create_on_read is None else create_on_read
    handlers, served = MEMCACHE_HANDLERS, commands.MemcacheCommands() if IS_COMPILED else None
    if refused:
        from staniel.broker.commands.refused import refusing

        handlers, served = refusing(refused, handlers), None  # MemcacheCommands calls the function of a set by name
    parser, farewell = partial(MemcacheParser, dialect), replies_for(dialect).server_error
    return ProtocolSpec(parser, handlers, dialect, creates, "memcache", served, farewell, _limiting("memcache"))


def text(dialect: Dialect, create_on_read: bool = True) -> ProtocolSpec:
    """Return Kestrel's text protocol. `dialect` is memcache's. It decides whether a put to several queues must succeed
    in all of them or in none.
    """
    from staniel.broker.commands import text as text_commands
    from staniel.protocol.text.parser import TextParser
    from staniel.protocol.text.replies import TextReplies

    handlers, farewell = text_commands.HANDLERS, TextReplies.error
    return ProtocolSpec(TextParser, handlers, dialect, create_on_read, "text", None, farewell, _limiting("text"))


def workq() -> ProtocolSpec:
    from staniel.broker.commands import workq as workq_commands
    from staniel.protocol.workq import replies
    from staniel.protocol.workq.parser import WorkqParser

    served = workq_commands.WorkqCommands() if IS_COMPILED else None
    return ProtocolSpec(
        WorkqParser,
        workq_commands.HANDLERS,
        name="workq",
        commands=served,
        farewell=replies.server_error,
        handlers_for=_limiting("workq"),
        blocked=workq_commands.BLOCKED,
    )


def http(*, loads: bool = False) -> ProtocolSpec:
    """Return the admin listener's protocol. Its modules, h11 among them, are loaded for the first client: a socket that
    is used once a week must not cost every startup. With `loads` they are loaded at once, for a listener that is in use
    all the time: loading takes 20 ms, in which no client is served. Raises ImportError if h11 is missing, so that the
    error comes at startup and not with the first client.
    """
    if find_spec("h11") is None:
        raise ImportError("h11 is not installed")
    handlers: dict[type, Callable[[Session, Any, int], None]] = {}

    def parser(limits: Limits) -> RequestParser:
        from staniel.broker.admin.http import dispatch
        from staniel.protocol.http.parser import HttpParser

        handlers.update(dispatch.HANDLERS)
        return HttpParser(limits)

    if loads:
        parser(Limits())
    return ProtocolSpec(parser, handlers, name="admin", farewell=_unavailable)


def _unavailable(why: str) -> bytes:
    """Return a 503 in HTTP, written out here because the modules that make replies are not loaded yet."""
    body = msgspec.json.encode({"error": why})
    head = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)


def thrift(dialect: Dialect, create_on_read: bool = True) -> ProtocolSpec:
    """Return Kestrel's thrift protocol. Raises ImportError if the extra `thrift` is not installed."""
    from staniel.broker.commands import thrift as thrift_commands
    from staniel.protocol.thrift.parser import ThriftParser
    from staniel.protocol.thrift.replies import refusal

    return ProtocolSpec(
        ThriftParser,
        thrift_commands.HANDLERS,
        dialect,
        create_on_read,
        "thrift",
        refusal=refusal,
        handlers_for=_limiting("thrift"),
    )


def _limiting(protocol: str) -> Callable[[Any, Rights], Any]:
    """Return the function that makes the tables of clients with rights."""

    def handlers_for(handlers: Any, rights: Rights) -> Any:
        from staniel.broker.commands import authorized  # only needed if there are users, or a listener on a network

        return authorized.handlers_for(protocol, handlers, rights)

    return handlers_for
