"""Starting, and the four ways to end: SIGTERM, SIGINT, `shutdown`, and not starting at all."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.support.process import GREETING, STOP_SECONDS_MAX, Server, run_staniel, running, until
from tests.support.ready import is_readable
from tests.support.transcripts import free_port
from tests.support.wire import Wire, drain, stats


def test_the_greeting_says_where_it_listens_and_what_it_recovered(server: Server) -> None:
    with Wire(server.address) as wire:
        wire.put("a", b"1")
        wire.put("b", b"2")
        wire.put("b", b"3")
    server.restart()
    said = GREETING.fullmatch(server.greeting)
    assert said
    assert (said["host"], said["queues"], said["items"]) == ("127.0.0.1", "2", "3")
    assert said["spool"] == str(server.spool)


@pytest.mark.parametrize("sync", ["always", "50ms", "os"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_cleanly_and_everything_is_there_again(tmp_path: Path, sync: str, number: int) -> None:
    with running(tmp_path, "--sync", sync, forked=False) as server:
        with Wire(server.address) as wire:
            for each in range(20):
                wire.put("jobs", b"%d" % each)
            assert wire.get("jobs") == b"0"
            assert wire.get("jobs/open") == b"1"
            server.signal(number)
            assert wire.closed_by_server()
        assert server.wait() == 0
        assert "server.stopped" in server.stderr
        server.start()
        assert drain(server.address, "jobs") == [b"%d" % each for each in range(1, 20)]


def test_a_client_can_shut_the_server_down(server: Server) -> None:
    with Wire(server.address) as wire:
        wire.put("jobs", b"a")
        assert wire.say(b"shutdown\r\n").closed_by_server()
    assert server.wait() == 0
    server.start()
    assert drain(server.address, "jobs") == [b"a"]


def test_a_set_sent_with_the_shutdown_is_answered_and_kept(server: Server) -> None:
    with Wire(server.address) as wire:
        wire.say(b"set jobs 0 0 1\r\na\r\nshutdown\r\n")
        assert wire.rest() == b"STORED\r\n"
    assert server.wait() == 0
    server.start()
    assert drain(server.address, "jobs") == [b"a"]


def test_a_signal_straight_after_the_greeting_stops_cleanly(tmp_path: Path) -> None:
    for _ in range(5):
        with running(tmp_path, forked=False) as server:
            server.stop()


def test_those_who_wait_are_answered_when_the_server_stops(server: Server) -> None:
    with Wire(server.address) as wire:
        wire.say(b"get jobs/t=60000\r\n")
        assert until(lambda: stats(server.address).get("queue_jobs_waiters") == "1")
        server.stop()
        assert wire.rest() == b"END\r\n"


def test_a_stop_does_not_wait_for_clients_that_do_nothing_or_never_read(server: Server) -> None:
    with Wire(server.address) as idle, Wire(server.address, receive_buffer_bytes=4096) as deaf:
        idle.put("jobs", bytes(1_000_000))
        deaf.say(b"get jobs/peek\r\n" * 50)
        server.stop()


def test_two_signals_are_no_more_than_one(server: Server) -> None:
    with Wire(server.address) as wire:
        wire.ask(b"version")
    server.signal(signal.SIGTERM)
    server.signal(signal.SIGTERM)
    assert server.wait() == 0


def test_a_lock_that_another_program_holds_is_named_with_that_program(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        lock = server.spool / ".staniel" / "lock"
        server.stop()
        with lock.open("rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            said = run_staniel("serve", "--port", "0", "--spool", str(server.spool))
    assert (said.returncode, said.stderr.count("\n")) == (1, 1)
    assert f"in use by process {os.getpid()} (" in said.stderr and f"which holds {lock} locked" in said.stderr


def test_a_second_server_on_the_same_spool_is_refused_and_the_holder_named(server: Server) -> None:
    said = run_staniel("serve", "--port", "0", "--spool", str(server.spool))
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr.count("\n") == 1
    assert f"in use by staniel, process {server.pid}" in said.stderr
    assert str(server.spool) in said.stderr
    with Wire(server.address) as wire:
        assert wire.put("jobs", b"a") == b"STORED"


def test_the_lock_goes_with_a_killed_process(server: Server) -> None:
    server.restart()
    with Wire(server.address) as wire:
        assert wire.put("jobs", b"a") == b"STORED"
    server.stop()


def test_a_taken_port_is_one_line_that_names_it(server: Server, tmp_path: Path) -> None:
    said = run_staniel("serve", "--port", str(server.port), "--spool", str(tmp_path / "other"))
    assert (said.returncode, said.stdout, said.stderr.count("\n")) == (1, "", 1)
    assert f"staniel: cannot listen on 127.0.0.1:{server.port}: Address already in use; " in said.stderr


def test_a_host_that_is_not_ours_is_one_line(tmp_path: Path) -> None:
    where = ("--host", "192.0.2.1", "--port", "0", "--spool", str(tmp_path / "spool"))
    said = run_staniel("serve", "--open-network", "--log-level", "error", *where)
    assert (said.returncode, said.stderr.count("\n")) == (1, 1)
    assert "cannot listen on 192.0.2.1:0" in said.stderr


def test_a_host_name_that_cannot_be_one_is_one_line(tmp_path: Path) -> None:
    said = run_staniel("serve", "--host", "a" * 70 + ".example", "--port", "0", "--spool", str(tmp_path / "spool"))
    assert (said.returncode, said.stderr.count("\n")) == (1, 1)


def test_unix_sockets_are_served_and_left_ones_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    config = '[memcache]\nlisten = ["unix:s", "127.0.0.1:0"]\n'
    (tmp_path / "staniel.toml").write_text(config)
    for _ in range(2):
        command = ["serve", "--config", str(tmp_path / "staniel.toml")]
        with subprocess.Popen([*Server(tmp_path).command[:1], *command], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert f"listens on unix:{path}, 127.0.0.1:".encode() in child.stdout.readline()
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(30)
                sock.connect(str(path))
                sock.sendall(b"version\r\n")
                assert sock.recv(100).startswith(b"VERSION")
            child.kill()
    assert path.exists()


def test_it_serves_with_every_standard_stream_closed(tmp_path: Path) -> None:
    port_file = tmp_path / "stderr"
    port = free_port()
    command = Server(tmp_path).command
    command[command.index("--port") + 1] = str(port)
    child = subprocess.Popen(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command])
    try:
        assert until(lambda: run_staniel("ping", "--port", str(port)).returncode == 0)
        address = "127.0.0.1", port
        with Wire(address) as wire:
            assert wire.put("jobs", b"a") == b"STORED"
            assert wire.ask(b"get a.b").startswith(b"CLIENT_ERROR")
        child.send_signal(signal.SIGTERM)
        assert child.wait(STOP_SECONDS_MAX) == 0
    finally:
        child.kill()
        child.wait()
    assert not port_file.exists()


def test_it_serves_although_nobody_reads_its_greeting(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    port = free_port()
    command = Server(tmp_path).command
    command[command.index("--port") + 1] = str(port)
    child = subprocess.Popen(command, stdout=writer, stderr=subprocess.DEVNULL)
    os.close(writer)
    try:
        assert until(lambda: child.poll() is not None or run_staniel("ping", "--port", str(port)).returncode == 0)
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def test_a_log_that_nobody_reads_any_more_stops_nothing(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    child = subprocess.Popen(Server(tmp_path).command, stdout=subprocess.PIPE, stderr=writer)
    os.close(writer)
    os.close(reader)
    try:
        assert child.stdout is not None
        assert is_readable(child.stdout, 60)
        said = GREETING.fullmatch(child.stdout.readline().decode())
        assert said
        with Wire(("127.0.0.1", int(said["port"]))) as wire:
            assert wire.put("jobs", b"a") == b"STORED"
        child.send_signal(signal.SIGTERM)
        assert child.wait(STOP_SECONDS_MAX) == 0
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


@pytest.mark.parametrize(
    ("module", "config", "said"),
    [
        ("h11", "[admin]\nport = 0\n", "[admin] needs h11: pip install"),
        ("thriftpy2", "[thrift]\nport = 0\n", "[thrift] needs an extra: pip install 'staniel[thrift]'"),
    ],
)
def test_a_listener_whose_library_is_missing_says_what_to_install(
    tmp_path: Path, module: str, config: str, said: str
) -> None:
    hide = "import sys\nsys.meta_path.insert(0, type('Hide', (), {'find_spec': lambda self, name, *_: (_ for _ in ())"
    hide += f".throw(ModuleNotFoundError(name)) if name.partition('.')[0] == {module!r} else None}})())\n"
    (tmp_path / "sitecustomize.py").write_text(hide)
    (tmp_path / "c.toml").write_text(config)
    options = ("--config", str(tmp_path / "c.toml"), "--spool", str(tmp_path / "s"), "--port", "0")
    ended = run_staniel("serve", *options, PYTHONPATH=str(tmp_path))
    assert ended.returncode == 1 and said in ended.stderr and "Traceback" not in ended.stderr
