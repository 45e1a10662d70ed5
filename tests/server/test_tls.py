"""TLS on real sockets: what is served, what is refused and how that reads in the log."""

from __future__ import annotations

import itertools
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtensionOID
from hypothesis import given
from hypothesis import strategies as st

from staniel.broker.config.schema import TlsSettings
from staniel.broker.config.toml import ConfigError
from staniel.server.certificates import make_context
from staniel.server.timeouts import Grace
from staniel.server.tls_socket import (
    CONTROL_BYTES_MAX,
    EMPTY_RECORDS_MAX,
    RECORD_HEADER_BYTES,
    RecordEnds,
    TlsSocket,
)
from tests.support.certificates import Authority, Files, self_signed
from tests.support.process import Server, run_staniel, running, until
from tests.support.wire import stats

LOCAL = "127.0.0.1"


class Place:
    """A folder with an authority, and the files of a server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder)
        self.files = self.authority.issue("server")

    def config(self, more: str = "", tables: str = "[memcache]\ntls_port = 0\n") -> str:
        paths = f'certificate = "{self.files.certificate}"\nkey = "{self.files.key}"\n'
        return f"[tls]\n{paths}{more}\n{tables}"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def server(place: Place) -> Iterator[Server]:
    with running(place.folder / "server", config=place.config()) as started:
        yield started


def context(place: Place, client: Files | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(place.authority.path))
    if client is not None:
        made.load_cert_chain(client.certificate, client.key)
    return made


@contextmanager
def connected(server: Server, wanted: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
    with (
        closing(socket.create_connection((LOCAL, server.second_port), 30)) as plain,
        closing(wanted.wrap_socket(plain, server_hostname="localhost")) as sock,
    ):
        yield sock


def ask(sock: ssl.SSLSocket, line: bytes, end: bytes = b"\r\n") -> bytes:
    sock.sendall(line)
    return hear(sock, end)


def hear(sock: socket.socket, end: bytes) -> bytes:
    heard = b""
    while not heard.endswith(end):
        piece = sock.recv(65536)
        assert piece, f"the end, after {heard[-100:]!r}"
        heard += piece
    return heard


def refused(server: Server, why: str) -> bool:
    return until(lambda: any("tls.refused" in line and why in line for line in server.stderr.splitlines()))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_plain_and_tls_clients_share_queues(place: Place, server: Server, version: ssl.TLSVersion) -> None:
    wanted = context(place)
    wanted.minimum_version = wanted.maximum_version = version
    with connected(server, wanted) as sock, closing(socket.create_connection(server.address, 30)) as plain:
        assert ask(sock, b"set q 0 0 5\r\nhello\r\n") == b"STORED\r\n"
        plain.sendall(b"get q\r\n")
        assert hear(plain, b"END\r\n") == b"VALUE q 0 5\r\nhello\r\nEND\r\n"


def test_what_is_older_than_1_2_is_refused(place: Place, server: Server) -> None:
    wanted = context(place)
    with pytest.warns(DeprecationWarning, match="TLS"):
        wanted.minimum_version = wanted.maximum_version = ssl.TLSVersion.TLSv1_1
    wanted.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises((ssl.SSLError, OSError)), connected(server, wanted):
        pass
    assert refused(server, "protocol")


def test_a_pipeline_of_long_and_short_requests_is_answered_in_order(place: Place, server: Server) -> None:
    long = b"x" * 3_000_000
    count = 200
    said = b"".join([b"set a 0 0 %d\r\n%b\r\n" % (size, b"y" * size) for size in range(count)])
    with connected(server, context(place)) as sock:
        sock.sendall(said + b"set b 0 0 %d\r\n%b\r\n" % (len(long), long))
        assert hear(sock, b"STORED\r\n" * (count + 1)) == b"STORED\r\n" * (count + 1)
        sock.sendall(b"get a\r\n" * count + b"get b/open\r\nget b/close\r\n")
        heard = hear(sock, b"x\r\nEND\r\nEND\r\n")
        sizes = [b"VALUE a 0 %d\r\n%b\r\nEND\r\n" % (size, b"y" * size) for size in range(count)]
        assert heard == b"".join(sizes) + b"VALUE b/open 0 %d\r\n%b\r\nEND\r\nEND\r\n" % (len(long), long)


def test_a_client_that_does_not_read_holds_back_itself_alone(place: Place, server: Server) -> None:
    item = b"z" * 1_000_000
    with connected(server, context(place)) as slow, connected(server, context(place)) as other:
        assert ask(slow, b"set q 0 0 %d\r\n%b\r\n" % (len(item), item)) == b"STORED\r\n"
        slow.sendall(b"get q/peek\r\n" * 40)
        assert ask(other, b"set r 0 0 1\r\na\r\n") == b"STORED\r\n"
        wanted = (b"VALUE q/peek 0 %d\r\n%b\r\nEND\r\n" % (len(item), item)) * 40
        heard = bytearray()
        while len(heard) < len(wanted):
            heard += slow.recv(1 << 20)
        assert heard == wanted


def shake_hands(sock: socket.socket, tls: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
    """What ends the handshake on our side is not sent yet: the caller adds to it."""
    while True:
        try:
            tls.do_handshake()
            return
        except ssl.SSLWantReadError:
            sock.sendall(outgoing.read())
            incoming.write(sock.recv(65536))


def test_what_comes_with_the_end_of_the_handshake_is_answered(place: Place, server: Server) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context(place).wrap_bio(incoming, outgoing, server_hostname="localhost")
    with closing(socket.create_connection((LOCAL, server.second_port), 30)) as sock:
        shake_hands(sock, tls, incoming, outgoing)
        tls.write(b"version\r\n")
        sock.sendall(outgoing.read())  # the last of the handshake, and the first request
        incoming.write(sock.recv(65536))
        assert tls.read(100).startswith(b"VERSION ")


def test_a_client_that_says_all_at_once_and_leaves_is_served(place: Place, server: Server) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context(place).wrap_bio(incoming, outgoing, server_hostname="localhost")
    with closing(socket.create_connection((LOCAL, server.second_port), 30)) as sock:
        shake_hands(sock, tls, incoming, outgoing)
        tls.write(b"set q 0 0 1\r\na\r\n")
        with pytest.raises(ssl.SSLWantReadError):
            tls.unwrap()
        sock.sendall(outgoing.read())  # the last of the handshake, a request and close_notify
        sock.shutdown(socket.SHUT_WR)
        while data := sock.recv(65536):
            incoming.write(data)
        assert tls.read(100) == b"STORED\r\n"


def test_close_notify_and_an_end_without_it_give_back_what_was_open(place: Place, server: Server) -> None:
    with connected(server, context(place)) as looker:
        ask(looker, b"set q 0 0 1\r\na\r\n")
        with connected(server, context(place)) as polite:
            assert ask(polite, b"get q/open\r\n", b"END\r\n").startswith(b"VALUE")
            with closing(polite.unwrap()):
                pass
        assert ask(looker, b"get q/t=2000/open\r\n", b"END\r\n").startswith(b"VALUE")
        assert ask(looker, b"get q/abort\r\n") == b"END\r\n"
        with connected(server, context(place)) as rude:
            assert ask(rude, b"get q/open\r\n", b"END\r\n").startswith(b"VALUE")
            with closing(socket.socket(fileno=rude.detach())):
                pass
        assert ask(looker, b"get q/t=2000/open\r\n", b"END\r\n").startswith(b"VALUE")


def test_the_server_says_goodbye(place: Place, server: Server) -> None:
    with connected(server, context(place)) as sock:
        sock.suppress_ragged_eofs = False
        sock.sendall(b"version\r\nquit\r\n")
        assert hear(sock, b"\r\n").startswith(b"VERSION ")
        assert sock.recv(100) == b""


def test_plain_text_on_the_tls_port_is_named_and_not_too_often(server: Server) -> None:
    for _ in range(50):
        with closing(socket.create_connection((LOCAL, server.second_port), 30)) as sock:
            sock.sendall(b"get q\r\n")
            assert sock.recv(100) == b""
    assert refused(server, "plain text on a TLS port")
    assert server.stderr.count("plain text") <= 20


@pytest.mark.parametrize("times", range(5))
def test_tls_on_the_plain_port_is_named(place: Place, server: Server, times: int) -> None:
    with closing(socket.create_connection(server.address, 30)) as plain, pytest.raises((ssl.SSLError, OSError)):
        context(place).wrap_socket(plain, server_hostname="localhost")
    assert until(lambda: "session.refused" in server.stderr and "TLS on a plain port" in server.stderr)


@pytest.mark.parametrize(
    "garbage",
    [b"\x16", b"\x16\x03\x01\xff\xff" + b"\0" * 70_000, b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00", b"\x16" * 200_000],
)
def test_garbage_ends_alone(place: Place, server: Server, garbage: bytes) -> None:
    with closing(socket.create_connection((LOCAL, server.second_port), 30)) as sock:
        try:
            sock.sendall(garbage)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):
                pass
        except OSError:
            pass
    assert until(lambda: "tls.refused" in server.stderr)
    with connected(server, context(place)) as sock:
        assert ask(sock, b"version\r\n").startswith(b"VERSION ")


def test_garbage_behind_a_handshake_ends_that_client(place: Place, server: Server) -> None:
    with closing(socket.create_connection((LOCAL, server.second_port), 30)) as plain:
        sock = context(place).wrap_socket(plain, server_hostname="localhost")
        assert ask(sock, b"version\r\n").startswith(b"VERSION ")
        raw = socket.socket(fileno=sock.detach())
        with closing(raw):
            raw.settimeout(30)
            raw.sendall(b"\x17\x03\x03\x00\x20" + b"a" * 32)
            while raw.recv(65536):
                pass
    with connected(server, context(place)) as other:
        assert ask(other, b"version\r\n").startswith(b"VERSION ")


def test_half_a_handshake_ends_in_time_and_others_connect_meanwhile(place: Place) -> None:
    with running(place.folder / "server", config=place.config('handshake_timeout = "3s"')) as server:
        halves = [socket.create_connection((LOCAL, server.second_port), 30) for _ in range(200)]
        try:
            for sock in halves[::2]:
                sock.sendall(b"\x16\x03\x01")
            with connected(server, context(place)) as other:
                assert ask(other, b"version\r\n").startswith(b"VERSION ")
            assert all(sock.recv(1) == b"" for sock in halves)
        finally:
            for sock in halves:
                sock.close()
        assert refused(server, "handshake_timeout")


def test_a_server_that_stood_still_hears_what_was_said_in_a_handshake_meanwhile(place: Place) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context(place).wrap_bio(incoming, outgoing, server_hostname="localhost")
    with (
        running(place.folder / "server", config=place.config('handshake_timeout = "3s"')) as server,
        closing(socket.create_connection((LOCAL, server.second_port), 30)) as begun,
        closing(socket.create_connection((LOCAL, server.second_port), 30)) as silent,
    ):
        with suppress(ssl.SSLWantReadError):
            tls.do_handshake()
        begun.sendall(outgoing.read(20))
        with connected(server, context(place)) as other:  # so both before it have been let in
            assert ask(other, b"version\r\n").startswith(b"VERSION ")
        server.signal(signal.SIGSTOP)
        begun.sendall(outgoing.read())
        time.sleep(3.5)
        server.signal(signal.SIGCONT)
        incoming.write(begun.recv(65536))
        shake_hands(begun, tls, incoming, outgoing)
        tls.write(b"version\r\n")
        begun.sendall(outgoing.read())
        incoming.write(begun.recv(65536))
        assert tls.read(100).startswith(b"VERSION ")
        assert silent.recv(1) == b""
        assert refused(server, "handshake_timeout")


def test_a_client_that_goes_on_talking_without_an_end_of_its_handshake_ends_too() -> None:
    grace = Grace(1000)
    assert [grace.until_ms(heard_ms) for heard_ms in (900, 1900, 2900, 3900)] == [1900, 2900, 3900, 0]


@pytest.mark.programs("openssl")
def test_a_renegotiation_is_refused(place: Place, server: Server) -> None:
    command = ["openssl", "s_client", "-connect", f"{LOCAL}:{server.second_port}", "-tls1_2"]
    with subprocess.Popen(
        [*command, "-CAfile", str(place.authority.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as client:  # fmt: skip
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write(b"R\n")
        client.stdin.close()
        assert b"no renegotiation" in client.stdout.read()


@pytest.mark.programs("openssl")
def test_openssl_reads_and_writes(place: Place, server: Server) -> None:
    command = ["openssl", "s_client", "-connect", f"{LOCAL}:{server.second_port}", "-quiet", "-verify_return_error"]
    said = b"set q 0 0 1\r\na\r\nget q\r\nquit\r\n"
    found = subprocess.run(
        [*command, "-CAfile", str(place.authority.path)], input=said, capture_output=True, timeout=60
    )
    assert found.stdout == b"STORED\r\nVALUE q 0 1\r\na\r\nEND\r\n"


def serial(server: Server) -> bytes:
    """Of the certificate that the server shows now."""
    with closing(socket.create_connection((LOCAL, server.second_port), 30)) as plain:
        wanted = ssl._create_unverified_context()
        with closing(wanted.wrap_socket(plain)) as sock:
            shown = sock.getpeercert(binary_form=True)
        assert shown is not None
        return shown


def test_a_reload_brings_a_new_certificate_and_a_broken_one_is_refused(place: Place, server: Server) -> None:
    first = serial(server)
    with connected(server, context(place)) as before:
        place.authority.issue("server")  # into the same files
        server.signal(signal.SIGHUP)
        assert until(lambda: serial(server) != first)
        second = serial(server)
        place.files.key.write_text("no key")
        server.signal(signal.SIGHUP)
        assert until(lambda: "config.refused" in server.stderr)
        assert "tls.certificate: no certificate with its key" in server.stderr
        assert f"there is no private key in PEM in {place.files.key}" in server.stderr
        assert serial(server) == second
        assert ask(before, b"reload\r\n").startswith(b"SERVER_ERROR tls.certificate")
        assert ask(before, b"version\r\n").startswith(b"VERSION ")


ENCRYPTED = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("certificate", "", "there is no certificate in PEM in "),
        ("certificate", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n", "there is no certificate in PEM in "),
        ("certificate", "-----BEGIN CERTIFICATE-----\nAA", "one of them is damaged"),
        ("key", "", "there is no private key in PEM in "),
        ("key", ENCRYPTED, "the key in "),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_what_it_lacks(place: Place, name: str, text: str, why: str) -> None:
    path = getattr(place.files, name)
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        make_context(TlsSettings(certificate=str(place.files.certificate), key=str(place.files.key)))
    assert why in str(caught.value) and (not why.endswith(" in ") or str(path) in str(caught.value))


def test_certificates_of_clients_are_asked_for_and_checked(place: Place) -> None:
    stranger = Authority(place.folder, "stranger")
    good = place.authority.issue("worker")
    old = place.authority.issue("worker", "old", is_expired=True)
    config = place.config(f'client_ca = "{place.authority.path}"\nclient_certificates = "required"')
    with running(place.folder / "server", config=config) as server:
        with connected(server, context(place, good)) as sock:
            assert ask(sock, b"version\r\n").startswith(b"VERSION ")
        wrong = [
            (old, "certificate has expired"),
            (stranger.issue("worker", "foreign"), "unable to get local issuer certificate"),
            (self_signed(place.folder, "worker"), "self"),
            (None, "peer did not return a certificate"),
        ]
        for files, why in wrong:
            with pytest.raises((ssl.SSLError, OSError)), connected(server, context(place, files)) as sock:
                ask(sock, b"version\r\n")
            assert refused(server, why)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (ExtensionOID.SUBJECT_ALTERNATIVE_NAME, b"\x82\x04caf\xe9"),  # a DNS name
        (ExtensionOID.SUBJECT_ALTERNATIVE_NAME, b"\x81\x04caf\xe9"),  # an address of mail
        (ExtensionOID.SUBJECT_ALTERNATIVE_NAME, b"\x86\x04caf\xe9"),  # a URI
        (ExtensionOID.AUTHORITY_INFORMATION_ACCESS, b"\x30\x10\x06\x08+\x06\x01\x05\x05\x070\x01\x86\x04caf\xe9"),
    ],
)
def test_a_clients_certificate_with_text_that_is_no_utf_8_ends_that_client_alone(
    place: Place, version: ssl.TLSVersion, oid: x509.ObjectIdentifier, text: bytes
) -> None:
    value = b"\x30" + bytes([len(text)]) + text
    files = place.authority.issue("worker", extension=x509.UnrecognizedExtension(oid, value))
    with running(place.folder / "server", config=place.config(f'client_ca = "{place.authority.path}"')) as server:
        odd = context(place, files)
        odd.maximum_version = version
        with pytest.raises((OSError, AssertionError)), connected(server, odd) as sock:
            ask(sock, b"version\r\n")
        assert refused(server, "text that is not UTF-8")
        with connected(server, context(place)) as sock:
            assert ask(sock, b"version\r\n").startswith(b"VERSION ")


def test_a_clients_certificate_of_another_curve_is_taken_by_1_3_alone(place: Place) -> None:
    """The group of the key exchange is P-256, and TLS 1.2 holds certificates against that."""
    files = place.authority.issue("worker", curve=ec.SECP384R1())
    config = place.config(f'client_ca = "{place.authority.path}"\nclient_certificates = "required"')
    with running(place.folder / "server", config=config) as server:
        wanted = context(place, files)
        with connected(server, wanted) as sock:
            assert ask(sock, b"version\r\n").startswith(b"VERSION ")
        wanted.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises((ssl.SSLError, OSError)), connected(server, wanted) as sock:
            ask(sock, b"version\r\n")
        assert refused(server, "wrong curve")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_servers_certificate_may_be_of_another_curve(place: Place, version: ssl.TLSVersion) -> None:
    place.files = place.authority.issue("server", curve=ec.SECP384R1())
    wanted = context(place)
    wanted.minimum_version = wanted.maximum_version = version
    with running(place.folder / "server", config=place.config()) as server, connected(server, wanted) as sock:
        assert ask(sock, b"version\r\n").startswith(b"VERSION ")


def test_every_listener_speaks_it(place: Place) -> None:
    tables = "[memcache]\ntls_port = 0\n[text]\ntls_port = 0\n[workq]\nport = 0\ntls_port = 0\n[admin]\ntls_port = 0\n"
    with running(place.folder / "server", config=place.config(tables=tables)) as server:
        where = server.greeting.split(" listens on ")[1].split(", spool")[0].split(", ")
        ports = [int(each.rpartition(":")[2]) for each in where if each.startswith("tls:")]
        asked = [
            (b"version\r\n", b"VERSION "),
            (b"put q:\nhello\n\n", b"+1"),
            (b"nonsense\r\n", b"-"),
            (b"GET /ping HTTP/1.1\r\nhost: localhost\r\n\r\n", b"HTTP/1.1 200"),
        ]
        for port, (line, wanted) in zip(ports, asked, strict=True):
            with (
                closing(socket.create_connection((LOCAL, port), 30)) as plain,
                closing(context(place).wrap_socket(plain, server_hostname="localhost")) as sock,
            ):
                sock.sendall(line)
                assert sock.recv(1000).startswith(wanted)


def test_a_stop_answers_and_says_goodbye(place: Place, server: Server) -> None:
    with connected(server, context(place)) as sock:
        sock.suppress_ragged_eofs = False
        assert ask(sock, b"set q 0 0 1\r\na\r\n") == b"STORED\r\n"
        sock.sendall(b"get r/t=60000\r\n")
        assert until(lambda: stats(server.address).get("queue_r_waiters") == "1")
        server.signal(signal.SIGTERM)
        assert hear(sock, b"END\r\n") == b"END\r\n"
        assert sock.recv(10) == b""
        assert server.wait() == 0


def test_what_is_wrong_with_the_files_stops_the_start(place: Place, tmp_path: Path) -> None:
    config = tmp_path / "wrong.toml"
    other = place.authority.issue("other")
    mixed = (
        f'[tls]\ncertificate = "{place.files.certificate}"\nkey = "{other.key}"\n[memcache]\nport = 0\ntls_port = 0\n'
    )
    for text, why in [
        ("[memcache]\nport = 0\ntls_port = 0\n", "tls.certificate: expected a file"),
        (mixed, "key values mismatch"),
        (mixed.replace(str(other.key), "nowhere"), "tls.key"),
        (place.config(f'client_ca = "{other.key}"'), "tls.client_ca: no certificates"),
    ]:
        config.write_text(text)
        found = run_staniel("serve", "--config", str(config), "--spool", str(tmp_path / "spool"), "--port", "0")
        assert found.returncode == 1
        assert why in found.stderr
        checked = run_staniel("config", "check", str(config))
        assert checked.returncode == 1
        assert why in checked.stderr


class Deaf:
    """The socket of a client that sends one byte after the other, and takes `count` bytes and no more."""

    def __init__(self, count: int) -> None:
        self._count = count

    def fileno(self) -> int:
        return -1

    def recv(self, count: int, /) -> bytes:
        return b"x"

    def send(self, data: bytes | memoryview, /) -> int:
        if not self._count:
            raise BlockingIOError
        sent = min(self._count, len(data))
        self._count -= sent
        return sent

    def shutdown(self, how: int, /) -> None:
        raise AssertionError

    def close(self) -> None:
        raise AssertionError


class Answering:
    """OpenSSL as it meets a client that asks for key updates: each read leaves an answer."""

    def __init__(self, leaving: ssl.MemoryBIO) -> None:
        self._leaving = leaving

    def read(self, count: int) -> bytes:
        self._leaving.write(bytes(27))
        raise ssl.SSLWantReadError

    def pending(self) -> int:
        return 0

    def write(self, data: memoryview) -> int:
        self._leaving.write(data)
        return len(data)


@pytest.mark.parametrize("is_taking", [False, True])
def test_answers_of_tls_that_a_client_does_not_read_are_bounded(is_taking: bool) -> None:
    below = Deaf(1000)
    sock = TlsSocket(below, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    sock._tls = Answering(sock._leaving)  # type: ignore[assignment]
    if is_taking:
        assert sock.send(bytes(200_000)) == 0, "the socket is full within the first record"
    for _ in range(2 * CONTROL_BYTES_MAX // 27 + 40):
        try:
            sock.recv(1000)
        except BlockingIOError:
            continue
        except ConnectionResetError:
            break
    else:
        raise AssertionError(f"{sock._leaving.pending} bytes are kept")
    assert sock._leaving.pending < CONTROL_BYTES_MAX + 100


KEY_UPDATE_BYTES = 27  # in TLS 1.3, with its header


class Updating(Deaf):
    """One that sends key updates, and nothing else, as fast as they are read."""

    def recv(self, count: int, /) -> bytes:
        record = b"\x17\x03\x03\x00\x16" + bytes(KEY_UPDATE_BYTES - RECORD_HEADER_BYTES)
        return record * (count // KEY_UPDATE_BYTES)


class Silent:
    """OpenSSL to which nothing but key updates is given. `seen`: bytes of them."""

    def __init__(self, arrived: ssl.MemoryBIO) -> None:
        self._arrived = arrived
        self.seen = 0

    def read(self, count: int) -> bytes:
        self.seen += len(self._arrived.read())
        raise ssl.SSLWantReadError

    def pending(self) -> int:
        return 0


def test_a_client_that_sends_key_updates_without_end_is_hung_up_on() -> None:
    sock = TlsSocket(Updating(0), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    sock._tls = silent = Silent(sock._arrived)  # type: ignore[assignment]
    with pytest.raises(ConnectionResetError):
        sock.recv(1 << 16)
    assert silent.seen <= 2 * EMPTY_RECORDS_MAX * KEY_UPDATE_BYTES, "noticed before all of them were worked on"


def test_the_shortest_requests_are_no_empty_records(place: Place, server: Server) -> None:
    with connected(server, context(place)) as sock:
        for byte in b"get nothing\r\n" * 100:
            sock.send(bytes([byte]))
        heard = b""
        while len(heard) < 500:
            heard += sock.recv(65536)
        assert heard == b"END\r\n" * 100


@given(st.lists(st.integers(0, 70), max_size=20), st.lists(st.integers(1, 90), min_size=1, max_size=30))
def test_the_ends_of_records_are_found_wherever_the_stream_is_cut(sizes: list[int], cuts: list[int]) -> None:
    stream, wanted = b"", list[int]()
    for size in sizes:
        stream += b"\x17\x03\x03" + size.to_bytes(2, "big") + b"\xff" * size
        wanted.append(len(stream))
    ends, found, at = RecordEnds(), list[int](), 0
    for cut in itertools.chain(cuts, [len(stream)]):
        found += [at + end for end in ends.find(stream[at : at + cut])]
        at = min(at + cut, len(stream))
    assert found == wanted


class Narrow(Deaf):
    """One that takes as many bytes as it is allowed, and hears what a client in memory says."""

    def __init__(self) -> None:
        super().__init__(0)
        self.to_client, self.to_server = ssl.MemoryBIO(), ssl.MemoryBIO()

    def allow(self, count: int) -> None:
        self._count += count

    def recv(self, count: int, /) -> bytes:
        if data := self.to_server.read(count):
            return data
        raise BlockingIOError

    def send(self, data: bytes | memoryview, /) -> int:
        sent = super().send(data)
        self.to_client.write(data[:sent])
        return sent


def test_what_a_client_can_have_read_counts_as_sent_and_nothing_else(place: Place) -> None:
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(place.files.certificate, place.files.key)
    below = Narrow()
    sock = TlsSocket(below, served)
    client = context(place).wrap_bio(below.to_client, below.to_server, server_hostname="localhost")
    below.allow(1 << 20)
    for _ in range(4):
        with suppress(ssl.SSLWantReadError):
            client.do_handshake()
        with suppress(BlockingIOError):
            sock.handshake(1 << 16)
    below.allow(-below._count)
    given = bytes(range(256)) * 1000
    sent, heard = 0, b""
    while sent < len(given):
        below.allow(7000)
        with suppress(BlockingIOError):
            sent += sock.send(memoryview(given)[sent:])
        with suppress(ssl.SSLWantReadError):
            while True:
                heard += client.read(1 << 16)
        assert len(heard) == sent
    assert heard == given
