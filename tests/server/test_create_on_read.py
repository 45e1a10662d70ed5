"""`create_on_read` as the configuration gives it, for each listener; and what each does without it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.server.test_http_requests import free_ports
from tests.support.process import running
from tests.support.thrift_calls import call
from tests.support.wire import Wire

THRIFT_GET = call("get", queue_name="by_thrift", max_items=1, timeout_msec=0, auto_abort_msec=0)


@pytest.mark.parametrize(
    ("memcache", "others", "made"),
    [
        ("", "", {"by_text", "by_thrift"}),
        ("create_on_read = true", "create_on_read = false", {"by_memcache"}),
        ("dialect = 'kestrel'", "", {"by_memcache", "by_text", "by_thrift"}),
        ("dialect = 'kestrel'\ncreate_on_read = false", "create_on_read = false", set()),
    ],
)
def test_a_read_makes_a_queue_where_the_listener_says_so(
    tmp_path: Path, memcache: str, others: str, made: set[str]
) -> None:
    text, thrift = free_ports(2)
    config = f"[memcache]\n{memcache}\n[text]\nport = {text}\n{others}\n[thrift]\nport = {thrift}\n{others}\n"
    with running(tmp_path, config=config) as server:
        with Wire(server.address) as wire:
            assert wire.ask(b"get by_memcache") == b"END"
        with Wire(("127.0.0.1", text)) as wire:
            assert wire.say(b"get by_text\n").line() == b"*"
        with socket.create_connection(("127.0.0.1", thrift), 60) as sock:
            sock.sendall(THRIFT_GET)
            assert sock.recv(1000)
        assert {path.name for path in server.spool.iterdir() if path.name.startswith("by_")} == made
