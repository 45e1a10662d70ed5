"""Servers forked by tests/support/starter.py behave as executed ones do: their end is told, nothing of them is left."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.support.process import running, until
from tests.support.starter import Starter


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_killed_server_is_reaped_and_its_end_told(tmp_path: Path) -> None:
    with running(tmp_path, forked=True) as server:
        pid = server.pid
        assert os.getsid(pid) == pid and os.readlink(f"/proc/{pid}/cwd") == os.getcwd()
        server.signal(signal.SIGKILL)
        assert server.wait() == -signal.SIGKILL
        assert not is_there(pid)


def test_it_heeds_its_command_line_and_holds_only_its_own_files(tmp_path: Path) -> None:
    starter = Starter()
    said = (tmp_path / "said").open("wb")
    with said:
        child = starter.start(["serve", "--no-such-option"], said.fileno(), tmp_path)
        assert child.wait(60) == 2 and b"--no-such-option" in (tmp_path / "said").read_bytes()
        first, second = [
            starter.start(["serve", "--port", "0", "--spool", name], said.fileno(), tmp_path) for name in ("a", "b")
        ]
    for each in (first, second):
        assert each.stdout is not None and each.stdout.readline().startswith(b"staniel ")
    files = [sorted(os.readlink(path) for path in Path(f"/proc/{each.pid}/fd").iterdir()) for each in (first, second)]
    assert len(files[0]) == len(files[1])
    starter.close()
    assert until(lambda: not is_there(first.pid) and not is_there(second.pid)), "they ended with the starter"
    for each in (child, first, second):
        assert each.stdout is not None
        each.stdout.close()
    os.close(first._told)
    os.close(second._told)
