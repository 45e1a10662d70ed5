"""While a server starts, commands say that it starts, how far it is, and how long it may take."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from staniel.broker.recovery import RecoveryProgress
from staniel.journal.disk.os_fs import OsFs
from staniel.server.start_notice import WRITE_EVERY_MS, StartNotice, read_lock
from tests.support.certificates import Authority
from tests.support.process import run_staniel, running
from tests.support.wire import Wire


class Start:
    """A server that has locked its spool and reads 10 GB, of which it has read a quarter in 10 s."""

    def __init__(self, folder: Path) -> None:
        self.spool = folder / "spool"
        (self.spool / ".staniel").mkdir(parents=True)
        self.lock = self.spool / ".staniel" / "lock"
        self.fs = OsFs()
        self.fs.lock(str(self.lock))
        self.now_ms = 0
        self.told: list[str] = []
        self.notice = StartNotice(lambda: self.now_ms, self.told.append)
        self.notice.announce_start(str(self.lock))

    def reads(self) -> None:
        self.now_ms = 10_000
        self.notice(RecoveryProgress(3, 2_500_000_000, 10, 10_000_000_000))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started = Start(tmp_path)
    yield started
    started.fs.close()


HOW_FAR = "25 % of 10,000 MB read, 3 of 10 queues, about 30 s left"


def test_commands_say_how_far_a_start_is_and_how_long_it_may_take(start: Start, tmp_path: Path) -> None:
    who = f"the server of the spool {start.spool} (staniel, process {os.getpid()}) is starting"
    said = run_staniel("queues", "--spool", str(start.spool))
    assert (said.returncode, said.stderr) == (1, f"Error: {who}\n")
    start.reads()
    (tmp_path / "staniel.toml").write_text(f"[server]\nspool = '{start.spool}'\n[memcache]\nport = 1\n")
    for option in (("--spool", str(start.spool)), ("--config", str(tmp_path / "staniel.toml"))):
        for command in (("queues",), ("health",), ("put", "q", "x"), ("purge", "q", "--yes")):
            said = run_staniel(*command, *option)
            assert (said.returncode, said.stderr) == (1, f"Error: {who}: {HOW_FAR}\n")
        said = run_staniel("ping", *option)
        assert said.returncode == 3 and said.stdout.endswith(f"is starting: {HOW_FAR}\n")
        assert run_staniel("ping", "--alive", *option).returncode == 0
    second = run_staniel("serve", "--port", "0", "--spool", str(start.spool))
    assert f"the spool is in use by staniel, process {os.getpid()} ({start.spool})" in second.stderr


def test_a_start_that_has_ended_is_not_told_any_more(start: Start) -> None:
    start.reads()
    start.notice.end()
    assert "does not listen for it: it stops, has" in run_staniel("queues", "--spool", str(start.spool)).stderr
    start.fs.close()
    start.fs = OsFs()
    assert "no server listens" in run_staniel("queues", "--spool", str(start.spool)).stderr


def test_a_killed_start_is_none(start: Start) -> None:
    start.reads()
    start.fs.close()
    start.fs = OsFs()
    assert "no server listens" in run_staniel("queues", "--spool", str(start.spool)).stderr


def test_a_text_is_written_now_and_then_and_once_all_is_read(start: Start) -> None:
    for _ in range(100):
        start.now_ms += WRITE_EVERY_MS // 10
        start.notice(RecoveryProgress(0, 0, 2, 100))
    assert 10 <= len(start.told) <= 12 and start.told[0] == "starting"
    start.notice(RecoveryProgress(2, 100, 2, 100))
    assert start.told[-1] == "starting: 100 % of 0 MB read, 2 of 2 queues, the last steps are under way"


def test_a_lock_file_of_an_older_server_or_read_half_written_tells_what_it_can() -> None:
    assert read_lock(b"staniel, process 7\n") == ("staniel, process 7", None)
    for rest in (b"[1, 2", b"[]", b"null", b"[" * 900, b"\xff"):
        holder, state = read_lock(b"staniel, process 7\n" + rest)
        assert holder == "staniel, process 7" and state is not None and state.text == ""


def test_a_real_start_tells_its_supervisor_and_leaves_its_name_in_the_lock(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        with Wire(server.address) as wire:
            assert wire.put("q", b"1") == b"STORED"
        server.restart()
        lock = (server.spool / ".staniel" / "lock").read_text()
        assert read_lock(lock.encode()) == (f"staniel, process {server.pid}", None)


LOOK = """
import sys
from staniel.journal.disk.os_fs import OsFs
from staniel.server.cli.main import main
from staniel.server.start_notice import read_lock

port, spool = sys.argv[1:]
lock, sync_folder = f"{spool}/.staniel/lock", OsFs.sync_folder

def look(self, folder):
    if self.is_locked(lock):
        print(read_lock(open(lock, "rb").read())[1])
    sync_folder(self, folder)

OsFs.sync_folder = look
main(["serve", "--port", port, "--spool", spool])
"""


def test_a_start_is_told_from_its_first_sync_on(tmp_path: Path) -> None:
    """On a slow disk the syncs before recovery take seconds; the server had the lock and said nothing."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port, spool = str(other.getsockname()[1]), str(tmp_path / "spool")
        ended = subprocess.run([sys.executable, "-c", LOOK, port, spool], capture_output=True, text=True, timeout=60)
    assert "cannot listen" in ended.stderr
    states = ended.stdout.splitlines()
    assert states and set(states) == {"StartState(bytes=0, all_bytes=0, queues=0, all_queues=0, elapsed_ms=0)"}


# ping


def test_ping_finds_the_server_of_a_configuration_or_a_spool_and_speaks_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.issue("localhost")
    tls = f"[tls]\ncertificate = '{files.certificate}'\nkey = '{files.key}'\n[memcache]\ntls_port = 0\n"
    with running(tmp_path / "server", config=tls) as server:
        port = ("--tls", "--port", str(server.second_port))
        found = run_staniel("ping", *port, "--host", "localhost", "--ca", str(authority.path))
        assert (found.returncode, found.stdout.split(" answers ")[1:]) == (
            0,
            [f"on tls:localhost:{server.second_port}\n"],
        )
        unknown = run_staniel("ping", *port, "--host", "localhost")
        assert unknown.returncode == 1 and "its certificate is not accepted" in unknown.stderr
        named = tmp_path / "named.toml"
        named.write_text(tls.replace("tls_port = 0", f"port = 'none'\ntls_port = {server.second_port}"))
        assert run_staniel("ping", "--config", str(named)).returncode == 0
        named.write_text(f"[memcache]\nport = {server.port}\n")
        assert run_staniel("ping", "--config", str(named)).returncode == 0
        spool = ("--spool", str(server.spool))
        assert run_staniel("ping", *spool).returncode == 0
        with Wire(server.address) as wire:
            wire.put("q", b"1")
            wire.ask(b"pause q")
        said = run_staniel("ping", *spool)
        assert said.returncode == 3 and said.stdout.endswith(", 1 paused queue\n")
    assert run_staniel("ping", *spool, "--port", "1").returncode == 2
    assert run_staniel("ping", *spool).returncode == 1


def test_ping_of_a_server_with_users_knows_its_status_by_the_spool(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    folder.mkdir()
    (folder / "token").write_text("0123456789abcdef")
    (folder / "token").chmod(0o600)
    users = "[users.me]\nroles = ['admin']\ntoken_file = 'token'\n"
    with running(folder, config=users) as server:
        assert run_staniel("ping", "--port", str(server.port)).returncode == 3
        named = folder / "named.toml"
        named.write_text(f"[memcache]\nport = {server.port}\n[server]\nspool = '{server.spool}'\n{users}")
        assert run_staniel("ping", "--config", str(named)).returncode == 0


def test_a_plain_ping_loads_nothing_that_it_does_not_need() -> None:
    program = "import sys, staniel.server.cli.ping; print([n for n in sys.modules if 'ssl' in n or 'admin' in n])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "[]\n"
