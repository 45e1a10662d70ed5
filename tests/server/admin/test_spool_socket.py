"""The socket of a spool: who finds it, whom the server serves there, and which server a command asks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from staniel.server import spool_socket
from tests.server.admin.asking import Operator, socket_of
from tests.support.process import STANIEL, START_SECONDS_MAX, Server, run_staniel, running
from tests.support.wire import Wire

NOBODY = 65534
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
needs_two_users = pytest.mark.programs("setpriv", "user:root")
LISTEN = """
import socket, sys
sock = socket.socket(socket.AF_UNIX)
sock.bind("\\0" + sys.argv[1])
sock.listen()
print("ready", flush=True)
sys.stdin.read()
"""
ASK = """
import socket, sys
sock = socket.socket(socket.AF_UNIX)
sock.settimeout(60)
sock.connect("\\0" + sys.argv[1])
try:
    sock.sendall(b"GET /api/server HTTP/1.1\\r\\nHost: staniel\\r\\n\\r\\n")
    print(len(sock.recv(100)))
except ConnectionError:
    print(0)
"""


@contextmanager
def impostor(spool: Path, *wrapper: str) -> Iterator[None]:
    """Another program under the name of the spool's socket."""
    command = [*wrapper, sys.executable, "-c", LISTEN, socket_of(spool)[1:]]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        try:
            yield
        finally:
            child.communicate("")


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder that every user may reach. Not one of pytest's: each run of pytest closes their parent to others."""
    with TemporaryDirectory(prefix="staniel-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_the_socket_is_found_by_the_spool_and_nothing_of_it_is_in_there(tmp_path: Path) -> None:
    with running(tmp_path / ("long" * 40)) as server:
        assert server.stderr == ""
        assert Operator(server.spool).get("/api/server")["spool"] == str(server.spool)
        (tmp_path / "link").symlink_to(server.spool)
        assert run_staniel("queues", "--spool", str(tmp_path / "link")).returncode == 0
        shutil.copytree(server.spool, tmp_path / "copy", ignore=shutil.ignore_patterns("ballast", "*.new"))
        with pytest.raises(ConnectionRefusedError):
            Operator(tmp_path / "copy").get("/api/server")
        server.restart()
        assert Operator(server.spool).get("/api/server")["queues"] == 0
        server.stop()
        with pytest.raises(ConnectionRefusedError):
            Operator(server.spool).get("/api/server")


def test_a_name_that_is_taken_stops_no_server_and_no_command_asks_who_has_it(tmp_path: Path) -> None:
    (tmp_path / "spool" / ".staniel").mkdir(parents=True)
    (tmp_path / "spool" / ".staniel" / "lock").touch()  # without a file it would be replaced by a new folder
    with impostor(tmp_path / "spool"), running(tmp_path) as server:
        assert "admin.no_socket" in server.stderr and "Address already in use" in server.stderr
        with Wire(server.address) as wire:
            assert wire.put("q", b"1") == b"STORED"


def test_without_the_setting_there_is_no_socket(tmp_path: Path) -> None:
    with running(tmp_path, config="admin.socket = false\n") as server:
        with pytest.raises(ConnectionRefusedError):
            Operator(server.spool).get("/api/server")
        assert server.stderr == ""


@needs_two_users
def test_programs_of_other_users_are_hung_up_on_and_do_not_flood_the_log(open_path: Path) -> None:
    with running(open_path) as server:
        ask = [*AS_NOBODY, sys.executable, "-c", ASK, socket_of(server.spool)[1:]]
        for _ in range(3):
            said = subprocess.run(ask, capture_output=True, text=True, timeout=START_SECONDS_MAX)
            assert (said.stdout, said.stderr) == ("0\n", "")
        assert server.stderr.count("client.refused") == 1 and f"uid={NOBODY}" in server.stderr
        assert Operator(server.spool).get("/api/server")["queues"] == 0


@needs_two_users
def test_a_command_says_whose_the_server_is_and_asks_no_other_users(open_path: Path) -> None:
    with running(open_path) as server:
        (server.spool / ".staniel").chmod(0o755)
        server.spool.chmod(0o755)
        command = [*AS_NOBODY, *STANIEL, "queues", "--spool", str(server.spool)]
        said = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS_MAX)
        assert said.returncode == 1 and f"the server is user 0's, and this command user {NOBODY}'s" in said.stderr


@needs_two_users
def test_root_asks_a_server_of_the_spools_owner_and_no_impostor(open_path: Path) -> None:
    folder = open_path / "theirs"
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    with Server(folder, wrapper=AS_NOBODY) as server:
        assert server.spool.stat().st_uid == NOBODY
        assert run_staniel("queues", "--spool", str(server.spool)).returncode == 0
        server.kill()
        with impostor(server.spool, *AS_NOBODY):
            os.chown(server.spool / ".staniel", 0, 0)
            said = run_staniel("queues", "--spool", str(server.spool))
            assert said.returncode == 1 and f"user {NOBODY} answers for it" in said.stderr


def test_where_there_are_no_abstract_sockets_that_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(spool_socket.sys, "platform", "darwin")
    with pytest.raises(OSError, match="abstract Unix sockets are Linux's alone"):
        spool_socket.socket_address(str(tmp_path))
