"""Replies of HTTP/1.1 as bytes. Source: RFC 9112.

Every reply forbids the browser to guess its type, to store it, and to show it inside another site's page.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from staniel.protocol.http.requests import HttpRequest

REASONS = {
    200: "OK",
    202: "Accepted",
    204: "No Content",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    421: "Misdirected Request",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
}
NO_CONTENT = 204
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
GUARDS = (
    "x-content-type-options: nosniff\r\nx-frame-options: DENY\r\nreferrer-policy: no-referrer\r\n"
    "cache-control: no-store\r\n"
)
_LAST_CHUNK = b"0\r\n\r\n"


def head(
    request: HttpRequest, status: int, content_type: str, length: int | None, more: dict[str, str] | None = None
) -> bytes:
    """Return the status line and the headers.

    If `length` is None, the body follows in chunks, or, for HTTP/1.0, up to the end of the connection. `more` has
    further headers of ours; no text of a client may stand in them.
    """
    lines = [f"HTTP/1.1 {status} {REASONS[status]}\r\n"]
    if content_type:
        lines.append(f"content-type: {content_type}\r\n")
    if status == NO_CONTENT:
        pass  # RFC 9110, 8.6: it has no length
    elif length is not None:
        lines.append(f"content-length: {length}\r\n")
    elif request.version != "1.0":
        lines.append("transfer-encoding: chunked\r\n")
    if not is_kept(request, length):
        lines.append("connection: close\r\n")
    elif request.version == "1.0":
        lines.append("connection: keep-alive\r\n")
    lines.append(GUARDS)
    for name, value in (more or {}).items():
        assert "\r" not in value and "\n" not in value
        lines.append(f"{name}: {value}\r\n")
    return "".join([*lines, "\r\n"]).encode("latin-1")


def is_kept(request: HttpRequest, length: int | None) -> bool:
    """Return True if the connection stays open after the reply. A body with neither a length nor chunks ends with its
    connection.
    """
    return request.keep_alive and not (length is None and request.version == "1.0")


def reply(
    request: HttpRequest, status: int, body: bytes, content_type: str = JSON, more: dict[str, str] | None = None
) -> bytes:
    """Return a whole reply. HEAD gets the headers alone."""
    start = head(request, status, content_type if body else "", len(body), more)
    return start if request.method == "HEAD" else start + body


def json_reply(request: HttpRequest, status: int, value: Any) -> bytes:
    """Return a reply with `value` as JSON and a line feed, for terminals."""
    return reply(request, status, encode(value) + b"\n")


def encode(value: Any) -> bytes:
    """Encode `value` as JSON. Bytes of a file name that are no UTF-8 become \\udc80 to \\udcff."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value), separators=(",", ":")).encode("ascii")


def error_reply(request: HttpRequest, status: int, why: str, more: dict[str, str] | None = None) -> bytes:
    """Return a refusal: {"error": why}."""
    return reply(request, status, encode({"error": why}) + b"\n", JSON, more)


def chunk(request: HttpRequest, data: bytes) -> bytes:
    """Return a piece of a body without a length. Return nothing for no bytes, because an empty chunk ends the body."""
    if not data or request.method == "HEAD":
        return b""
    return data if request.version == "1.0" else b"%x\r\n%b\r\n" % (len(data), data)


def last_chunk(request: HttpRequest) -> bytes:
    return b"" if request.version == "1.0" or request.method == "HEAD" else _LAST_CHUNK
