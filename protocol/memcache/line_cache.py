"""A cache of parsed lines of the memcache protocol, found by their bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from staniel.protocol.http.detect import refusal_of
from staniel.protocol.limits import Limits
from staniel.protocol.memcache import commands, commands_kestrel
from staniel.protocol.memcache.item_requests import Get, SetHead
from staniel.protocol.memcache.replies import replies_for
from staniel.protocol.memcache.requests import Confirm, Delete, Dialect, Monitor, Parsed, Request
from staniel.protocol.memo import remember
from staniel.protocol.requests import Invalid

KNOWN_LINE_BYTES_MAX = 512
"""The longest cached line. With as many lines as a memo holds, some 8 MB at worst. Longer lines are rare; requests of
many names are not cached.
"""

_REMEMBERED = (SetHead, Get, Monitor, Confirm, Delete)


class LineCache:
    """A parser of lines of one dialect and one set of limits, shared by all its connections.

    `known` maps a line, with its line end, to its meaning: look there before calling `parse`. `single` maps a line to
    the requests of a read that consisted of this line alone; lines with a block are not in it.
    """

    def __init__(self, dialect: Dialect, limits: Limits) -> None:
        self.known: dict[bytes, Parsed] = {}
        self.single: dict[bytes, list[Request]] = {}
        self._limits = limits
        room = commands_kestrel if dialect is Dialect.KESTREL else commands
        self._split: Callable[[bytes], list[bytes]] = room.split
        self._parse: Callable[[list[bytes], Limits], Parsed] = room.parse
        why = f"line too long, at most {limits.line_bytes_max} bytes"
        self.too_long = Invalid(replies_for(dialect).client_error(why), hang_up=True, why=why)

    def parse(self, line: bytes) -> Parsed:
        """Parse an unknown line. `line` ends with its LF; one CR before it is dropped too."""
        if len(line) - 1 > self._limits.line_bytes_max:
            return self.too_long
        if (refusal := refusal_of(line[:-1])) is not None:
            return refusal
        parsed = self._parse(self._split(line[:-1].removesuffix(b"\r")), self._limits)
        if isinstance(parsed, _REMEMBERED) and len(line) <= KNOWN_LINE_BYTES_MAX:
            remember(self.known, line, parsed)
            if not isinstance(parsed, SetHead):
                alone: list[Request] = [parsed]
                remember(self.single, line, alone)
        return parsed


@lru_cache(maxsize=16)
def line_cache_for(dialect: Dialect, limits: Limits) -> LineCache:
    """Return the one cache of a dialect and its limits."""
    return LineCache(dialect, limits)
