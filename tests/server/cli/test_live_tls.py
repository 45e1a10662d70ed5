"""The command line against an admin listener that speaks TLS and nothing else."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certificates import Authority, Files, self_signed
from tests.support.process import STANIEL, Server, running
from tests.support.transcripts import free_port

TOKEN = "a-long-enough-token-for-tests"


class Place:
    """A server with a certificate of `authority` for 127.0.0.1, which asks every client for one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder)
        self.files = self.authority.issue("localhost")
        self.client = self.authority.issue("operator")
        self.port = free_port()
        self.token = folder / "token"
        self.token.write_text(f"{TOKEN}\n")
        self.config = folder / "operators.toml"
        self.config.write_text(self.text)

    @property
    def text(self) -> str:
        return (
            f'[server]\nspool = "{self.folder / "server" / "spool"}"\n'
            f'[tls]\ncertificate = "{self.files.certificate}"\nkey = "{self.files.key}"\n'
            f'client_ca = "{self.authority.path}"\nclient_certificates = "required"\n'
            f'[admin]\nsocket = false\ntls_port = {self.port}\ntoken_file = "{self.token}"\n'
        )

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module", autouse=True)
def server(place: Place) -> Iterator[Server]:
    (place.folder / "server").mkdir()
    with running(place.folder / "server", config=place.text) as server:
        yield server


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*STANIEL, *arguments], capture_output=True, text=True, timeout=60, check=False)


def shown(files: Files) -> list[str]:
    return ["--certificate", str(files.certificate), "--key", str(files.key)]


def test_a_url_with_an_authority_and_a_certificate(place: Place) -> None:
    asked = ["--url", place.url, "--token-file", str(place.token), "--ca", str(place.authority.path)]
    told = run("put", "q", "hello", *asked, *shown(place.client))
    assert (told.returncode, told.stdout) == (0, "stored 5 B in q\n")
    assert "q" in run("queues", *asked, *shown(place.client)).stdout


def test_a_url_without_the_s_is_named(place: Place) -> None:
    told = run("queues", "--url", place.url.replace("https", "http"), "--token-file", str(place.token))
    assert told.returncode == 1 and "if that is its tls_port, say https://" in told.stderr


def test_a_configuration_says_where_it_is_and_what_it_shows(place: Place) -> None:
    told = run("health", "--config", str(place.config), *shown(place.client))
    assert (told.returncode, told.stdout.startswith("ready")) == (0, True), told.stderr


def test_a_server_with_another_certificate_is_not_asked(place: Place) -> None:
    other = self_signed(place.folder, "localhost")
    text = place.text.replace(str(place.files.certificate), str(other.certificate))
    config = place.folder / "other.toml"
    config.write_text(text.replace(str(place.files.key), str(other.key)))
    told = run("queues", "--config", str(config), *shown(place.client))
    assert told.returncode == 1 and "another certificate than its configuration names" in told.stderr


def test_the_authority_must_be_trusted(place: Place) -> None:
    asked = ["--url", place.url, "--token-file", str(place.token), *shown(place.client)]
    told = run("queues", *asked)
    assert told.returncode == 1 and "its certificate is not accepted" in told.stderr and "--ca" in told.stderr
    assert "no server answers" not in told.stderr and "start it" not in told.stderr
    told = run("queues", *asked, "--ca", str(Authority(place.folder, "stranger").path))
    assert told.returncode == 1 and "its certificate is not accepted" in told.stderr


def test_a_certificate_of_another_name_is_told_from_one_of_another_authority(place: Place) -> None:
    asked = ["--token-file", str(place.token), "--ca", str(place.authority.path), *shown(place.client)]
    told = run("queues", "--url", place.url.replace("127.0.0.1", "127.1"), *asked)  # the same address
    assert told.returncode == 1 and "that its certificate has" in told.stderr and "--ca" not in told.stderr


def test_a_backup_is_taken_and_held_to_its_end(place: Place) -> None:
    asked = ["--url", place.url, "--token-file", str(place.token), "--ca", str(place.authority.path)]
    assert run("put", "kept", "hello", *asked, *shown(place.client)).returncode == 0
    copy = str(place.folder / "copy")
    told = run("backup", "take", copy, *asked, *shown(place.client))
    assert told.returncode == 0, told.stderr
    assert run("restore", copy, str(place.folder / "again")).returncode == 0
    assert run("backup", "verify", copy).returncode == 0


def refuse_one(plain: socket.socket) -> None:
    """As a port without TLS answers a client that speaks it."""
    client, _ = plain.accept()
    with client:
        client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_what_cannot_be_used_is_named(place: Place) -> None:
    asked = ["--url", place.url, "--token-file", str(place.token), "--ca", str(place.authority.path)]
    told = run("queues", *asked)
    assert told.returncode == 1 and "certificate required" in told.stderr.lower()
    with socket.create_server(("127.0.0.1", 0)) as plain:
        answers = threading.Thread(target=refuse_one, args=(plain,))
        answers.start()
        told = run("queues", "--url", f"https://127.0.0.1:{plain.getsockname()[1]}")
        answers.join()
    assert told.returncode == 1 and "a port without TLS is http://" in told.stderr and "start it" not in told.stderr
    told = run("queues", *asked, "--certificate", str(place.token))
    assert told.returncode == 1 and "expected a file in PEM" in told.stderr
    told = run("queues", *asked, "--key", str(place.client.key))
    assert told.returncode == 2 and "expected --certificate with --key" in told.stderr
    told = run("queues", "--url", "ftp://127.0.0.1")
    assert told.returncode == 2 and "https://HOST:PORT" in told.stderr
    told = run("queues", "--url", place.url.replace("https", "http"), "--token-file", str(place.token))
    assert told.returncode == 1 and "Traceback" not in told.stderr
