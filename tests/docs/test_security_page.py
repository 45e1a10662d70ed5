"""The client of docs/security.md against a server with users and TLS, as it stands there."""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from typing import Any

import pytest
from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheClientError, MemcacheError

from staniel.broker.passwords import hash_password
from tests.support.certificates import Authority
from tests.support.process import Server, running

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = '"queues.example.com", 22134'
PASSWORD_HASH = hash_password(b"PASSWORD", bytes(range(16)))
CONFIG = """
[tls]
certificate = "{files.certificate}"
key = "{files.key}"
[memcache]
tls_port = {port}
[users.shop]
roles = ["read", "write"]
queues = ["jobs"]
password_hash = "{password_hash}"
"""


def client_of_the_page(port: int) -> Any:
    """What the page's code makes, with another address."""
    blocks = re.findall(r"(?:^    .*\n|^\n)+", (ROOT / "docs/security.md").read_text(), re.MULTILINE)
    code = next(block for block in blocks if "LoginClient(" in block)
    assert ADDRESS in code
    names: dict[str, Any] = {}
    exec("if True:\n" + code.replace(ADDRESS, f'"localhost", {port}'), names)
    return names["queue"]


@pytest.fixture
def server_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The configuration for a port of TLS; the authority's certificate is `ca.pem` of the working directory."""
    authority = Authority(tmp_path)
    (tmp_path / "ca.pem").write_bytes(authority.path.read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    files = authority.issue("server")
    return CONFIG.format(files=files, port="{port}", password_hash=PASSWORD_HASH)


def restart(server: Server, config: str) -> None:
    """Kill the server, which breaks all connections, and start it again on the same ports."""
    server.options = ("--port", str(server.port))
    server.config.write_text(config.format(port=server.second_port))
    server.restart()


def test_the_client_for_users_logs_in_again_when_its_connection_was_broken(tmp_path: Path, server_config: str) -> None:
    with running(tmp_path / "server", config=server_config.format(port=0)) as server:
        queue = client_of_the_page(server.second_port)
        assert queue.set("jobs", b"1") is True
        restart(server, server_config)
        with pytest.raises((OSError, MemcacheError)):
            queue.set("jobs", b"sent into the broken connection")
        assert queue.set("jobs", b"2") is True
        assert [queue.get("jobs") for _ in range(3)] == [b"1", b"2", None]
        queue.close()


def test_a_set_of_a_stranger_gets_words_that_say_that_it_was_taken_for_a_login(
    tmp_path: Path, server_config: str
) -> None:
    context = ssl.create_default_context(cafile="ca.pem")
    with running(tmp_path / "server", config=server_config.format(port=0)) as server:
        for address, options in (
            (("localhost", server.second_port), {"tls_context": context}),
            (server.address, {}),
        ):
            stranger = Client(address, timeout=5, default_noreply=False, **options)
            for item, word in ((b"job-1", "bad authentication token format"), (b"a job", "authentication failure")):
                with pytest.raises(MemcacheClientError) as refused:
                    stranger.set("jobs", item)
                hint = "the first set of each connection is its login, with USER PASSWORD as the value"
                assert f"{word}: {hint}" in str(refused.value)
            stranger.close()
