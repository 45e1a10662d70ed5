"""docs/security.md and docs/howto/secure.md: their commands, settings and client, against servers with TLS."""

from __future__ import annotations

import re
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheClientError, MemcacheError

from staniel.broker.passwords import hash_password
from tests.support.certificates import Authority
from tests.support.process import Server, run_staniel, running

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = '"queues.example.com", 22134'
ADDRESS_SEEN = "queues.example.com:22134"
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
            stranger = Client(address, timeout=60, default_noreply=False, **options)
            for item, word in ((b"job-1", "bad authentication token format"), (b"a job", "authentication failure")):
                with pytest.raises(MemcacheClientError) as refused:
                    stranger.set("jobs", item)
                hint = "the first set of each connection is its login, with USER PASSWORD as the value"
                assert f"{word}: {hint}" in str(refused.value)
            stranger.close()


def openssl_of(page: str) -> Iterator[str]:
    """The indented blocks of a page that make keys, certificates and tokens, in their order."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    for block in re.findall(r"(?:^    .*\n)+", text, re.MULTILINE):
        if "openssl" in block:
            yield "\n".join(
                line[4:] for line in block.splitlines() if "staniel " not in line and "s_client" not in line
            )


@pytest.mark.programs("openssl")
def test_the_steps_that_secure_a_server_let_in_its_users_alone(tmp_path: Path) -> None:
    for block in (*openssl_of("howto/secure.md"), *openssl_of("security.md")):
        block = block.replace("DNS:queues.example.com", "DNS:queues.example.com,DNS:localhost")
        subprocess.run(["bash", "-euc", block], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    page = (ROOT / "docs" / "howto" / "secure.md").read_text("utf-8")
    (settings,) = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    config = tmp_path / "staniel.toml"
    config.write_text(settings)
    checked = run_staniel("config", "check", str(config))
    assert checked.returncode == 0 and "\n    staniel config check staniel.toml\n    staniel health\n" in page
    files = {name: str(tmp_path / name) for name in ("server.pem", "server.key", "shop.token", "worker.token")}
    for name, path in files.items():
        settings = settings.replace(f'"{name}"', f'"{path}"')
    settings = settings.replace('port = "none"\n', "").replace("22134", "0")
    with running(tmp_path / "server", config=settings) as server:
        assert run_staniel("health", STANIEL_SPOOL=str(server.spool)).returncode == 0
        seen = ["openssl", "s_client", "-connect", f"localhost:{server.second_port}", "-CAfile", "ca.pem"]
        told = f"    {' '.join(seen)} < /dev/null\n"
        assert told.replace(f"localhost:{server.second_port}", ADDRESS_SEEN) in page
        shown = subprocess.run(seen, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        assert "Verify return code: 0 (ok)" in shown.stdout
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        for user, does in (("shop", "put"), ("worker", "get")):
            token = (tmp_path / f"{user}.token").read_bytes().strip()
            client = Client(("localhost", server.second_port), timeout=60, default_noreply=False, tls_context=context)
            assert client.set("login", user.encode() + b" " + token) is True
            if does == "put":
                assert client.set("orders", b"1") is True
            else:
                assert client.get("orders") == b"1"
                with pytest.raises(MemcacheClientError):
                    client.set("orders", b"2")
            client.close()
