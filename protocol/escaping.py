"""Names and texts that come from clients and files, escaped so that nothing in them ends a line or a word of a reply.

What cannot stand there is written as `%0A`, byte by byte, as memcached does in its own lists of keys;
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
    """One word of printable ASCII. Clients decode the names of statistics as such."""
    return _NOT_ASCII_WORD.sub(_escaped, text)


def ascii_text(text: str) -> str:
    """One line of printable ASCII; blanks stay."""
    return _NOT_ASCII_TEXT.sub(_escaped, text)


def ascii_line(text: str) -> str:
    """The same for texts that people read: `%` stays too, so it cannot be undone."""
    return _NOT_ASCII_LINE.sub(_escaped, text)


def word(text: str) -> str:
    """One word, where the replies are Kestrel's: only blanks and control characters are escaped."""
    return _NOT_A_WORD.sub(_escaped, text)


def line(text: str) -> str:
    """One line, where the replies are Kestrel's: only control characters are escaped."""
    return _NOT_A_TEXT.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    """The bytes of a character on the wire; if it has none there, those that it has in a file's name."""
    letter = match[0]
    data = letter.encode("latin-1") if letter <= "\xff" else letter.encode("utf-8", "surrogateescape")
    return "".join(f"%{byte:02X}" for byte in data)
