"""Files of secrets that every user of the machine can read are named, until they cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.server.admin.asking import Operator
from tests.server.test_users import HASHES
from tests.support.certificates import Authority
from tests.support.process import run_staniel, running, until

TOKEN = "a-token-of-the-operator"
CONFIG = """
[tls]
certificate = "{certificate}"
key = "{key}"

[memcache]
tls_port = 0

[admin]
port = 0
token_file = "admin-token"

[users.operator]
roles = ["read"]
queues = ["orders*"]
token_file = "token"
password_file = "hash"
"""
SECRETS = ("admin-token", "token", "hash", "key")


@pytest.mark.parametrize("mode", [0o644, 0o640])
def test_a_configuration_with_a_hash_in_it_is_such_a_file(tmp_path: Path, mode: int) -> None:
    text = f'[users.a]\nroles = ["read"]\nqueues = ["*"]\npassword_hash = {json.dumps(HASHES["both"])}\n'
    (tmp_path / "one.toml").write_text(text)
    (tmp_path / "one.toml").chmod(mode)
    told = run_staniel("config", "check", str(tmp_path / "one.toml"))
    assert told.returncode == 0 and ("can read" in told.stderr and "chmod o-r" in told.stderr) is (mode == 0o644)
    with running(tmp_path / "server", "--config", str(tmp_path / "one.toml")) as server:
        assert (f"secret.readable path={tmp_path}/one.toml " in server.stderr) is (mode == 0o644)
    (tmp_path / "one.toml").write_text("[queues.a]\n")
    assert run_staniel("config", "check", str(tmp_path / "one.toml")).stderr == ""


@pytest.mark.parametrize("readable", [*((name,) for name in SECRETS), (), SECRETS])
def test_they_are_named_at_the_start_and_to_operators_until_a_reload(tmp_path: Path, readable: tuple[str, ...]) -> None:
    files = Authority(tmp_path).issue("server")
    named = {name: tmp_path / name for name in SECRETS} | {"key": files.key}
    named["admin-token"].write_text(TOKEN + "\n")
    named["token"].write_text("another-token-of-a-user\n")
    named["hash"].write_text(HASHES["both"] + "\n")
    for name, path in named.items():
        path.chmod(0o644 if name in readable else 0o640)
    with running(tmp_path, config=CONFIG.format(certificate=files.certificate, key=files.key)) as server:
        operator, bearer = Operator(server.folder / "spool"), f"Bearer {TOKEN}"

        def reasons() -> list[str]:
            found = operator.ask("GET", "/health/ready", authorization=bearer).json["reasons"]
            return [json.dumps(each) for each in found if each["name"] == "secrets_readable"]

        for name, path in named.items():
            assert (f"warning secret.readable path={path} " in server.stderr) is (name in readable), server.stderr
            assert any(str(path) in each for each in reasons()) is (name in readable)
        assert len(reasons()) == bool(readable)
        assert TOKEN not in server.stderr
        for path in named.values():
            path.chmod(0o600)
        operator.post("/api/reload")
        assert until(lambda: not reasons())
        assert server.stderr.count("secret.readable") == len(readable)
