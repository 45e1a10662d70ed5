"""Access to the admin listener over TCP: the token of `[admin] token_file`, and the checks that keep web pages out.

A browser sends any request that a page asks for, to any address that it can reach. So a request over TCP is checked.
Its Host must be an address or a name of this server: a page cannot choose the Host, and DNS rebinding brings a foreign
one. An Origin must equal that Host. A request that changes something must be JSON or raw bytes, which a page of another
origin may not send without permission. If a token is configured, every request must carry it, and such a page does not
know it. A Unix socket has no such checks: the file's permissions, or the peer credentials from the kernel, decide who
may connect.
"""

from __future__ import annotations

import hmac
from copy import copy
from hashlib import sha256
from ipaddress import ip_address

from staniel.broker.config.load import Config, ConfigError
from staniel.journal.disk.fs import Fs
from staniel.protocol.http.requests import RAW, HttpRequest

TOKEN_BYTES_MIN, TOKEN_BYTES_MAX = 16, 4096
COOKIE = "staniel"
SAFE_METHODS = ("GET", "HEAD")
OPEN_PATHS = ("/health/live", "/health/ready", "/login", "/ping", "/")  # without the token: load balancers have none
PAGE_FILES = "/page/"  # the page itself asks for the token
GUARDED_TYPES = ("application/json", RAW)  # a page of another origin may not send these without permission
OWN_SITES = ("same-origin", "none")  # Sec-Fetch-Site of the page itself, and of an address that a person typed


class AdminAccess:
    """The checks of one configuration."""

    def __init__(self, config: Config, fs: Fs) -> None:
        """Read the token. Raises ConfigError if it cannot be read."""
        self._hosts = {"localhost", config.server.host.lower(), *(host.lower() for host in config.admin.hosts)}
        self._token = read_token(fs, config.admin.token_file) if config.admin.token_file else b""
        self._wants_token = bool(self._token or config.users)
        self._cookie = hmac.new(self._token, b"cookie of the admin page", sha256).hexdigest()

    @property
    def has_token(self) -> bool:
        return bool(self._token)

    def lets_in(self, other: AdminAccess) -> bool:
        """Tell whether clients that `other` has admitted may stay: the token is the same, or neither configuration has
        one.
        """
        if not other._wants_token and self._wants_token:
            return False
        return not other._token or hmac.compare_digest(self._token, other._token)

    def kept_for(self, config: Config) -> AdminAccess:
        """Return a copy for a listener that is not in `config` any more but stays open until the restart. The users of
        `config` may authenticate there.
        """
        kept = copy(self)
        kept._wants_token = bool(self._token or config.users)
        return kept

    def refusal(self, request: HttpRequest, is_known: bool) -> tuple[int, str]:
        """Return (status, why) for a request over TCP that is refused; (0, "") if it is served. `is_known`: the client
        has authenticated as a user or with the token.
        """
        host = request.headers.get("host", "")
        if not self._is_ours(host):
            return 421, "this Host is not one of this server's; add it to [admin] hosts if it should be"
        origin = request.headers.get("origin")
        if origin is not None and origin.lower() not in (f"http://{host}".lower(), f"https://{host}".lower()):
            return 403, "requests of other web sites are refused"
        if request.method not in SAFE_METHODS:
            if request.headers.get("sec-fetch-site", "none") not in OWN_SITES:
                return 403, "requests of other web sites are refused"
            if request.content_type not in GUARDED_TYPES:
                return 415, f"expected Content-Type: application/json, or {RAW} for an item"
        is_open = request.path in OPEN_PATHS or request.path.startswith(PAGE_FILES)
        if not is_open and self.is_stranger(request, is_known):
            return 401, "expected Authorization: Bearer TOKEN, with the token of [admin] token_file, or a user's"
        return 0, ""

    def is_stranger(self, request: HttpRequest, is_known: bool) -> bool:
        """Tell whether the request is unauthenticated although the listener requires authentication."""
        return self._wants_token and not is_known and not self._has_token(request)

    def is_token(self, given: bytes) -> bool:
        """Tell whether `given` is the token. The time it takes does not depend on how many of its bytes are right."""
        return bool(self._token) and hmac.compare_digest(given, self._token)

    def cookie(self, request: HttpRequest) -> str:
        """Return the cookie that a browser keeps after a login. It proves knowledge of the token without being the
        token. A cookie that was set over TLS is sent over TLS only.
        """
        is_secure = request.headers.get("origin", "").lower().startswith("https://")
        return f"{COOKIE}={self._cookie}; Path=/; HttpOnly; SameSite=Strict" + "; Secure" * is_secure

    def _has_token(self, request: HttpRequest) -> bool:
        if not self._token:
            return False  # without a token no cookie is valid
        if self.is_token(bearer(request)):
            return True
        for piece in request.headers.get("cookie", "").split(";"):
            name, _, value = piece.strip().partition("=")
            if name == COOKIE and hmac.compare_digest(value.encode("latin-1"), self._cookie.encode()):
                return True
        return False

    def _is_ours(self, host: str) -> bool:
        name = host.lower()
        if name.startswith("["):
            name = name[1:].partition("]")[0]
        elif name.count(":") <= 1:
            name = name.partition(":")[0]
        if name in self._hosts:
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True


def bearer(request: HttpRequest) -> bytes:
    """Return the token that a request carries; b"" if it carries none."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip().encode("latin-1", "replace") if kind.lower() == "bearer" else b""


def read_token(fs: Fs, path: str) -> bytes:
    """Read the token, the first line of the file, without blanks around it. Raises ConfigError."""
    try:
        lines = fs.read(path, 0, TOKEN_BYTES_MAX).split(b"\n")
    except OSError as error:
        raise ConfigError("admin.token_file", f"cannot be read: {error.strerror}") from error
    token = lines[0].strip()
    if len(token) < TOKEN_BYTES_MIN:
        raise ConfigError("admin.token_file", f"expected a token of at least {TOKEN_BYTES_MIN} bytes in {path}")
    return token
