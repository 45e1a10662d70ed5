"""The protocols that a client can speak, each as a Wire. Knows which parser goes with which commands.

Thrift's are imported when asked for: its library is an extra, and takes its time to load.
"""

from __future__ import annotations

from functools import partial

from broker import commands, meta_commands, text_commands, workq_commands
from broker.session import Wire
from protocol.dialect import Dialect
from protocol.memcache import Parser
from protocol.text import TextParser
from protocol.workq import WorkqParser

MEMCACHE_HANDLERS = {**commands.HANDLERS, **meta_commands.HANDLERS}


def memcache(dialect: Dialect, create_on_read: bool | None = None) -> Wire:
    """`create_on_read` None: as is usual for the dialect."""
    creates = dialect is Dialect.KESTREL if create_on_read is None else create_on_read
    return Wire(partial(Parser, dialect), MEMCACHE_HANDLERS, dialect, creates)


def text(dialect: Dialect, create_on_read: bool = True) -> Wire:
    """`dialect` is memcache's: it says whether a put to several queues is all or nothing."""
    return Wire(TextParser, text_commands.HANDLERS, dialect, create_on_read)


def workq() -> Wire:
    return Wire(WorkqParser, workq_commands.HANDLERS)


def thrift(dialect: Dialect, create_on_read: bool = True) -> Wire:
    """Raises ImportError where the extra `thrift` is not installed."""
    from broker import thrift_commands
    from protocol.thrift import ThriftParser

    return Wire(ThriftParser, thrift_commands.HANDLERS, dialect, create_on_read)
