"""What unfinished requests and unread replies hold in all is bounded, and who makes no progress is dropped."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.process import running, until
from tests.support.wire import Wire, stats

ROOT = Path(__file__).parents[2]
HALF = b"set q 0 0 1000000\r\n"


def is_dropped(sock: socket.socket, seconds: float) -> bool:
    sock.settimeout(seconds)
    try:
        return not sock.recv(1)
    except TimeoutError:
        return False
    except OSError:
        return True


def test_who_holds_most_of_an_unfinished_request_is_dropped_first(tmp_path: Path) -> None:
    config = '[server]\nmax_pending_size_total = "1MB"\n'
    with running(tmp_path, config=config) as server, Wire(server.address) as small, Wire(server.address) as large:
        small.say(HALF + b"x" * 200_000)
        large.say(HALF + b"x" * 900_000)
        assert is_dropped(large.sock, 30)
        small.say(b"x" * 800_000 + b"\r\n")
        assert small.sock.recv(100) == b"STORED\r\n"


@pytest.mark.parametrize("begun", [b"versio", b"set q 0 0 9\r\nab"])
def test_a_client_that_stops_in_a_request_right_behind_a_whole_one_is_dropped_too(tmp_path: Path, begun: bytes) -> None:
    config = '[server]\nstall_timeout = "400ms"\n'
    with running(tmp_path, config=config) as server, Wire(server.address) as wire:
        wire.say(b"version\r\n" + begun)
        assert wire.line().startswith(b"VERSION ")
        assert is_dropped(wire.sock, 30)


def test_a_client_that_reads_nothing_is_dropped_and_one_that_waits_is_not(tmp_path: Path) -> None:
    config = '[server]\nstall_timeout = "none"\n'
    with running(tmp_path, config=config) as server, Wire(server.address) as deaf, Wire(server.address) as waits:
        waits.say(b"get other/t=600000\r\nget ot")
        for _ in range(12):
            assert deaf.put("q", bytes(1_000_000)) == b"STORED"
        server.config.write_text(config.replace("none", "300ms"))  # only now: a put may take longer
        with Wire(server.address) as operator:
            assert operator.ask(b"reload") == b"Reloaded config."
        deaf.say(b"get q\r\n" * 12)
        assert until(lambda: stats(server.address)["curr_connections"] == "2"), "the one that waits, and this one"
        heard = 0
        try:
            while data := deaf.sock.recv(1 << 20):
                heard += len(data)
        except ConnectionError:
            pass
        assert heard < 12_000_000
        waits.say(b"her\r\n")
        assert not is_dropped(waits.sock, 0.5)


def few_files(count: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))


def serve(folder: Path, files: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "staniel.server", "serve", "--port", "0", "--spool", str(folder / "spool")]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=lambda: few_files(files)
    )


def test_sixty_four_files_serve_a_few_clients_and_fewer_are_refused_with_a_reason(tmp_path: Path) -> None:
    with serve(tmp_path, 64) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().split(b",")[0].rpartition(b":")[2])
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(16)]
        for number, client in enumerate(clients):
            client.settimeout(60)
            client.sendall(b"set q%d 0 0 1\r\nx\r\n" % number)
            assert client.recv(100) == b"STORED\r\n"
            client.close()
        process.terminate()
        assert process.wait(60) == 0
    with serve(tmp_path, 40) as process:
        assert process.wait(60) == 1 and process.stderr is not None
        assert b"ulimit -n" in process.stderr.read()
