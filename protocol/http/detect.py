"""HTTP and TLS sent to a port of another protocol: a web page can make a browser post to any port of its machine.

A line protocol would read the head of such a request as lines, and its body as commands. So the first line that looks
like HTTP closes the connection, without a reply. Source: memcached's t/malicious-commands.t.
"""

from __future__ import annotations

import re

from staniel.protocol.requests import Invalid

_REQUEST_LINE = re.compile(rb"(?:.*[ \t])?HTTP/[0-9](?:\.[0-9])?[ \t]*\r?", re.DOTALL)

HTTP_REFUSED = Invalid(b"", hang_up=True, why="an HTTP request")
TLS_HELLO = b"\x16\x03"  # the first bytes of TLS; a LF follows soon, in the number of an extension
TLS_REFUSED = Invalid(b"", hang_up=True, why="TLS on a plain port")


def refusal_of(line: bytes) -> Invalid | None:
    """Return why an unknown line, without its LF, ends the connection; None if it is neither HTTP nor TLS."""
    if is_http(line):
        return HTTP_REFUSED
    return TLS_REFUSED if line.startswith(TLS_HELLO) else None


def is_http(line: bytes) -> bool:
    """Return True if `line`, without its LF, ends in HTTP/1.x or begins with `Host:`. No command of our protocols does:
    the text protocol's `GET q` and `PUT q:` end in other words.
    """
    if b"HTTP/" in line and _REQUEST_LINE.fullmatch(line) is not None:
        return True
    return line[:5].lower() == b"host:"
