"""Lines that only an HTTP client sends: a web page can make a browser post what it likes to any port of its machine.

The head of such a request is read as lines by a protocol of lines, and its body as commands. So the first line that
looks like HTTP ends the connection, unanswered. Source: memcached's t/malicious-commands.t.
"""

from __future__ import annotations

import re

from staniel.protocol.requests import Invalid

_REQUEST_LINE = re.compile(rb"(?:.*[ \t])?HTTP/[0-9](?:\.[0-9])?[ \t]*\r?", re.DOTALL)

HUNG_UP = Invalid(b"", hang_up=True, why="an HTTP request")


def is_http(line: bytes) -> bool:
    """Whether `line`, without its LF, ends in HTTP/1.x or begins with `Host:`. No command of ours does either: the text
    protocol's `GET q` and `PUT q:` have other last words.
    """
    if b"HTTP/" in line and _REQUEST_LINE.fullmatch(line) is not None:
        return True
    return line[:5].lower() == b"host:"
