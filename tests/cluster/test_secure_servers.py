"""Real members under TLS: towards each other, towards clients, and to an etcd with https and logins."""

from __future__ import annotations

import signal
import socket
import ssl
from pathlib import Path

import pytest

from staniel.broker.config.load import ConfigError, parse
from tests.cluster.servers import MemberServer, Servers, cluster
from tests.cluster.test_etcd import coded
from tests.cluster.test_servers import others, take_over
from tests.support.certificates import Authority, Files
from tests.support.process import run_staniel
from tests.support.transcripts import free_port

PASSWORD = "pässword"


def secured(folder: Path, authority: Authority, files: Files) -> str:
    """The settings of a member with TLS on all its ports."""
    password = folder / "password"
    password.write_text(f"{PASSWORD}\n")
    return (
        f'certificate = "{files.certificate}"\nkey = "{files.key}"\nca = "{authority.path}"\n'
        f'etcd_ca = "{authority.path}"\netcd_user = "staniel"\netcd_password_file = "{password}"\n'
        f'[tls]\ncertificate = "{files.certificate}"\nkey = "{files.key}"\n'
    )


def require_logins(servers: Servers) -> None:
    """Have etcd serve a user alone, who may use the keys of this cluster."""
    etcd = servers.etcd
    etcd.call("auth/user/add", name="root", password="secret")
    etcd.call("auth/user/grant", user="root", role="root")
    etcd.call("auth/role/add", name="of-test")
    grant = {"permType": "READWRITE", "key": coded(b"/staniel/test/"), "range_end": coded(b"/staniel/test0")}
    etcd.call("auth/role/grant", name="of-test", perm=grant)
    etcd.call("auth/user/add", name="staniel", password=PASSWORD)
    etcd.call("auth/user/grant", user="staniel", role="of-test")
    etcd.call("auth/enable")


def ask(port: int, authority: Authority, text: bytes) -> bytes:
    """Connect with TLS, and return the first line of the reply."""
    context = ssl.create_default_context(cafile=str(authority.path))
    plain = socket.create_connection(("127.0.0.1", port), 60)
    with context.wrap_socket(plain, server_hostname="localhost") as sock, sock.makefile("rb") as file:
        sock.sendall(text)
        return file.readline()


def use_ports(members: list[MemberServer]) -> dict[str, int]:
    """Give each member a port for clients with TLS."""
    ports = {member.name: free_port() for member in members}
    for member in members:
        config = member.config.read_text().replace("[memcache]", f"[memcache]\ntls_port = {ports[member.name]}")
        member.config.write_text(config)
    return ports


@pytest.mark.programs("etcd")
@pytest.mark.slow
def test_a_cluster_works_with_tls_and_logins_everywhere(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "members")
    files = authority.issue("member")
    settings = secured(tmp_path, authority, files)
    with cluster(tmp_path, count=2, settings=settings, min_in_sync=1, etcd_tls=authority.issue("etcd")) as servers:
        require_logins(servers)
        ports = use_ports(servers.members)
        old = servers.form()
        follower = others(servers, old)[0]
        put = b"set jobs 0 0 1\r\na\r\n"
        assert ask(ports[old.name], authority, put) == b"STORED\r\n"
        refused = f"SERVER_ERROR not the leader: 127.0.0.1:{old.port}\r\n".encode()
        assert ask(ports[follower.name], authority, put) == refused
        with socket.create_connection(("127.0.0.1", old.replication_port), 60) as stranger:
            stranger.sendall(b"staniel-cluster 1\n")
            assert stranger.recv(100) == b""
        files = authority.issue("member", "renewed")
        follower.config.write_text(follower.config.read_text().replace("member.", "renewed."))
        follower.signal(signal.SIGHUP)
        servers.wait_for(lambda: "config.reloaded" in follower.lines, "the certificate is renewed")
        assert ask(ports[follower.name], authority, put) == refused
        old.kill()
        new = take_over(servers, old)
        assert ask(ports[new.name], authority, b"get jobs\r\n") == b"VALUE jobs 0 1\r\n"


@pytest.mark.programs("etcd")
@pytest.mark.slow
def test_a_cluster_is_made_and_handed_over_by_orders_under_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.issue("member")
    settings = f'[tls]\ncertificate = "{files.certificate}"\nkey = "{files.key}"\n'
    with cluster(tmp_path, count=2, settings=settings, min_in_sync=1) as servers:
        ports = {member.name: free_port() for member in servers.members}
        for member in servers.members:
            config = member.config.read_text().replace("[admin]", f"[admin]\ntls_port = {ports[member.name]}")
            member.config.write_text(config)
            member.start()
        old, heir = servers.members

        def order(member: MemberServer, *words: str) -> str:
            url = f"https://localhost:{ports[member.name]}"
            ran = run_staniel(*words, "--url", url, "--ca", str(authority.path))
            assert ran.returncode == 0, ran.stderr
            return ran.stdout

        servers.wait_for(lambda: old.role == "waiting" and heir.role == "waiting", "both wait")
        assert order(old, "cluster", "init").startswith("cluster test is made, led by m0 ")
        servers.wait_until_whole()
        assert "in sync" in order(old, "cluster", "status")
        assert "NAME" in order(old, "queues")
        assert order(old, "handover").startswith("m1 leads ")
        servers.wait_until_whole()
        assert order(heir, "handover", "--to", "m0").startswith("m0 leads ")


def parsed(settings: str) -> None:
    text = '[cluster]\nname = "c"\nmember = "a"\nlisten = "h:1"\nadvertise = "h:2"\netcd = ["https://h:3"]\n'
    parse(f"{text}{settings}".encode(), "/etc")


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ('ca = "x"', "certificate"),
        ('certificate = "x"', "ca"),
        ('key = "x"', "certificate"),
        ('etcd_user = "x"', "etcd_password_file"),
        ('etcd_password_file = "x"', "etcd_user"),
        ('etcd_certificate = "x"', "etcd_ca"),
    ],
)
def test_settings_that_need_others_say_so(settings: str, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"cluster\.{key}"):
        parsed(settings)


def test_whole_settings_are_taken() -> None:
    parsed('certificate = "x"\nca = "y"\netcd_ca = "z"\netcd_user = "u"\netcd_password_file = "p"')


@pytest.mark.programs("etcd")
@pytest.mark.slow
def test_a_member_that_other_machines_reach_needs_certificates(tmp_path: Path) -> None:
    with cluster(tmp_path, count=1) as servers:
        member = servers[0]
        config = member.config.read_text()
        member.config.write_text(config.replace('listen = "127.0.0.1:', 'listen = "0.0.0.0:'))
        member.start()
        assert member.wait() == 1
        assert "members need no certificate" in member.lines
