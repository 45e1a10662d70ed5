"""The server's own certificate: when it ends, and who is told before."""

from __future__ import annotations

import json
import socket
import ssl
from contextlib import closing
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from staniel.server.certificates import end_of
from tests.support.certificates import DAY, Authority, Files
from tests.support.process import Server, running

LOCAL = "127.0.0.1"
EXPIRED, SOON, LATER = -DAY, timedelta(days=13, hours=12), timedelta(days=15)


def config(files: Files) -> str:
    paths = f'certificate = "{files.certificate}"\nkey = "{files.key}"\n'
    return f"[tls]\n{paths}\n[memcache]\ntls_port = 0\n[admin]\nport = 0\n"


class Said:
    """What a server says of itself to operators: `status` of /health/ready, `warnings` about certificates, `ends` in
    /metrics.
    """

    def __init__(self, server: Server) -> None:
        http = HTTPConnection(LOCAL, int(server.greeting.split(", spool")[0].rpartition(":")[2]), timeout=60)
        with closing(http):
            http.request("GET", "/health/ready")
            answer = http.getresponse()
            self.status = answer.status
            reasons: list[dict[str, Any]] = json.loads(answer.read())["reasons"]
            self.warnings = [each for each in reasons if each["name"] == "certificate_expires"]
            http.request("GET", "/metrics")
            (line,) = (
                line
                for line in http.getresponse().read().decode().splitlines()
                if line.startswith("staniel_certificate_expiry_timestamp_seconds ")
            )
            self.ends = int(line.split()[1])


def lines(server: Server) -> int:
    return server.stderr.count("warning tls.certificate_expires ")


def reload(server: Server) -> None:
    with closing(socket.create_connection(server.address, 30)) as sock:
        sock.sendall(b"reload\r\n")
        assert sock.recv(100).startswith(b"Reloaded config.")


def ends(files: Files) -> datetime:
    return x509.load_pem_x509_certificate(files.certificate.read_bytes()).not_valid_after_utc


def test_an_end_that_comes_near_is_a_warning_until_a_reload_brings_a_later_one(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.issue("server", ends_in=LATER)
    with running(tmp_path / "server", config=config(files)) as server:
        said = Said(server)
        assert (lines(server), said.status, said.warnings) == (0, 200, [])
        assert said.ends == int(ends(files).timestamp())

        authority.issue("server", ends_in=SOON)
        reload(server)
        said = Said(server)
        assert (lines(server), said.status) == (1, 200)
        (warning,) = said.warnings
        assert warning["severity"] == "warning" and "expires in 13 days" in warning["text"]
        assert said.ends == int(ends(files).timestamp())
        assert ends(files).strftime("ends=%Y-%m-%dT%H:%M:%SZ") in server.stderr

        authority.issue("server", ends_in=LATER)
        reload(server)
        assert (lines(server), Said(server).warnings) == (1, [])


def test_one_that_has_expired_is_shown_all_the_same_and_the_start_says_so(tmp_path: Path) -> None:
    files = Authority(tmp_path).issue("server", ends_in=EXPIRED)
    with running(tmp_path / "server", config=config(files)) as server:
        assert lines(server) == 1
        said = Said(server)
        assert said.status == 200 and "has expired" in said.warnings[0]["text"]
        careless = ssl._create_unverified_context()
        with closing(careless.wrap_socket(socket.create_connection((LOCAL, server.second_port), 30))) as sock:
            sock.sendall(b"version\r\n")
            assert sock.recv(100).startswith(b"VERSION ")
        careful = ssl.create_default_context(cafile=str(tmp_path / "authority.pem"))
        with (
            closing(socket.create_connection((LOCAL, server.second_port), 30)) as plain,
            pytest.raises(ssl.SSLCertVerificationError, match="expired"),
        ):
            careful.wrap_socket(plain, server_hostname="localhost")


def test_a_refused_reload_leaves_the_end_of_the_certificate_that_is_shown(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.issue("server", ends_in=LATER)
    before = int(ends(files).timestamp())
    with running(tmp_path / "server", config=config(files)) as server:
        authority.issue("server", ends_in=SOON)
        for spoil in (lambda: files.key.write_text("no key"), files.certificate.unlink):
            spoil()
            with closing(socket.create_connection(server.address, 30)) as sock:
                sock.sendall(b"reload\r\n")
                assert sock.recv(1000).startswith(b"SERVER_ERROR tls.certificate")
        assert (Said(server).ends, Said(server).warnings) == (before, [])


@pytest.mark.parametrize("year", [1949 + 1, 1999, 2000, 2049, 2050, 9999])
def test_both_forms_of_a_time_are_read(tmp_path: Path, year: int) -> None:
    """Two digits of the year until 2049, four from then on; RFC 5280, 4.1.2.5."""
    end = datetime(year, 7, 8, 9, 10, 11, tzinfo=UTC)
    begin = min(datetime.now(UTC), end) - DAY if year > 1950 else datetime(1950, 1, 1, tzinfo=UTC)
    files = Authority(tmp_path).issue("server", begins=begin, ends=end)
    assert end_of(str(files.certificate)) == int(end.timestamp()) * 1000


def test_the_first_certificate_of_a_chain_is_the_servers(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.issue("server", is_rsa=True, ends_in=LATER)
    own = files.certificate.read_text()
    files.certificate.write_text(
        "subject=server, a comment\n" + files.key.read_text() + own + authority.path.read_text()
    )
    assert end_of(str(files.certificate)) == int(ends(files).timestamp()) * 1000


@pytest.mark.parametrize(
    "text", ["", "no certificate", "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"]
)
def test_what_is_no_certificate_has_no_end(tmp_path: Path, text: str) -> None:
    (tmp_path / "file").write_text(text)
    assert end_of(str(tmp_path / "file")) is None
