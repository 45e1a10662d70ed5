"""Addresses of both families: `localhost` is two addresses, and one port on 0.0.0.0 and on [::] is a usual pair."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from staniel.broker.config.load import parse
from staniel.server import sockets
from staniel.server.sockets import BoundSockets
from tests.support.transcripts import free_port


def bound(folder: Path, config: str) -> list[tuple[str, int]]:
    with BoundSockets(parse(f'server.spool = "{folder}/spool"\n{config}'.encode(), "")) as made:
        return [sock.getsockname()[:2] for sock, _ in made.sockets]


def test_localhost_is_the_address_of_each_family_on_one_port(tmp_path: Path) -> None:
    (first, port), (second, same) = bound(tmp_path, 'server.host = "localhost"\nmemcache.port = 0\n')
    assert (first, second) == ("127.0.0.1", "::1") and port == same != 0


def test_a_machine_without_ipv6_has_the_other_one_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets.socket, "AF_INET6", 12345)
    assert len(bound(tmp_path, 'server.host = "localhost"\nmemcache.port = 0\n')) == 1


def test_one_port_on_all_addresses_of_each_family(tmp_path: Path) -> None:
    port = free_port()
    config = f'server.open_network = true\nmemcache.listen = ["0.0.0.0:{port}", "[::]:{port}"]\n'
    assert bound(tmp_path, config) == [("0.0.0.0", port), ("::", port)]


def test_ipv6_alone_on_a_port_still_serves_ipv4(tmp_path: Path) -> None:
    port = free_port()
    config = parse(f'server.open_network = true\nmemcache.listen = ["[::]:{port}"]\n'.encode(), "")
    with BoundSockets(config) as made:
        made.sockets[0][0].listen()
        socket.create_connection(("127.0.0.1", port), 30).close()
