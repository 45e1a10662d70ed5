"""One line becomes one request, and a line seen before becomes it again for the price of a look-up.

Knows line ends, the length of a line and what to remember. Refuses to know the commands (`kestrel_lines.py`,
`memcached_lines.py`) and where in a stream a line begins.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from staniel.protocol.http import HUNG_UP, is_http
from staniel.protocol.limits import Limits
from staniel.protocol.memcache import commands as memcached_lines
from staniel.protocol.memcache import commands_kestrel as kestrel_lines
from staniel.protocol.memcache.replies import replies_for
from staniel.protocol.memcache.requests import (
    Confirm,
    Delete,
    Dialect,
    Get,
    Monitor,
    Parsed,
    RefusedBlock,
    Request,
    SetHead,
)
from staniel.protocol.requests import Invalid

KNOWN_LINES_MAX = 4096
KNOWN_LINE_BYTES_MAX = 512
"""Together some 8 MB at worst. Longer lines are rare; requests that hold many names are left out for the sum's sake."""

_REMEMBERED = (SetHead, Get, Monitor, Confirm, Delete)


class Lines:
    """The line reader of one dialect and one set of limits, shared by all its connections.

    `known` maps a line, with its line end, to what it means: look there before calling `parse`. `alone` maps it to the
    requests of a read that brought it and nothing else; no line with a block is there.
    """

    def __init__(self, dialect: Dialect, limits: Limits) -> None:
        self.known: dict[bytes, Parsed] = {}
        self.alone: dict[bytes, list[Request]] = {}
        self._limits = limits
        grammar = kestrel_lines if dialect is Dialect.KESTREL else memcached_lines
        self._split: Callable[[bytes], list[bytes]] = grammar.split
        self._parse: Callable[[list[bytes], Limits], Parsed] = grammar.parse
        why = f"line too long, at most {limits.line_bytes_max} bytes"
        self.too_long = Invalid(replies_for(dialect).client_error(why), hang_up=True, why=why)

    def parse(self, line: bytes) -> Parsed:
        """What a line means that is not known yet. `line` ends with its LF; one CR before that is dropped too."""
        if len(line) - 1 > self._limits.line_bytes_max:
            return self.too_long
        if is_http(line[:-1]):
            return HUNG_UP
        parsed = self._parse(self._split(line[:-1].removesuffix(b"\r")), self._limits)
        if isinstance(parsed, _REMEMBERED) and len(line) <= KNOWN_LINE_BYTES_MAX:
            self._remember(line, parsed)
        return parsed

    def _remember(self, line: bytes, parsed: Parsed) -> None:
        """Forgetting everything at once costs less than keeping an order: the lines in use are back in a moment."""
        if len(self.known) >= KNOWN_LINES_MAX:
            self.known.clear()
            self.alone.clear()
        self.known[line] = parsed
        if not isinstance(parsed, SetHead | RefusedBlock):
            self.alone[line] = [parsed]


@lru_cache(maxsize=16)
def lines_for(dialect: Dialect, limits: Limits) -> Lines:
    """The one `Lines` of a dialect and its limits."""
    return Lines(dialect, limits)
