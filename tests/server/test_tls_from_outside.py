"""Every TLS listener as other programs see it: what OpenSSL's client can agree on with it, clients of thrift and workq,
and TLS on the plain ports beside them.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from thriftpy2.rpc import make_client
from thriftpy2.transport import TFramedTransportFactory

from staniel.protocol.thrift.service import declaration
from tests.support.certificates import Authority
from tests.support.process import Server, running, until

LOCAL = "127.0.0.1"
LISTENERS = ("memcache", "text", "workq", "admin", "thrift")  # as the line of a start has them
CASES = Path(__file__).parents[1] / "conformance" / "workq" / "protocol_cases.json"
EVERYTHING = "ALL:COMPLEMENTOFALL:@SECLEVEL=0"
GROUPS = ("ffdhe2048", "ffdhe8192", "P-521", "P-384", "P-256", "X448", "X25519")
STRONG = [f"ECDHE-{{}}-{name}" for name in ("AES256-GCM-SHA384", "AES128-GCM-SHA256", "CHACHA20-POLY1305")]


class Served(Struct):
    """A server with all listeners, plain and under TLS; `kind`: of its certificate's key."""

    server: Server
    authority: Path
    kind: str
    plain: dict[str, int]
    secure: dict[str, int]

    def agreed(self, listener: str, *options: str, said: bytes = b"Q\n") -> str:
        """What OpenSSL's client says after a handshake, or after none."""
        where = f"{LOCAL}:{self.secure[listener]}"
        command = ["openssl", "s_client", "-connect", where, "-CAfile", str(self.authority), *options]
        ran = subprocess.run(command, input=said, capture_output=True, timeout=60)
        return (ran.stdout + ran.stderr).decode("utf-8", "replace")

    def cipher(self, listener: str, *options: str) -> str:
        """The cipher that was agreed on; "" if none was."""
        found = re.search(r"^New, \S+, Cipher is (\S+)$", self.agreed(listener, *options), re.MULTILINE)
        return "" if found is None or found[1] == "(NONE)" else found[1]

    def connect(self, listener: str) -> ssl.SSLSocket:
        context = ssl.create_default_context(cafile=str(self.authority))
        plain = socket.create_connection((LOCAL, self.secure[listener]), 30)
        return context.wrap_socket(plain, server_hostname="localhost")


@pytest.fixture(scope="module", params=["ECDSA", "RSA"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("outside")
    authority = Authority(folder)
    files = authority.issue("server", is_rsa=request.param == "RSA")
    tables = "".join(f"[{name}]\nport = 0\ntls_port = 0\n" for name in LISTENERS)
    config = f'[tls]\ncertificate = "{files.certificate}"\nkey = "{files.key}"\n{tables}'
    with running(folder / "server", config=config) as server:
        where = server.greeting.split(" listens on ")[1].split(", spool")[0].split(", ")
        plain = [int(each.rpartition(":")[2]) for each in where if not each.startswith("tls:")]
        secure = [int(each.rpartition(":")[2]) for each in where if each.startswith("tls:")]
        ports = (dict(zip(LISTENERS, found, strict=True)) for found in (plain, secure))
        yield Served(server, authority.path, request.param, *ports)


@pytest.mark.programs("openssl")
@pytest.mark.parametrize("listener", LISTENERS)
def test_nothing_older_than_1_2_is_agreed_on(served: Served, listener: str) -> None:
    for option in ("-tls1", "-tls1_1"):
        assert served.cipher(listener, option, "-cipher", EVERYTHING) == ""
    assert served.cipher(listener, "-tls1_2") and served.cipher(listener, "-tls1_3")


@pytest.mark.programs("openssl")
@pytest.mark.parametrize("listener", LISTENERS)
def test_only_strong_ciphers_are_agreed_on_and_in_the_servers_order(served: Served, listener: str) -> None:
    """All that the client knows, and each time without what was agreed on."""
    wanted = [name.format(served.kind) for name in STRONG]
    found: list[str] = []
    while cipher := served.cipher(
        listener, "-tls1_2", "-cipher", ":".join([EVERYTHING, *(f"!{name}" for name in found)])
    ):
        found.append(cipher)
    assert found == wanted
    assert served.cipher(listener, "-tls1_2", "-cipher", ":".join(reversed(wanted))) == wanted[0]


@pytest.mark.programs("openssl")
@pytest.mark.parametrize("listener", LISTENERS)
def test_no_key_exchange_is_agreed_on_that_costs_the_server_more_than_its_own(served: Served, listener: str) -> None:
    """A client may name the group alone, or name ours too and begin with another one's key."""
    assert [name for name in GROUPS if served.cipher(listener, "-tls1_3", "-groups", name)] == ["P-256"]
    for version in ("-tls1_2", "-tls1_3"):
        heard = served.agreed(listener, version, "-groups", "ffdhe8192:X25519:P-256")
        assert "Server Temp Key: ECDH, prime256v1, 256 bits" in heard


@pytest.mark.programs("openssl")
@pytest.mark.parametrize("listener", LISTENERS)
def test_nothing_is_compressed_renegotiated_or_given_a_ticket(served: Served, listener: str) -> None:
    heard = served.agreed(listener, "-tls1_2", "-comp", "-legacy_renegotiation", said=b"R\n")
    assert "Compression: NONE" in heard and "Secure Renegotiation IS supported" in heard
    assert "no renegotiation" in heard and "session ticket" not in heard
    assert "session ticket" not in served.agreed(listener, "-tls1_3").lower()


@pytest.mark.programs("openssl")
def test_a_session_of_1_2_is_resumed_until_a_reload_at_most(served: Served, tmp_path: Path) -> None:
    kept = tmp_path / "session"
    served.agreed("memcache", "-tls1_2", "-sess_out", str(kept))
    before = served.server.stderr.count("config.reloaded")
    with closing(served.connect("memcache")) as sock:
        sock.sendall(b"reload\r\n")
        assert sock.recv(100).startswith(b"Reloaded config.")
    assert until(lambda: served.server.stderr.count("config.reloaded") > before)
    again = served.agreed("memcache", "-tls1_2", "-sess_in", str(kept))
    assert "\nNew, TLSv1.2," in again and "\nReused, " not in again


@pytest.mark.programs("openssl")
def test_tls_on_each_plain_port_is_named(tmp_path: Path) -> None:
    """Each on a server of its own: one line in ten seconds says so."""
    for listener in LISTENERS:
        with running(tmp_path / listener, config=f"[{listener}]\nport = 0\n") as server:
            port = server.port if listener == "memcache" else last_port(server)
            ran = subprocess.run(
                ["openssl", "s_client", "-connect", f"{LOCAL}:{port}"], input=b"", capture_output=True, timeout=60
            )
            assert ran.returncode != 0
            assert until(lambda started=server: "TLS on a plain port" in started.stderr), (listener, server.stderr)  # type: ignore[misc]
            (line,) = [line for line in server.stderr.splitlines() if "TLS on" in line]
            assert " session.refused client=127.0.0.1:" in line


def last_port(server: Server) -> int:
    return int(re.findall(r"127\.0\.0\.1:(\d+)", server.greeting)[-1])


def test_a_client_of_thrift_puts_opens_and_confirms(served: Served) -> None:
    client = make_client(
        declaration.Kestrel, "localhost", served.secure["thrift"], trans_factory=TFramedTransportFactory(),
        timeout=5000, cafile=str(served.authority),
    )  # fmt: skip
    with closing(client):
        items = [b"%d" % number for number in range(50)] + [b"x" * 1_000_000]
        assert client.put("by_thrift", items, 0) == 51
        found = client.get("by_thrift", 51, 0, 60_000)
        assert [item.data for item in found] == items[: len(found)]
        rest = client.get("by_thrift", 51, 0, 60_000) if len(found) < 51 else []
        assert [item.data for item in found + rest] == items
        assert client.confirm("by_thrift", {item.id for item in found + rest}) == 51
        assert client.peek("by_thrift").items == 0
        assert client.get_version()


@pytest.mark.parametrize("name", ["run_completed", "complete_result_1mib", "schedule_complete_before_due"])
def test_conversations_of_workq_are_the_same(served: Served, name: str) -> None:
    """As they were recorded from the original server, each connection under TLS."""
    (case,) = [case for case in json.loads(CASES.read_text("utf-8")) if case["name"] == name]
    with ExitStack() as stack:
        socks: dict[str, ssl.SSLSocket] = {}
        for step in case["steps"]:
            if step["conn"] not in socks:
                socks[step["conn"]] = stack.enter_context(closing(served.connect("workq")))
            sock = socks[step["conn"]]
            sock.sendall(said(step["send"]))
            if step.get("expect_regex"):
                continue
            wanted, heard = said(step.get("expect")), b""
            while len(heard) < len(wanted) and (piece := sock.recv(1 << 20)):
                heard += piece
            assert heard == wanted


def said(value: Any) -> bytes:
    """Text, a list of parts, {"repeat", "times"}, or nothing."""
    if isinstance(value, list):
        return b"".join(said(part) for part in value)
    if isinstance(value, dict):
        return said(value["repeat"]) * int(value["times"])
    return (value or "").encode("latin-1")


@pytest.mark.programs("openssl")
def test_openssl_adds_a_job_and_deletes_it(served: Served) -> None:
    id = "98e8ec83-3d5a-4d9e-9c0b-ab17f7f33e28"
    heard = served.agreed("workq", "-quiet", said=f"add {id} mail 60 600 1\r\nx\r\ndelete {id}\r\nnonsense\n".encode())
    assert "+OK\r\n+OK\r\n" in heard
