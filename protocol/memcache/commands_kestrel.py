"""The commands of the Kestrel dialect: a line's words become a request, as Kestrel 2.4 understood it.

Where Kestrel closed the connection without a reply, a CLIENT_ERROR is sent first. The broker checks the names of
queues, except the empty one.
"""

from __future__ import annotations

from staniel.protocol.limits import Limits
from staniel.protocol.memcache.commands import COMMON, REFUSED_STORAGE, Command, monitor_of
from staniel.protocol.memcache.item_requests import SetHead
from staniel.protocol.memcache.keys import parse_key
from staniel.protocol.memcache.replies import replies_for
from staniel.protocol.memcache.requests import (
    Confirm,
    Delete,
    Dialect,
    Flush,
    FlushAll,
    FlushExpired,
    Parsed,
    RefusedBlock,
    Stats,
)
from staniel.protocol.requests import Invalid
from staniel.protocol.words import INT32_MAX, INT32_MIN, integer, text

RELATIVE_EXPIRY_S_END = 1_000_000
"""Expiry words below this are seconds from now, from here on seconds since the epoch."""

_replies = replies_for(Dialect.KESTREL)


def split(line: bytes) -> list[bytes]:
    """Split at single spaces: trailing empty words vanish, leading and inner ones count."""
    return line.rstrip(b" ").split(b" ")


def parse(words: list[bytes], limits: Limits) -> Parsed:
    """Return the request of a line's words. Commands are case-insensitive, everything else is not."""
    command = _COMMANDS.get(words[0].lower())
    if command is None:
        return _refuse("unknown command", hang_up=True)
    return command(words, limits)


def _refuse(why: str, hang_up: bool = False) -> Invalid:
    return Invalid(_replies.client_error(why), hang_up, why)


def _set(words: list[bytes], limits: Limits) -> Parsed:
    length = _block_length(words)
    if isinstance(length, Invalid):
        return length
    expiry_s = integer(words[3], INT32_MIN, INT32_MAX)
    if expiry_s is None:
        return RefusedBlock(length, _refuse("the expiry is not a number", hang_up=True))
    if integer(words[2], INT32_MIN, INT32_MAX) is None:
        return RefusedBlock(length, _refuse("the flags are not a number"))
    if not words[1]:
        return RefusedBlock(length, _refuse("the queue name is empty", hang_up=True))
    if length > limits.item_bytes_max:
        return RefusedBlock(length, Invalid(_replies.not_stored, why="object too large"))
    relative = expiry_s != 0 and expiry_s < RELATIVE_EXPIRY_S_END
    return SetHead(
        length=length,
        queue=text(words[1]),
        flags=0,
        ttl_ms=expiry_s * 1000 if relative else None,
        expires_ms=0 if relative else expiry_s * 1000,
        noreply=False,
    )


def _refused_storage(words: list[bytes], limits: Limits) -> Parsed:
    length = _block_length(words)
    if isinstance(length, Invalid):
        return length
    return RefusedBlock(length, _refuse("only set stores", hang_up=True))


def _block_length(words: list[bytes]) -> int | Invalid:
    """Return the length of the following block in bytes. Without it the next request cannot be found."""
    if len(words) < 5:
        return _refuse("too few words", hang_up=True)
    length = integer(words[4], 0, INT32_MAX)
    if length is None:
        return _refuse("the length is not a number of bytes", hang_up=True)
    return length


def _get(words: list[bytes], limits: Limits) -> Parsed:
    """Parse a get; only its first key counts. To Kestrel, a key of slashes alone is a missing word, `/open` an
    empty name.
    """
    if len(words) < 2 or (words[1] and not words[1].strip(b"/")):
        return _refuse("no key")
    get = parse_key(words[1])
    return _refuse(get, hang_up=True) if isinstance(get, str) else get


def _monitor(words: list[bytes], limits: Limits) -> Parsed:
    if len(words) < 3 or not words[1]:
        return _refuse("monitor needs a queue and seconds", hang_up=True)
    return monitor_of(words) or _refuse("not a number", hang_up=True)


def _confirm(words: list[bytes], limits: Limits) -> Parsed:
    if len(words) < 3:
        return _refuse("confirm needs a queue and a count")
    count = integer(words[2], INT32_MIN, INT32_MAX)
    if count is None:
        return _refuse("the count is not a number", hang_up=True)
    return Confirm(text(words[1]), count)


def _delete(words: list[bytes], limits: Limits) -> Parsed:
    return Delete(text(words[1])) if _names_a_queue(words) else _refuse("no queue name")


def _flush(words: list[bytes], limits: Limits) -> Parsed:
    return Flush(text(words[1])) if _names_a_queue(words) else _refuse("no queue name")


def _flush_expired(words: list[bytes], limits: Limits) -> Parsed:
    return FlushExpired(text(words[1])) if _names_a_queue(words) else _refuse("no queue name", hang_up=True)


def _names_a_queue(words: list[bytes]) -> bool:
    """Return True if the line has a name. An empty one is accepted, and then nothing is flushed or deleted."""
    return len(words) > 1


_COMMANDS: dict[bytes, Command] = {
    **COMMON,
    b"set": _set,
    **dict.fromkeys(REFUSED_STORAGE, _refused_storage),
    b"get": _get,
    b"gets": _get,
    b"monitor": _monitor,
    b"confirm": _confirm,
    b"delete": _delete,
    b"flush": _flush,
    b"flush_all": lambda words, limits: FlushAll(),
    b"flush_expired": _flush_expired,
    b"stats": lambda words, limits: Stats(),
}
