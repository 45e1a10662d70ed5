"""The connections of the pipeline: with TLS or not, and the user to log in as.

Options name files, never their content: options are shown in Spark's pages and go to every task. The files are read for
every new connection, on the driver and on each machine that runs tasks, so that renewed ones are used.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from typing import TypeVar

from msgspec import Struct

from staniel.protocol.client.login import SECRET_BYTES_MAX, login
from staniel.protocol.memcache.item_requests import Set

Found = TypeVar("Found")


class AccessError(ValueError):
    """The file cannot be used, or has the wrong content."""


class Access(Struct, frozen=True):
    """The options for connecting to a server. The first line of `token_file` is the token or password of `user`.
    `ca_file` "": the system's authorities. `key_file` "": the key is in `certificate_file`.
    """

    user: str = ""
    token_file: str = ""
    has_tls: bool = False
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""

    def login(self) -> Set:
        """Return the request that logs in. Raises AccessError."""
        line = _read(self.token_file, lambda: _first_line(self.token_file))
        try:
            return login(self.user, line)
        except ValueError as error:
            raise AccessError(f"{self.token_file}: {error}") from error

    def connect(self, address: tuple[str, int], timeout_s: float) -> socket.socket:
        """Connect. Raises AccessError; OSError, which includes ssl.SSLError."""
        context = self._context() if self.has_tls else None
        plain = socket.create_connection(address, timeout_s)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return plain if context is None else context.wrap_socket(plain, server_hostname=address[0])
        except BaseException:
            plain.close()
            raise

    def _context(self) -> ssl.SSLContext:
        context = _read(self.ca_file, lambda: ssl.create_default_context(cafile=self.ca_file or None))
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if own := self.certificate_file:
            key = self.key_file or None
            # A key with a password is refused: a job has no terminal to ask for it.
            _read(f"{own} {key or ''}".strip(), lambda: context.load_cert_chain(own, key, password=""))
        return context


PLAIN = Access()


def _first_line(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.readline(2 * SECRET_BYTES_MAX).strip()


def _read(paths: str, read: Callable[[], Found]) -> Found:
    """Read a file. Raises AccessError."""
    try:
        return read()
    except ssl.SSLError as error:
        raise AccessError(f"{paths}: expected PEM: {error.reason or error}") from error
    except (OSError, ValueError) as error:
        raise AccessError(f"{paths}: {getattr(error, 'strerror', None) or error}") from error
