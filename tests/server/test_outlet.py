"""Standard error may be a pipe that nobody reads: nothing waits for it, and what is dropped is counted."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pty
import socket
import subprocess
from pathlib import Path

import pytest
import trio
import trio.lowlevel
import trio.testing

from staniel.broker.events import Level
from staniel.server import outlet as outlets
from staniel.server.log import ServerLog
from staniel.server.outlet import HELD_BYTES_MAX, Outlet, OutletStream
from tests.support.process import STANIEL, run_staniel, running, until
from tests.support.wire import Wire

LINE = b"x" * 999 + b"\n"
BEYOND = 2 * HELD_BYTES_MAX // len(LINE)


def read_all(fd: int) -> bytes:
    """What is there."""
    os.set_blocking(fd, False)
    found = b""
    try:
        while piece := os.read(fd, 1 << 16):
            found += piece
    except BlockingIOError:
        pass
    return found


@pytest.mark.parametrize("may_reopen", [True, False])
def test_a_pipe_that_nobody_reads_costs_lines_and_no_time(monkeypatch: pytest.MonkeyPatch, may_reopen: bool) -> None:
    if not may_reopen:

        def refuse(*_: object) -> int:
            raise PermissionError(errno.EACCES, "another user's")

        monkeypatch.setattr(outlets.os, "open", refuse)
    reader, writer = os.pipe()
    out = Outlet(writer)
    monkeypatch.undo()
    for _ in range(BEYOND):
        out.write(LINE)
    assert out.is_holding and out.dropped > 0
    lines = 0
    while out.is_holding:
        lines += read_all(reader).count(b"\n")
        out.flush()
    lines += read_all(reader).count(b"\n")
    assert lines + out.dropped == BEYOND
    out.write(b"later\n")
    assert read_all(reader) == b"later\n"
    os.close(reader)
    os.close(writer)


def test_a_socket_or_a_terminal_on_hold_costs_no_time_either() -> None:
    ours, theirs = socket.socketpair()
    main, terminal = pty.openpty()
    for fd in (theirs.fileno(), terminal):
        out = Outlet(fd)
        for _ in range(BEYOND):
            out.write(LINE)
        assert out.dropped > 0
        if out._sock is not None:
            out._sock.close()
    os.close(main)
    os.close(terminal)
    ours.close()
    theirs.close()


def test_a_reader_that_is_gone_and_a_closed_descriptor_take_nothing() -> None:
    reader, writer = os.pipe()
    out = Outlet(writer)
    os.close(reader)
    out.write(b"to nobody\n")
    assert not out.is_holding and out.dropped == 1
    os.close(writer)
    closed = Outlet(writer)
    closed.write(b"to nothing\n")
    closed.close()
    assert not closed.is_holding


def test_the_end_of_a_process_waits_for_a_reader_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlets, "LAST_WAIT_S", 0.05)
    reader, writer = os.pipe()
    out = Outlet(writer)
    stream = OutletStream(out, writer)
    print("x" * (1 << 17), file=stream)
    out.close()
    assert out.is_holding and len(read_all(reader)) > 0
    while out.is_holding:
        read_all(reader)
        out.close()
    os.close(reader)
    os.close(writer)


async def test_what_is_held_is_written_once_somebody_reads_and_the_log_says_how_much_was_dropped() -> None:
    reader, writer = os.pipe()
    log = ServerLog(Outlet(writer))
    log.open("info", "json")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.keep_writing)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(BEYOND):
            log.report(Level.INFO, "some.event", text="x" * 999)
        dropped, said = log.outlet.dropped, b""
        assert dropped > 0
        with trio.fail_after(60):
            while b"log.dropped" not in said:
                said += read_all(reader)
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    events = [json.loads(line) for line in said.splitlines()]
    assert [each["lines"] for each in events if each["event"] == "log.dropped"] == [dropped]
    assert len(events) + dropped == BEYOND + 1
    os.close(reader)
    os.close(writer)


def test_a_server_whose_log_nobody_reads_serves_and_stops(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    config = tmp_path / "staniel.toml"
    config.write_text(f"""
server.log_level = "debug"
default.sync_journal = "os"
memcache.listen = ["unix:{tmp_path}/socket"]
queues.q.enable_trace = true
""")
    command = [*STANIEL, "serve", "--config", str(config), "--spool", str(tmp_path / "spool")]
    with subprocess.Popen(command, stdout=writer, stderr=writer) as process:
        os.close(writer)
        said = b""
        while b"listens on" not in said:
            piece = os.read(reader, 4096)
            assert piece, said
            said += piece
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(60)
            sock.connect(f"{tmp_path}/socket")
            for _ in range(20):
                sock.sendall(b"set q 0 0 1\r\nx\r\nget q\r\n" * 100)  # lines of a trace, far beyond the pipe's room
                heard = b""
                while heard.count(b"END\r\n") < 100:
                    piece = sock.recv(1 << 16)
                    assert piece
                    heard += piece
        process.terminate()
        assert process.wait(60) == 0
    os.close(reader)


@pytest.mark.parametrize("form", ["logfmt", "json"])
def test_lines_for_systemd_begin_with_their_priority_and_the_last_one_with_that_of_an_error(
    tmp_path: Path, form: str
) -> None:
    words = ("env", "JOURNAL_STREAM=8:12345")
    with running(tmp_path, "--log-format", form, wrapper=words) as server:
        with Wire(server.address) as wire:
            wire.put("q", b"x")
            wire.ask(b"flush q")
        (tmp_path / "spool").rename(tmp_path / "moved")
        with Wire(server.address) as wire:
            wire.say(b"set r 0 0 1\r\nx\r\n")
            assert until(lambda: server.child.poll() is not None)
        assert server.wait() == 3
        (tmp_path / "moved").rename(tmp_path / "spool")
        said = server.stderr.splitlines()
    assert any("queue.flushed" in line and line.startswith("<6>") for line in said)
    assert said[-1].startswith("<3>")
    if form == "json":
        last = [json.loads(line[3:]) for line in said][-1]
        assert (last["event"], last["level"]) == ("server.failed", "error") and "spool" in last["why"]
    else:
        assert said[-1].startswith("<3>staniel: ")


def test_without_systemd_the_last_line_is_plain_or_json(tmp_path: Path) -> None:
    for form in ("logfmt", "json"):
        done = subprocess.run(
            [*STANIEL, "serve", "--port", "0", "--spool", "/proc/none/here", "--log-format", form],
            capture_output=True,
            text=True,
            timeout=60,
            env={name: value for name, value in os.environ.items() if name != "JOURNAL_STREAM"},
        )
        assert done.returncode == 1
        last = done.stderr.splitlines()[-1]
        assert last.startswith("staniel: ") if form == "logfmt" else json.loads(last)["event"] == "server.failed"


@pytest.mark.parametrize("wrong", ["[queues.q]\nmax_item = 3\n", "[queues.q\n"])
def test_the_last_line_about_a_wrong_file_has_the_format_that_the_file_names(tmp_path: Path, wrong: str) -> None:
    for form in ("logfmt", "json"):
        file = tmp_path / "staniel.toml"
        file.write_text(f'[server]\nlog_format = "{form}"\n# log_format = "none"\n{wrong}')
        done = run_staniel("serve", "--config", str(file), "--port", "0", JOURNAL_STREAM="")
        assert done.returncode == 1
        last = done.stderr.splitlines()[-1]
        said = last if form == "logfmt" else json.loads(last)["why"]
        assert said.startswith("staniel: ") == (form == "logfmt") and "staniel.toml: " in said


def test_standard_descriptors_that_are_closed_are_nothing_of_the_servers(tmp_path: Path) -> None:
    command = " ".join([*STANIEL, "serve", "--port", "0", "--spool", str(tmp_path / "spool")])
    process = subprocess.Popen(["bash", "-c", f"exec {command} 0<&- 1>&- 2>&-"])
    try:
        lock = tmp_path / "spool/.staniel/ballast"
        assert until(lock.exists)
        targets = [os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in (0, 1, 2)]
        assert targets == [os.devnull] * 3
    finally:
        process.terminate()
        assert process.wait(60) == 0
