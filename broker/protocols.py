"""The protocols that a client can speak, each as a ProtocolSpec: its parser and its table of commands.

All but memcache's are imported when asked for: few servers speak them, and thrift's library is an extra.
"""

from __future__ import annotations

from functools import partial

from staniel.broker.commands import memcache as commands
from staniel.broker.commands import meta as meta_commands
from staniel.broker.session import ProtocolSpec
from staniel.protocol.memcache.parser import MemcacheParser
from staniel.protocol.memcache.requests import Dialect

MEMCACHE_HANDLERS = {**commands.HANDLERS, **meta_commands.HANDLERS}


def memcache(dialect: Dialect, create_on_read: bool | None = None) -> ProtocolSpec:
    """`create_on_read` None: as is usual for the dialect."""
    creates = dialect is Dialect.KESTREL if create_on_read is None else create_on_read
    return ProtocolSpec(partial(MemcacheParser, dialect), MEMCACHE_HANDLERS, dialect, creates)


def text(dialect: Dialect, create_on_read: bool = True) -> ProtocolSpec:
    """`dialect` is memcache's: it says whether a put to several queues is all or nothing."""
    from staniel.broker.commands import text as text_commands
    from staniel.protocol.text.parser import TextParser

    return ProtocolSpec(TextParser, text_commands.HANDLERS, dialect, create_on_read)


def workq() -> ProtocolSpec:
    from staniel.broker.commands import workq as workq_commands
    from staniel.protocol.workq.parser import WorkqParser

    return ProtocolSpec(WorkqParser, workq_commands.HANDLERS)


def thrift(dialect: Dialect, create_on_read: bool = True) -> ProtocolSpec:
    """Raises ImportError where the extra `thrift` is not installed."""
    from staniel.broker.commands import thrift as thrift_commands
    from staniel.protocol.thrift.parser import ThriftParser

    return ProtocolSpec(ThriftParser, thrift_commands.HANDLERS, dialect, create_on_read)
