"""Logging in, from the client's side: memcached's ASCII authentication.

A server without users would store a login, with the secret, as an item. So the client first asks for the version: a
server that requires a login refuses to reply.
"""

from __future__ import annotations

from staniel.protocol.client.replies import Error, Reply
from staniel.protocol.memcache.item_requests import Set

SECRET_BYTES_MAX = 1000
_REFUSAL = "unauthenticated"
_KEY = "login"


def must_log_in(version: Reply) -> bool:
    """Return True if the reply to a `Version` says that the server requires a login."""
    return isinstance(version, Error) and version.why.startswith(_REFUSAL)


def login(user: str, secret: bytes) -> Set:
    """Return the request that logs `user` in with a password or token. The reply is STORED or an Error.

    Raises ValueError, without the secret in its text, if one of them is empty, has blanks or is too long.
    """
    name = user.encode("utf-8", "surrogateescape")
    if name.split() != [name]:
        raise ValueError(f"expected the name of a user, without blanks, not {user!r}")
    if secret.split() != [secret] or len(name) + len(secret) > SECRET_BYTES_MAX:
        raise ValueError(f"expected a password or token of 1 to {SECRET_BYTES_MAX - len(name)} bytes without blanks")
    return Set(_KEY, name + b" " + secret)
