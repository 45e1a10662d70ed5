"""Saying who one is, from the client's side: memcached's ASCII authentication.

A server without users would store a login as an item, the secret with it. So it is asked for its version first: a
client that has to log in gets no other answer than a refusal.
"""

from __future__ import annotations

from staniel.protocol.client.replies import Error, Reply
from staniel.protocol.memcache.item_requests import Set

SECRET_BYTES_MAX = 1000
_REFUSAL = "unauthenticated"
_KEY = "login"


def must_log_in(version: Reply) -> bool:
    """Whether the answer to a `Version` is that of a server that wants to know who asks."""
    return isinstance(version, Error) and version.why.startswith(_REFUSAL)


def login(user: str, secret: bytes) -> Set:
    """`secret`: a password or a token. Answered with STORED, or an Error. Raises ValueError, which does not show the
    secret, if one of them is empty, has blanks or is too long.
    """
    name = user.encode("utf-8", "surrogateescape")
    if name.split() != [name]:
        raise ValueError(f"expected the name of a user, without blanks, not {user!r}")
    if secret.split() != [secret] or len(name) + len(secret) > SECRET_BYTES_MAX:
        raise ValueError(f"expected a password or token of 1 to {SECRET_BYTES_MAX - len(name)} bytes without blanks")
    return Set(_KEY, name + b" " + secret)
