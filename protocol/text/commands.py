"""The commands of Kestrel's text protocol: a line's words become a request.

Source: Kestrel 2.4. The error texts are Kestrel's, except those for which it closed the connection without a reply. The
broker checks the names of queues, except a missing one.
"""

from __future__ import annotations

from collections.abc import Callable

from staniel.protocol.memcache.commands_kestrel import split
from staniel.protocol.memcache.requests import Delete, Flush, Quit, Shutdown, Status, Version
from staniel.protocol.requests import Invalid
from staniel.protocol.text.replies import TextReplies
from staniel.protocol.text.requests import TextConfirm, TextGet, TextMonitor, TextPeek, TextPut, TextRequest
from staniel.protocol.words import INT32_MAX, INT32_MIN, integer, text


def parse(line: bytes) -> TextRequest:
    """Parse a line without its line end and without the colon that announces items.

    Only the first word is case-insensitive; words beyond those that a command needs are ignored.
    """
    words = split(line)
    name = words[0].lower()
    command = _COMMANDS.get(name)
    if command is None:
        return refuse(f"Unknown command: {text(name)}")
    return command(words[1:])


def refuse(why: str, hang_up: bool = False) -> Invalid:
    """Return an error with its text for the client. Most errors leave the connection open."""
    return Invalid(TextReplies.error(why), hang_up, why)


def _name(words: list[bytes]) -> str:
    """Return the queue's name, empty if it is missing."""
    return text(words[0]) if words else ""


def _number(word: bytes) -> int | None:
    return integer(word, INT32_MIN, INT32_MAX)


_NO_NAME = refuse("Queue name required.")


def _put(words: list[bytes]) -> TextRequest:
    name = _name(words)
    if not name:
        return _NO_NAME
    if len(words) < 2:
        return TextPut(name, ())
    ttl_ms = _number(words[1])
    if ttl_ms is None:
        return refuse("Error parsing expiration time.")
    return TextPut(name, (), ttl_ms)


def _read(words: list[bytes], kind: type[TextGet] | type[TextPeek]) -> TextRequest:
    name = _name(words)
    if not name:
        return _NO_NAME
    if len(words) < 2:
        return kind(name)
    wait_ms = _number(words[1])
    if wait_ms is None:
        return refuse("Error parsing timeout.")
    return kind(name, wait_ms)


def _get(words: list[bytes]) -> TextRequest:
    return _read(words, TextGet)


def _peek(words: list[bytes]) -> TextRequest:
    return _read(words, TextPeek)


def _monitor(words: list[bytes]) -> TextRequest:
    """Parse `monitor`. A bad number closes the connection, as in Kestrel, which sent no text."""
    if len(words) < 2 or not _name(words):
        return refuse("Queue name & timeout required.")
    wait_ms = _number(words[1])
    if wait_ms is None:
        return refuse("Error parsing timeout.", hang_up=True)
    return TextMonitor(_name(words), wait_ms)


def _confirm(words: list[bytes]) -> TextRequest:
    """Parse `confirm`. A bad number closes the connection, as in Kestrel, which sent no text."""
    if len(words) < 2 or not _name(words):
        return refuse("Queue name & count required.")
    count = _number(words[1])
    if count is None:
        return refuse("Error parsing count.", hang_up=True)
    return TextConfirm(_name(words), count)


def _flush(words: list[bytes]) -> TextRequest:
    return Flush(_name(words)) if _name(words) else _NO_NAME


def _delete(words: list[bytes]) -> TextRequest:
    return Delete(_name(words)) if _name(words) else _NO_NAME


def _status(words: list[bytes]) -> TextRequest:
    return Status(text(words[0])) if words else Status()


_COMMANDS: dict[bytes, Callable[[list[bytes]], TextRequest]] = {
    b"put": _put,
    b"get": _get,
    b"peek": _peek,
    b"monitor": _monitor,
    b"confirm": _confirm,
    b"flush": _flush,
    b"delete": _delete,
    b"status": _status,
    b"version": lambda words: Version(),
    b"quit": lambda words: Quit(),
    b"shutdown": lambda words: Shutdown(),
}
