"""Unix sockets: whose a path is, what is left behind, and who may connect."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.process import STANIEL, STOP_SECONDS_MAX, die_with_the_tests, run_staniel, until

SLOW_RECOVERY = """
import sys
from pathlib import Path
from staniel.broker.recovery import SpoolRecovery
sys.argv = sys.argv[1:]
right = SpoolRecovery.recover
def recover(*args):
    print("recovering", flush=True)
    sys.stdin.readline()
    return right(*args)
SpoolRecovery.recover = recover
from staniel.server.__main__ import main
sys.exit(main())
"""


def options(folder: Path, more: str = "", spool: str = "spool") -> list[str]:
    """The command line of a server on the folder's socket `s`, with a spool of its own."""
    path = folder / f"{spool}.toml"
    path.write_text(f'[server]\nspool = "{spool}"\n[memcache]\nlisten = ["unix:s"]\n{more}')
    return ["serve", "--config", str(path)]


@contextmanager
def serving(*command: str, umask: int = -1) -> Iterator[subprocess.Popen[bytes]]:
    """A server that has said its first line."""
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=die_with_the_tests, umask=umask
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline()
        yield child
    finally:
        child.kill()
        child.communicate()


def answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(30)
        try:
            sock.connect(str(path))
        except OSError:
            return False
        sock.sendall(b"version\r\n")
        return sock.recv(100).startswith(b"VERSION")


def refusal(folder: Path) -> str:
    """What a server with another spool says that cannot have the socket."""
    said = run_staniel(*options(folder, spool="other"))
    assert (said.returncode, said.stdout, said.stderr.count("\n")) == (1, "", 1)
    return said.stderr


def test_a_second_server_leaves_a_live_ones_socket_alone(tmp_path: Path) -> None:
    with serving(*STANIEL, *options(tmp_path)):
        assert f"cannot listen on unix:{tmp_path}/s: another server listens there; " in refusal(tmp_path)
        assert answers(tmp_path / "s")


def test_nor_does_it_take_the_socket_of_one_that_is_still_starting(tmp_path: Path) -> None:
    with serving(sys.executable, "-c", SLOW_RECOVERY, "staniel", *options(tmp_path)) as first:
        assert "another server listens there" in refusal(tmp_path)
        assert first.stdin is not None
        first.stdin.write(b"\n")
        first.stdin.flush()
        assert until(lambda: answers(tmp_path / "s"))


def test_nor_of_another_program(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as foreign:
        foreign.bind(str(tmp_path / "s"))
        foreign.listen(1)
        for _ in range(3):  # at last it has no room for one more
            assert "another server listens there" in refusal(tmp_path)
        assert (tmp_path / "s").is_socket()


def test_a_file_that_is_no_socket_stays(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("mine")
    assert f"cannot listen on unix:{tmp_path}/s: Address already in use; choose another path" in refusal(tmp_path)
    assert (tmp_path / "s").read_text() == "mine"


def test_a_path_that_is_too_long_is_one_line_that_says_so(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 120)
    folder.mkdir()
    size = len(f"{folder}/s")
    assert f"/s: the path has {size} bytes, the system takes 107; give a shorter one in `listen`" in refusal(folder)
    assert not (folder / "s.lock").exists()


def test_a_stop_removes_its_own_socket_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "s"
    for replaced in (False, True):
        with serving(*STANIEL, *options(tmp_path)) as child:
            assert answers(path)
            if replaced:
                path.unlink()
                path.write_text("mine")
            child.terminate()
            assert child.wait(STOP_SECONDS_MAX) == 0
        assert path.exists() == replaced


def test_a_start_that_fails_leaves_no_socket(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        said = run_staniel(*options(tmp_path, f"[text]\nport = {taken.getsockname()[1]}\n"))
    assert said.returncode == 1
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("more", "mode"), [("", 0o600), ('socket_mode = "0660"', 0o660), ('socket_mode = "777"', 0o777)]
)
@pytest.mark.parametrize("umask", [0, 0o77])
def test_a_sockets_mode_is_as_configured_whatever_the_umask(tmp_path: Path, more: str, mode: int, umask: int) -> None:
    with serving(*STANIEL, *options(tmp_path, more), umask=umask):
        assert stat.S_IMODE(os.stat(tmp_path / "s").st_mode) == mode
        assert answers(tmp_path / "s")


@pytest.mark.parametrize("users", ["", '[users.other]\nroles = ["admin"]\nuids = [4711]\n'])
def test_ping_asks_a_server_that_has_no_port(tmp_path: Path, users: str) -> None:
    with serving(*STANIEL, *options(tmp_path, users)):
        said = run_staniel("ping", "--unix", str(tmp_path / "s"))
        assert (said.returncode, said.stdout.partition("answers on ")[2]) == (0, f"unix:{tmp_path}/s\n")
    for path in (tmp_path / "s", tmp_path / ("d" * 120)):
        said = run_staniel("ping", "--unix", str(path))
        assert (said.returncode, said.stdout, said.stderr.count("\n")) == (1, "", 1)
