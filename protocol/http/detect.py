"""What is no protocol of ours: HTTP, which a web page can make a browser post to any port of its machine, and TLS.

A protocol of lines would read the head of such a request as lines, and its body as commands. So the first line that
looks like HTTP closes the connection, without an answer. Source: memcached's t/malicious-commands.t.
"""

from __future__ import annotations

import re

from staniel.protocol.requests import Invalid

_REQUEST_LINE = re.compile(rb"(?:.*[ \t])?HTTP/[0-9](?:\.[0-9])?[ \t]*\r?", re.DOTALL)

HTTP_REFUSED = Invalid(b"", hang_up=True, why="an HTTP request")
TLS_HELLO = b"\x16\x03"  # how a client begins that speaks TLS; a LF follows soon, in the number of an extension
TLS_REFUSED = Invalid(b"", hang_up=True, why="TLS on a plain port")


def refusal_of(line: bytes) -> Invalid | None:
    """Why a line that is not known, without its LF, ends the connection; None if it is neither HTTP nor TLS."""
    if is_http(line):
        return HTTP_REFUSED
    return TLS_REFUSED if line.startswith(TLS_HELLO) else None


def is_http(line: bytes) -> bool:
    """Whether `line`, without its LF, ends in HTTP/1.x or begins with `Host:`. No command of a protocol here does: the
    text protocol's `GET q` and `PUT q:` have other last words.
    """
    if b"HTTP/" in line and _REQUEST_LINE.fullmatch(line) is not None:
        return True
    return line[:5].lower() == b"host:"
