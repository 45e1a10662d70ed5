"""A pymemcache client for a server with users: it logs in on every connection, also on those that come later.

    client = LoginClient(("queues.example.com", 22134), user="shop", secret=b"PASSWORD or TOKEN")

pymemcache closes its connection after any error, a CLIENT_ERROR too, and connects again with the next request without
saying so. A login that was sent once as a `set` does not hold for the new connection, and the next `set` would be taken
for a login.
"""

from __future__ import annotations

from typing import Any

from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheClientError, MemcacheUnexpectedCloseError

ANSWER_BYTES_MAX = 4096


class LoginClient(Client):
    """`user` "": a server without users; it is not logged in to."""

    def __init__(self, *args: Any, user: str, secret: bytes, **options: Any) -> None:
        super().__init__(*args, **options)
        self._login = user.encode() + b" " + secret if user else b""

    def _connect(self) -> None:
        """Connect, then log in before anything else is sent. Raises MemcacheClientError if that is refused."""
        super()._connect()
        if not self._login:
            return
        try:
            self.sock.sendall(b"set login 0 0 %d\r\n%b\r\n" % (len(self._login), self._login))
            answer = b""
            while not answer.endswith(b"\r\n") and len(answer) < ANSWER_BYTES_MAX:
                if not (piece := self.sock.recv(ANSWER_BYTES_MAX)):
                    raise MemcacheUnexpectedCloseError
                answer += piece
            if answer != b"STORED\r\n":
                raise MemcacheClientError(answer.decode("utf-8", "replace").strip())
        except Exception:
            self.close()
            raise
