"""Names that would not fit a line: no protocol makes a queue of one, and what an old spool has is printed escaped."""

from __future__ import annotations

import base64
import socket
import struct
from pathlib import Path

import memcache

from tests.support.process import Server, running
from tests.support.transcripts import free_port
from tests.support.wire import Wire, stats

SPLITTING = "a\r\nSTAT forged 1\r\nEND"
ODD = ["with blank", "tab\tname", SPLITTING, "del\x7f"]


def encoded(name: str, charset: str = "latin-1") -> bytes:
    return base64.b64encode(name.encode(charset))


def lines_until_end(wire: Wire, request: bytes) -> list[bytes]:
    wire.say(request + b"\r\n")
    return list(iter(wire.line, b"END"))


def thrift_put(address: tuple[str, int], name: str) -> bytes:
    """The answer to a put by a hand-made call, framed."""
    queue = name.encode()
    call = struct.pack("!iI", -2147418111, 3) + b"put" + struct.pack("!I", 7)
    call += b"\x0b" + struct.pack("!HI", 1, len(queue)) + queue
    call += b"\x0f" + struct.pack("!HBI", 2, 11, 1) + struct.pack("!I", 1) + b"x"
    call += b"\x08" + struct.pack("!Hi", 3, 0) + b"\x00"
    with socket.create_connection(address, 60) as sock:
        sock.sendall(struct.pack("!I", len(call)) + call)
        (size,) = struct.unpack("!I", sock.recv(4, socket.MSG_WAITALL))
        return sock.recv(size, socket.MSG_WAITALL)


def test_no_protocol_makes_a_queue_with_such_a_name(tmp_path: Path) -> None:
    port = free_port()
    with running(tmp_path, config=f"[thrift]\nport = {port}\n") as server, Wire(server.address) as wire:
        for name in ODD:
            refusal = wire.ask(b"ms %b 1 b\r\nx" % encoded(name))
            assert refusal.startswith(b"CLIENT_ERROR a queue name cannot hold blanks"), name
            assert wire.ask(b"mg %b v b" % encoded(name)).startswith(b"CLIENT_ERROR a queue name cannot hold blanks")
            assert b"a queue name cannot hold blanks" in thrift_put(("127.0.0.1", port), name), name
        assert b"a queue name cannot hold blanks" in thrift_put(("127.0.0.1", port), "漢")
        assert b"cannot" not in thrift_put(("127.0.0.1", port), "plain")
        assert wire.ask(b"set a\tb 0 0 1\r\nx").startswith(b"CLIENT_ERROR")
        assert lines_until_end(wire, b"dump_stats")[0] == b"queue 'plain' {"


def test_queues_that_a_spool_has_under_such_names_are_served_and_printed_escaped(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        with Wire(server.address) as wire:
            for number in range(len(ODD)):
                wire.put(f"q{number}", b"item%d" % number)
        server.stop()
        for number, name in enumerate(ODD):
            (server.spool / f"q{number}").rename(server.spool / name)
        server.start()
        with Wire(server.address) as wire:
            heard = lines_until_end(wire, b"stats")
            assert all(line.isascii() and len(line.split(b" ")) == 3 for line in heard), heard
            assert b"STAT queue_with%20blank_items 1" in heard and b"STAT forged 1" not in heard
            assert b"STAT queue_a%0D%0ASTAT%20forged%201%0D%0AEND_items 1" in heard
            for request in (b"dump_stats", b"dump_config"):
                blocks = [line for line in lines_until_end(wire, request) if line.startswith(b"queue ")]
                assert b"queue 'a%0D%0ASTAT%20forged%201%0D%0AEND' {" in blocks and len(blocks) == len(ODD)
            for number, name in enumerate(ODD):
                assert wire.ask(b"ms %b 4 b\r\nmore" % encoded(name)) == b"HD"
                assert wire.ask(b"mg %b v b" % encoded(name)) == b"VA 5"
                assert wire.line() == b"item%d" % number


def test_get_stats_of_python_memcached_understands_a_server_with_any_name(server: Server) -> None:
    with Wire(server.address) as wire:
        assert wire.ask("set größe 0 0 1\r\nx".encode("latin-1")) == b"STORED"
        assert wire.ask("set größe 0 0 1\r\nx".encode()) == b"STORED"
    client = memcache.Client([f"127.0.0.1:{server.port}"], socket_timeout=30)
    ((_, found),) = client.get_stats()
    client.disconnect_all()
    assert found["queue_gr%F6%DFe_items"] == found["queue_gr%C3%B6%C3%9Fe_items"] == "1"
    assert found == {**found, **{name: stats(server.address)[name] for name in found if "items" in name}}
