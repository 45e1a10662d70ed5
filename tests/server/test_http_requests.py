"""What any web page can make a browser send to loopback is hung up on, before a word of it is executed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.process import running, until
from tests.support.transcripts import free_port
from tests.support.wire import Wire

BODY = b"flush_all\r\nflush q\r\ndelete q\r\nshutdown\r\n"
POST = b"POST / HTTP/1.1\r\nHost: 127.0.0.1:22133\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%b" % (
    len(BODY),
    BODY,
)


def free_ports(count: int) -> list[int]:
    return [free_port() for _ in range(count)]


@pytest.mark.parametrize("dialect", ["memcached", "kestrel"])
def test_a_post_is_hung_up_on_at_every_listener_and_leaves_few_lines(tmp_path: Path, dialect: str) -> None:
    text, workq = free_ports(2)
    config = f"memcache.dialect = '{dialect}'\ntext.port = {text}\nworkq.port = {workq}\n"
    with running(tmp_path, config=config) as server, Wire(server.address) as polite:
        assert polite.put("q", b"kept") == b"STORED"
        began_s = time.monotonic()
        for _ in range(20):
            for port in (server.port, text, workq):
                with Wire(("127.0.0.1", port)) as wire:
                    assert wire.say(POST).closed_by_server()
        assert polite.get("q") == b"kept"
        assert until(lambda: "HTTP" in server.stderr)
        line, *more = [line for line in server.stderr.splitlines() if "HTTP" in line]
        assert len(more) <= int(time.monotonic() - began_s) // 10, "no more than one in ten seconds"
        assert " session.refused " in line and "client=127.0.0.1:" in line and 'why="an HTTP request"' in line


def test_the_rest_of_a_post_that_comes_later_is_not_read_as_commands(tmp_path: Path) -> None:
    with running(tmp_path) as server, Wire(server.address) as wire, Wire(server.address) as polite:
        assert polite.put("q", b"kept") == b"STORED"
        wire.say(b"POST / HT")
        assert polite.ask(b"version").startswith(b"VERSION")
        assert wire.say(b"TP/1.1\r\n" + BODY).closed_by_server()
        assert polite.get("q") == b"kept"
