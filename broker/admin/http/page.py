"""The operator's page: the files of broker/admin/page, unchanged. They hold no data, so they need no token.

The Content-Security-Policy limits the page: it may load scripts and styles from this server only, none from within the
HTML, and may contact no other site.
"""

from __future__ import annotations

import gzip
import pkgutil
from functools import cache

from staniel.broker.admin.http.exchange import Exchange
from staniel.protocol.http.requests import HttpRequest

FOLDER = "/page/"
FILES = {
    "index.html": "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
    **dict.fromkeys(
        ("main.js", "store.js", "dom.js", "format.js", "charts.js", "overview.js", "queue.js", "items.js", "tabs.js",
         "ask.js", "palette.js", "jobs.js", "lists.js", "cluster.js"),
        "text/javascript; charset=utf-8",
    ),
}  # fmt: skip
POLICY = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'none'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def file_of(path: str) -> str:
    """Return the name of the file that a path names; "" if the page has no such file."""
    name = "index.html" if path == "/" else path.removeprefix(FOLDER) if path.startswith(FOLDER) else ""
    return name if name in FILES else ""


def send(exchange: Exchange, name: str) -> None:
    exchange.reply(200, *content_of(name, exchange.request))


def content_of(name: str, request: HttpRequest) -> tuple[bytes, str, dict[str, str]]:
    """Return a file for a browser: the body, its type, further headers."""
    more = dict(POLICY)
    body = _packed(name)
    if "gzip" in request.headers.get("accept-encoding", ""):
        more |= {"content-encoding": "gzip", "vary": "accept-encoding"}
    else:
        body = gzip.decompress(body)
    return body, FILES[name], more


@cache
def _packed(name: str) -> bytes:
    """Return a file, compressed to a quarter of its size for pages that come through a tunnel. Compressing the longest
    file takes 1 ms, once.
    """
    data = pkgutil.get_data("staniel.broker.admin.page", name)
    assert data is not None, f"{name} is missing in this installation"
    return gzip.compress(data, mtime=0)
