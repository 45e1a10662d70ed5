"""Names and texts from clients and files, escaped so that nothing in them ends a line or a word of a reply.

A character that may not stand there is written as `%0A`, byte by byte, as memcached does in its own lists of keys;
`urllib.parse.unquote` undoes it. The bytes are those of the wire (ISO-8859-1).
"""

from __future__ import annotations

import re

_NOT_ASCII_WORD = re.compile("[^!-$&-~]")
_NOT_ASCII_TEXT = re.compile("[^ !-$&-~]")
_NOT_ASCII_LINE = re.compile("[^ -~]")
_NOT_A_WORD = re.compile("[\0- \x7f]")
_NOT_A_TEXT = re.compile("[\0-\x1f\x7f]")


def ascii_word(text: str) -> str:
    """Escape to one word of printable ASCII. Clients decode the names of statistics as ASCII."""
    return _NOT_ASCII_WORD.sub(_escaped, text)


def ascii_text(text: str) -> str:
    """Escape to one line of printable ASCII; blanks stay."""
    return _NOT_ASCII_TEXT.sub(_escaped, text)


def ascii_line(text: str) -> str:
    """Escape a text for people to one line of printable ASCII. `%` stays too, so it cannot be undone."""
    return _NOT_ASCII_LINE.sub(_escaped, text)


def word(text: str) -> str:
    """Escape to one word of Kestrel's replies: only blanks and control characters change."""
    return _NOT_A_WORD.sub(_escaped, text)


def line(text: str) -> str:
    """Escape to one line of Kestrel's replies: only control characters change."""
    return _NOT_A_TEXT.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    """Escape a character's bytes on the wire; a character beyond ISO-8859-1 has those of a file name."""
    letter = match[0]
    data = letter.encode("latin-1") if letter <= "\xff" else letter.encode("utf-8", "surrogateescape")
    return "".join(f"%{byte:02X}" for byte in data)
