"""Clients of other languages, each a script in `scripts/` that says line by line what it got."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.foreign_clients.foreign import NODE_MODULES, SCRIPTS
from tests.support.process import Server, until
from tests.support.wire import drain


def said(server: Server, *command: str) -> list[str]:
    """What the script wrote; its exit code must be 0."""
    environment = {**os.environ, "NODE_PATH": str(NODE_MODULES)}
    ended = subprocess.run(
        [*command, str(server.port)], capture_output=True, text=True, timeout=60, env=environment, cwd=SCRIPTS
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


PERL = [
    "1",
    "1",
    "1",
    "one",
    "two",
    "nothing",
    "two",
    "three",
    "nothing",
    "nothing",
    "42",
    "refused",
    "last",
    "deleted",
]


@pytest.mark.parametrize(
    "module",
    [
        pytest.param("Cache::Memcached", marks=pytest.mark.programs("perl:Cache::Memcached")),
        pytest.param("Cache::Memcached::Fast", marks=pytest.mark.programs("perl:Cache::Memcached::Fast")),
    ],
)
def test_perl_puts_takes_and_reads_reliably(server: Server, module: str) -> None:
    assert said(server, "perl", "memcached.pl", module) == PERL
    assert drain(server.address, "jobs") == []


@pytest.mark.parametrize(
    "extension",
    [
        pytest.param("Memcached", marks=pytest.mark.programs("php:memcached")),
        pytest.param("Memcache", marks=pytest.mark.programs("php:memcache")),
    ],
)
def test_php_puts_takes_reads_reliably_and_gets_its_types_back(server: Server, extension: str) -> None:
    stored = ["true"] * 3
    reliable = ['"one"', '"two"', "nothing", '"two"', '"three"', "nothing", "nothing"]
    typed = ["42", "2.5", "true", '{"answer":[42]}']
    ending = ["nothing", '"last"', "true", "nothing"]
    assert said(server, "php", "memcached.php", extension) == stored + reliable + typed + ending


@pytest.mark.programs("node", "node:memcached")
def test_node_puts_takes_reads_reliably_and_gets_its_types_back(server: Server) -> None:
    reliable = ['"one"', '"two"', "nothing", '"two"', '"three"', "nothing", "nothing"]
    typed = ["42", "true", '{"answer":[42]}']
    ending = ['"refused"', '"last"', "true"]
    assert said(server, "node", "memcached.js") == ["true"] * 3 + reliable + typed + ending


@pytest.mark.programs("ruby:dalli")
def test_a_client_of_the_binary_protocol_is_closed_at_once_with_one_line_of_log(server: Server) -> None:
    assert said(server, "ruby", "dalli.rb") == ["no server"]
    assert until(lambda: "binary protocol" in server.stderr)
    assert {line.count("binary protocol") for line in server.stderr.splitlines() if "binary" in line} == {1}
