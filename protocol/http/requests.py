"""The requests of an HTTP client."""

from __future__ import annotations

from msgspec import Struct, field

from staniel.protocol.requests import Invalid, More

RAW = "application/octet-stream"
"""The type of a body that is one item, byte by byte."""


class HttpRequest(Struct, frozen=True, gc=False):
    """A request with its body.

    `path` and the names and values of `query` are decoded (UTF-8; invalid bytes become U+FFFD). `headers` have names in
    lower case; the values of a repeated header are joined by a comma. `keep_alive`: the connection stays open after the
    reply. `version`: "1.1" or "1.0".
    """

    method: str
    path: str
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    keep_alive: bool = True
    version: str = "1.1"

    @property
    def content_type(self) -> str:
        """The content type without its parameters; "" if the client names none."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class HttpHead(Struct, frozen=True, gc=False):
    """The head of a request whose body has not ended, so that the request can be refused before its body is read.

    The client waits for permission to send the body (`waits`), or the body is long. `request` has no body and ends the
    connection.
    """

    request: HttpRequest
    waits: bool


HttpMessage = HttpRequest | HttpHead | Invalid | More
