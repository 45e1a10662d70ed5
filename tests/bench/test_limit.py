"""The limit, the least that a server can do for a row of the benchmark: its replies, its file, its place in a run."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from staniel.bench.__main__ import main
from staniel.bench.harness.contestant import Sync
from staniel.bench.harness.process import Running, free_port, running
from staniel.bench.peers import generator, servers
from staniel.bench.peers.servers import LIMIT, PEERS, limit_program
from staniel.bench.peers.workloads import WORKLOADS, Mode, Workload
from tests.bench.test_bench import FAKE_QUEUE

CONTESTANT = next(peer for peer in PEERS if peer.name == LIMIT)
SECONDS_MAX = 60
TINY = Workload("tiny", Mode.PUT, conns=3, ops=60, peers=(LIMIT,))
MAIN_ROWS = (
    *("put", "get", "flood-50+50", "put-10x32", "get-10x32"),
    *("durable-1c", "durable-10c", "durable-100c", "durable-100q"),
)

cc = pytest.mark.programs("cc")


@pytest.fixture(params=Sync)
def limit(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Running]:
    with running(CONTESTANT, request.param, tmp_path, None) as server:
        yield server


class Peer:
    """A client that sends bytes and reads exactly what it expects."""

    def __init__(self, server: Running) -> None:
        self.sock = socket.create_connection(("127.0.0.1", server.port), SECONDS_MAX)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.sock.close()

    def hears(self, expected: bytes) -> bool:
        heard = b""
        while len(heard) < len(expected):
            more = self.sock.recv(len(expected) - len(heard))
            if not more:
                break
            heard += more
        assert heard == expected
        return True

    def ask(self, request: bytes, expected: bytes) -> bool:
        self.sock.sendall(request)
        return self.hears(expected)


def journal(server: Running) -> bytes:
    return (server.log.parent / "data" / "journal").read_bytes()


@cc
def test_items_come_back_in_their_order_and_then_there_are_none(limit: Running) -> None:
    with Peer(limit) as one, Peer(limit) as other:
        one.ask(b"get q\r\n", b"END\r\n")
        one.ask(b"set q 0 0 5\r\nhello\r\n", b"STORED\r\n")
        other.ask(b"set q 0 0 0\r\n\r\n", b"STORED\r\n")
        other.ask(b"get q\r\n", b"VALUE q 0 5\r\nhello\r\nEND\r\n")
        one.ask(b"get q\r\n", b"VALUE q 0 0\r\n\r\nEND\r\n")
        one.ask(b"get q\r\n", b"END\r\n")


@cc
def test_a_confirmed_read_ends_with_a_close(limit: Running) -> None:
    with Peer(limit) as one:
        one.ask(b"set q 0 0 1\r\na\r\nset q 0 0 1\r\nb\r\n", b"STORED\r\n" * 2)
        one.ask(b"get q/open\r\n", b"VALUE q 0 1\r\na\r\nEND\r\n")
        one.ask(b"get q/close/open\r\n", b"VALUE q 0 1\r\nb\r\nEND\r\n")
        one.ask(b"get q/close/open\r\n", b"END\r\n")
        one.ask(b"set q 0 0 1\r\nc\r\n", b"STORED\r\n")
        one.ask(b"get q/close\r\n", b"END\r\n")
        one.ask(b"get q\r\n", b"VALUE q 0 1\r\nc\r\nEND\r\n")


@cc
def test_requests_may_come_in_pieces_or_many_at_once(limit: Running) -> None:
    items = [bytes([65 + number % 26]) * number for number in range(0, 3000, 7)]
    requests = b"".join(b"set q 0 0 %d\r\n%b\r\n" % (len(item), item) for item in items)
    with Peer(limit) as one:
        for at in range(0, len(requests), 1009):
            one.sock.sendall(requests[at : at + 1009])
        one.hears(b"STORED\r\n" * len(items))
        values = b"".join(b"VALUE q 0 %d\r\n%b\r\nEND\r\n" % (len(item), item) for item in items)
        one.ask(b"get q\r\n" * (len(items) + 1), values + b"END\r\n")


@cc
def test_another_request_is_an_error(limit: Running) -> None:
    with Peer(limit) as one:
        for line in (b"", b"get", b"set q 0 0 x", b"set q 0 0 12345678901", b"delete q", b"g" * 5000):
            one.ask(line + b"\r\n", b"ERROR\r\n")


@cc
def test_each_change_is_in_the_file_before_its_reply(limit: Running) -> None:
    with Peer(limit) as one:
        one.ask(b"set q 0 0 5\r\nhello\r\n", b"STORED\r\n")
        added = journal(limit)
        assert added[:5] == b"\x02" + (5 + 16).to_bytes(4, "little") and added[13:] == bytes(8) + b"hello"
        one.ask(b"get q/close/open\r\n", b"VALUE q 0 5\r\nhello\r\nEND\r\n")
        assert journal(limit) == added + b"\x06\0\0\0\0" + b"\x03"


@cc
@pytest.mark.parametrize(("sync", "heard"), [("os", b"STORED\r\n"), ("always", b"")])
def test_a_reply_waits_for_the_sync_if_one_is_asked_for(sync: str, heard: bytes) -> None:
    """/dev/null takes every write and cannot be synced: so the limit ends between the two, with its reply unsent."""
    port = free_port()
    with subprocess.Popen([limit_program(), str(port), os.devnull, sync], stderr=subprocess.PIPE, text=True) as program:
        try:
            with connected(port) as sock:
                sock.sendall(b"set q 0 0 5\r\nhello\r\n" + b"get q\r\n" * (sync == "always"))
                assert received(sock) == heard
        finally:
            program.kill()
        _, told = program.communicate(timeout=SECONDS_MAX)
    assert told == ("limit: fdatasync: Invalid argument\n" if sync == "always" else "")


def connected(port: int) -> socket.socket:
    """A connection to a program that may not listen yet."""
    give_up = time.monotonic() + SECONDS_MAX
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), SECONDS_MAX)
        except ConnectionRefusedError:
            assert time.monotonic() < give_up, "it does not listen"


def received(sock: socket.socket) -> bytes:
    """What comes in one piece; nothing if the other side has ended."""
    try:
        return sock.recv(4096)
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize(
    "row",
    [
        "put",
        "get",
        "flood-50+50",
        "put-10x32",
        "get-10x32",
        "durable-1c",
        "durable-10c",
        "durable-100c",
        "durable-100q",
    ],
)
def test_the_main_rows_have_both_ratios(row: str) -> None:
    (workload,) = [one for one in WORKLOADS if one.name == row]
    assert {"redis", LIMIT} <= set(workload.peers)


@cc
def test_one_run_shows_the_ratio_to_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("staniel.bench.__main__.WORKLOADS", (TINY,))
    shown = CliRunner().invoke(main, arguments(tmp_path))
    assert shown.exit_code == 0, shown.output
    assert "limit k/s" in shown.output and "ours/limit" in shown.output
    order = [line.split()[3] for line in shown.output.splitlines() if line.startswith("round ")]
    assert order == ["ours", "limit", "limit", "ours"], "in turns"


def arguments(tmp_path: Path) -> list[str]:
    script = tmp_path / "fake_queue.py"
    script.write_text(FAKE_QUEUE)
    server = f"{shlex.quote(sys.executable)} {shlex.quote(str(script))} {{port}}"
    return ["--server", server, "--peers", "none", "--limit", "--rounds", "2", "--dir", str(tmp_path)]


@cc
def test_without_a_compiler_the_bench_says_so_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator.build()  # at an earlier time, with a compiler
    monkeypatch.setattr("staniel.bench.__main__.WORKLOADS", (TINY,))
    monkeypatch.setattr(generator, "BUILD", tmp_path / "build")  # of the limit, which is not there
    monkeypatch.setenv("PATH", "/nowhere")
    shown = CliRunner().invoke(main, arguments(tmp_path))
    assert shown.exit_code == 0, shown.output
    assert "left out: limit (limit.c needs a C compiler: install cc (gcc or clang), or set CC to one)" in shown.output
    assert "ours/limit" not in shown.output and "round 2  tiny" in shown.output


@cc
def test_the_limit_is_compiled_without_a_warning(tmp_path: Path) -> None:
    flags = ("-Werror", "-pedantic", "-std=gnu11")
    assert generator.built((servers.LIMIT_SOURCE,), tmp_path / "limit", flags=flags).exists()
    assert limit_program().exists()


@cc
def test_programs_that_compile_it_at_a_time_do_not_disturb_one_another(tmp_path: Path) -> None:
    program = tmp_path / "limit"
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: generator.built((servers.LIMIT_SOURCE,), program), range(4)))
    assert made == [program] * 4
    assert [path.name for path in tmp_path.iterdir()] == ["limit"], "nothing is left over"
