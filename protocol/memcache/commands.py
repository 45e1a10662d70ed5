"""The commands of the memcached dialect: a line's words become a request.

Sources: memcached 1.6's doc/protocol.txt, and Kestrel 2.4 for the commands of queues. A command of memcached that a
queue cannot serve is refused with a CLIENT_ERROR and the connection stays open; never with SERVER_ERROR, for which
libmemcached marks the whole server dead. The broker checks the names of queues.
"""

from __future__ import annotations

from collections.abc import Callable

from staniel.protocol.limits import Limits
from staniel.protocol.memcache import commands_meta
from staniel.protocol.memcache.fields import NEVER, NOT_SECONDS, block_too_large, expiry, hang_up, refuse, seconds
from staniel.protocol.memcache.item_requests import Get, SetHead
from staniel.protocol.memcache.keys import (
    ALSO,
    fetches,
    parse_first,
    parse_id,
    parse_key,
    parse_put_options,
    parse_some,
)
from staniel.protocol.memcache.meta_fields import PutDelay, PutKey
from staniel.protocol.memcache.replies import replies_for
from staniel.protocol.memcache.requests import (
    CLIENT_NAME_BYTES_MAX,
    AbortItem,
    ClientName,
    Confirm,
    ConfirmItem,
    Delete,
    Dialect,
    DumpConfig,
    DumpStats,
    ExtendItem,
    Flush,
    FlushAll,
    FlushAllExpired,
    FlushExpired,
    GetFirst,
    GetKeys,
    GetMany,
    GetSome,
    Monitor,
    Move,
    Parsed,
    Pause,
    Quit,
    RefusedBlock,
    Reload,
    Shutdown,
    Stats,
    Status,
    Touch,
    Verbosity,
    Version,
)
from staniel.protocol.requests import Invalid
from staniel.protocol.words import INT32_MAX, INT32_MIN, UINT32_MAX, integer, pop_noreply, queue_name, text

BAD_DATA_CHUNK = "bad data chunk"
KEYS_AT_ONCE = 64
"""The most keys parsed at once: a get line holds thousands, and each takes some microseconds to parse and to serve."""

Command = Callable[[list[bytes], Limits], Parsed]
"""The parser of a command: from the words of a line, command included, to its meaning."""

_replies = replies_for(Dialect.MEMCACHED)


def split(line: bytes) -> list[bytes]:
    """Split at runs of spaces, as memcached does; an empty line has one empty word."""
    return [word for word in line.split(b" ") if word] or [b""]


def parse(words: list[bytes], limits: Limits) -> Parsed:
    """Return the request of a line's words. Commands are case-insensitive, everything else is not."""
    command = _COMMANDS.get(words[0].lower())
    if command is None:
        return Invalid(_replies.error, why="unknown command")
    return command(words, limits)


def bad_data_chunk(noreply: bool) -> Invalid:
    """Return the refusal of a block that its line end does not follow."""
    return refuse(BAD_DATA_CHUNK, noreply)


def _set(words: list[bytes], limits: Limits) -> Parsed:
    length = _block_length(words)
    if isinstance(length, Invalid):
        return length
    noreply = words[-1] == b"noreply"
    flags = integer(words[2], 0, UINT32_MAX)
    until = expiry(words[3])
    if limits.may_log_in and (flags is None or isinstance(until, str)):
        flags, until = 0, NEVER  # memcached ignores both, and emcache sends `set _ _ _ 12`
    if flags is None:
        return RefusedBlock(length, refuse("the flags are not a 32-bit number", noreply))
    if isinstance(until, str):
        return RefusedBlock(length, refuse(until, noreply))
    if length > limits.item_bytes_max:
        return RefusedBlock(length, refuse(block_too_large(length, limits), noreply))
    head = SetHead(
        length=length,
        queue=queue_name(words[1]),
        flags=flags,
        ttl_ms=until.ttl_ms,
        expires_ms=until.expires_ms,
        noreply=noreply,
    )
    return _with_options(head, words[1]) if b"/" in words[1] and not limits.may_log_in else head


def _with_options(head: SetHead, word: bytes) -> SetHead | RefusedBlock:
    options = parse_put_options(word)
    if isinstance(options, str):
        return RefusedBlock(head.length, refuse(options, head.noreply))
    name, key, delay_ms = queue_name(options.name), options.key, options.delay_ms
    how = PutDelay(delay_ms, key) if delay_ms else PutKey(key) if key else None
    return SetHead(head.length, name, head.flags, head.ttl_ms, head.expires_ms, head.noreply, how)


def _refused_storage(words: list[bytes], limits: Limits) -> Parsed:
    length = _block_length(words)
    if isinstance(length, Invalid):
        return length
    why = f"{text(words[0].lower())} is not supported by a queue, use set"
    return RefusedBlock(length, refuse(why, words[-1] == b"noreply"))


def _block_length(words: list[bytes]) -> int | Invalid:
    """Return the length of the following block in bytes. Without it the next request cannot be found."""
    if len(words) < 5:
        return refuse(f"{text(words[0].lower())} needs a queue, flags, expiry and length")
    length = integer(words[4], 0, INT32_MAX)
    return hang_up("the length is not a number of bytes") if length is None else length


def _unsupported(words: list[bytes], limits: Limits) -> Parsed:
    return refuse(f"{text(words[0].lower())} is not supported by a queue", words[-1] == b"noreply")


def _get(words: list[bytes], limits: Limits) -> Parsed:
    with_id = words[0].lower() == b"gets"
    if len(words) < 2:
        return refuse("no key")
    if len(words) > 2:
        return _get_many(words[1:], with_id)
    first = parse_first(words[1], with_id)
    if first is not None:
        return refuse(first) if isinstance(first, str) else GetFirst(first)
    get = parse_key(words[1], with_id)
    if isinstance(get, str):
        return refuse(get)
    count = parse_some(words[1])
    if isinstance(count, str):
        return refuse(count)
    if count is None or count == 1 or not fetches(open=get.open, close=get.close, abort=get.abort):
        return get
    return GetSome(get, count)


def _get_many(keys: list[bytes], with_id: bool) -> GetMany | GetKeys | Invalid:
    if len(keys) > KEYS_AT_ONCE:
        return GetKeys(tuple(keys), with_id)
    gets = []
    for key in keys:
        get = key_of_many(key, with_id)
        if isinstance(get, Invalid):
            return get
        gets.append(get)
    return GetMany(tuple(gets))


def key_of_many(key: bytes, with_id: bool) -> Get | Invalid:
    """Parse one of several keys of a line."""
    get = parse_key(key, with_id)
    if isinstance(get, str):
        return refuse(get)
    if parse_some(key) not in (None, 1):
        return refuse("n= goes with one key only")
    if ALSO in key:
        return refuse("also= goes with one key only")
    return _without_wait(get)


def _without_wait(get: Get) -> Get:
    if get.wait_ms == 0:
        return get
    return Get(get.key, get.queue, 0, get.open, get.close, get.abort, get.peek, get.with_id)


def _touch(words: list[bytes], limits: Limits) -> Parsed:
    """Parse `touch`. The expiry must be a number, as in memcached, and is ignored: the queue sets a read's time-out. A
    key with `id=` names one open read, which `/abort` hands back.
    """
    arguments = words[1:]
    noreply = len(arguments) > 2 and pop_noreply(arguments)
    if len(arguments) != 2:
        return refuse("touch needs a queue and an expiry", noreply)
    if seconds(arguments[1]) is None:
        return refuse(NOT_SECONDS, noreply)
    target = parse_id(arguments[0])
    if target is None:
        return Touch(text(arguments[0]), noreply)
    if isinstance(target, str):
        return refuse(target, noreply)
    return (AbortItem if target.abort else ExtendItem)(target.queue, target.id, noreply)


def _move(words: list[bytes], limits: Limits) -> Parsed:
    if len(words) not in (3, 4):
        return refuse(f"{text(words[0].lower())} needs two queues, and perhaps a count")
    count = integer(words[3], 0, INT32_MAX) if len(words) == 4 else None
    if len(words) == 4 and count is None:
        return refuse("the count is not a number of items")
    return Move(text(words[1]), text(words[2]), count)


def _pause(words: list[bytes], limits: Limits) -> Parsed:
    command = words[0].lower()
    direction = words[2] if len(words) == 3 else b"all"
    if len(words) not in (2, 3) or direction not in (b"gets", b"puts", b"all"):
        return refuse(f"{text(command)} needs a queue, and perhaps gets, puts or all")
    return Pause(text(words[1]), gets=direction != b"puts", puts=direction != b"gets", paused=command == b"pause")


def monitor_of(words: list[bytes]) -> Monitor | None:
    """Parse `monitor KEY SECONDS [COUNT]`, three words at least. Return None for a bad number."""
    numbers = [integer(word, INT32_MIN, INT32_MAX) for word in words[2:4]]
    seconds, max_items = numbers[0], numbers[-1]
    if seconds is None or max_items is None:
        return None
    return Monitor(
        key=words[1],
        queue=text(words[1]),
        wait_ms=seconds * 1000,
        max_items=max(0, max_items) if len(numbers) == 2 else None,
    )


def _monitor(words: list[bytes], limits: Limits) -> Parsed:
    if len(words) < 3:
        return refuse("monitor needs a queue and seconds")
    return monitor_of(words) or refuse("monitor needs numbers after the queue")


def _confirm(words: list[bytes], limits: Limits) -> Parsed:
    if len(words) < 3:
        return refuse("confirm needs a queue and a count")
    count = integer(words[2], INT32_MIN, INT32_MAX)
    return refuse("the count is not a number") if count is None else Confirm(text(words[1]), count)


def _delete(words: list[bytes], limits: Limits) -> Parsed:
    """Parse `delete`. Old clients send `delete k 0`, a delay that memcached ignored too. A key with `id=` names an open
    read, which is confirmed.
    """
    arguments = words[1:]
    noreply = len(arguments) > 1 and pop_noreply(arguments)
    if not arguments:
        return refuse("no queue name")
    if arguments[1:] not in ([], [b"0"]):
        return refuse("delete takes a queue and noreply", noreply)
    target = parse_id(arguments[0])
    if target is None:
        return Delete(text(arguments[0]), noreply)
    if isinstance(target, str):
        return refuse(target, noreply)
    if target.abort:
        return refuse("delete confirms a read, use touch to abort one", noreply)
    return ConfirmItem(target.queue, target.id, noreply)


def _flush(words: list[bytes], limits: Limits) -> Parsed:
    return Flush(text(words[1])) if len(words) > 1 else refuse("no queue name")


def _flush_expired(words: list[bytes], limits: Limits) -> Parsed:
    return FlushExpired(text(words[1])) if len(words) > 1 else refuse("no queue name")


def _flush_all(words: list[bytes], limits: Limits) -> Parsed:
    arguments = words[1:]
    noreply = pop_noreply(arguments)
    delays = [integer(word, 0, 0) for word in arguments]
    return FlushAll(noreply) if delays in ([], [0]) else refuse("delayed flush is not supported", noreply)


def _verbosity(words: list[bytes], limits: Limits) -> Parsed:
    """Parse `verbosity`. The level is checked and ignored; it may be missing before `noreply`, as in memcached."""
    arguments = words[1:]
    noreply = pop_noreply(arguments)
    levels = [integer(word, 0, UINT32_MAX) for word in arguments]
    if len(levels) > 1 or None in levels or not (levels or noreply):
        return refuse("verbosity needs a level", noreply)
    return Verbosity(noreply)


def _client_name(words: list[bytes], limits: Limits) -> Parsed:
    """Parse `client_name <name>`: one word of printable ASCII."""
    if len(words) != 2:
        return refuse("client_name needs one word")
    name = words[1]
    if len(name) > CLIENT_NAME_BYTES_MAX:
        return refuse(f"a client's name has at most {CLIENT_NAME_BYTES_MAX} bytes")
    if not all(0x20 < byte < 0x7F for byte in name):
        return refuse("a client's name is printable ASCII")
    return ClientName(text(name))


def _stats(words: list[bytes], limits: Limits) -> Parsed:
    if words[-1] == b"noreply":
        return refuse("stats without a reply say nothing")
    return Stats(text(words[1]) if len(words) > 1 else "")


def _dump_stats(words: list[bytes], limits: Limits) -> Parsed:
    return DumpStats(tuple(text(word) for word in words[1:]))


def _dump_config(words: list[bytes], limits: Limits) -> Parsed:
    return DumpConfig(tuple(text(word) for word in words[1:]))


def _status(words: list[bytes], limits: Limits) -> Parsed:
    return Status(text(words[1]) if len(words) > 1 else None)


COMMON: dict[bytes, Command] = {
    b"client_name": _client_name,
    b"dump_stats": _dump_stats,
    b"flush_all_expired": lambda words, limits: FlushAllExpired(),
    b"status": _status,
    b"reload": lambda words, limits: Reload(),
    b"version": lambda words, limits: Version(),
    b"quit": lambda words, limits: Quit(),
    b"shutdown": lambda words, limits: Shutdown(),
}
"""The commands that both dialects read the same way."""

REFUSED_STORAGE = (b"add", b"replace", b"append", b"prepend", b"cas")

_COMMANDS: dict[bytes, Command] = {
    **COMMON,
    b"set": _set,
    **dict.fromkeys(REFUSED_STORAGE, _refused_storage),
    b"get": _get,
    b"gets": _get,
    b"gat": _unsupported,
    b"gats": _unsupported,
    b"incr": _unsupported,
    b"decr": _unsupported,
    b"touch": _touch,
    b"ms": commands_meta.parse_set,
    b"mg": commands_meta.parse_get,
    b"md": commands_meta.parse_delete,
    b"mn": commands_meta.parse_noop,
    b"me": commands_meta.parse_debug,
    b"ma": commands_meta.parse_arithmetic,
    b"monitor": _monitor,
    b"confirm": _confirm,
    b"delete": _delete,
    b"move": _move,
    b"requeue": _move,
    b"pause": _pause,
    b"resume": _pause,
    b"flush": _flush,
    b"flush_all": _flush_all,
    b"flush_expired": _flush_expired,
    b"stats": _stats,
    b"dump_config": _dump_config,
    b"verbosity": _verbosity,
}
