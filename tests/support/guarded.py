"""A server on TLS with two users: one by password or token, one by certificate; each may use the queues `jobs*`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from staniel.broker.passwords import hash_password
from tests.support.certificates import Authority, Files
from tests.support.process import Server, running

PASSWORD = "a-secret"
TOKEN = "a-token-of-the-analyst"
CONFIG = """
[tls]
certificate = "{server.certificate}"
key = "{server.key}"
client_ca = "{ca}"
[memcache]
dialect = "{dialect}"
tls_port = 0
[users.analyst]
roles = ["read", "write"]
queues = ["jobs*"]
password_hash = "{hash}"
token_file = "{token_file}"
[users.worker]
roles = ["read", "write"]
queues = ["jobs*"]
certificates = ["worker.example"]
"""


class Guarded(Struct, frozen=True):
    """`token_file` and `password_file`: the analyst's. `client`: the worker's certificate."""

    server: Server
    ca: Path
    client: Files
    token_file: Path
    password_file: Path

    @property
    def tls_address(self) -> str:
        return f"localhost:{self.server.second_port}"


@contextmanager
def guarded(folder: Path, dialect: str = "memcached") -> Iterator[Guarded]:
    authority = Authority(folder)
    token_file, password_file = folder / "token", folder / "password"
    token_file.write_text(f"{TOKEN}\n")
    password_file.write_text(f"{PASSWORD}\n")
    text = CONFIG.format(
        server=authority.issue("server"), ca=authority.path, dialect=dialect, token_file=token_file,
        hash=hash_password(PASSWORD.encode(), bytes(16)),
    )  # fmt: skip
    with running(folder / "server", config=text) as server:
        yield Guarded(server, authority.path, authority.issue("worker.example"), token_file, password_file)
