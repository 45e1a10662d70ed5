"""Another program removes, moves, cuts or unmounts what a real server writes to: it ends within moments, says what was
done, and serves all that was answered once the files are back.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from staniel.server.app import MISPLACED
from tests.support.process import Server, until
from tests.support.wire import Wire, drain

END_SECONDS_MAX = 60.0  # promised are two; the machine may be busy
SPOOL_LINE = "was removed, moved, unmounted or mounted over: "
FILE_LINE = "was removed, moved or cut short by another program; "


def puts_until_it_ends(server: Server) -> list[bytes]:
    """What was answered with STORED, until the server hung up on its own."""
    stored: list[bytes] = []

    def put() -> bool:
        data = b"%d" % len(stored)
        try:
            answer = wire.put("q", data)
        except OSError:
            return True
        if answer == b"STORED":
            stored.append(data)
        return answer == b""

    with Wire(server.address) as wire:
        assert until(put, END_SECONDS_MAX), "it still answers"
    return stored


def ends_with(server: Server, line: str) -> None:
    assert server.wait() == MISPLACED
    said = server.stderr.splitlines()
    assert said[-1].startswith("staniel: ") and line in said[-1] and "staniel: " not in "".join(said[:-1]), said
    assert "put the files back, then start again" in said[-1]


def assert_kept(server: Server, stored: list[bytes]) -> None:
    """And perhaps the one item that was not answered any more."""
    found = drain(server.address, "q")
    assert found[: len(stored) + 1] == [b"before", *stored] and len(found) <= len(stored) + 2


def remove(server: Server) -> None:
    while server.spool.exists():  # the server may make a file meanwhile
        shutil.rmtree(server.spool, ignore_errors=True)


def remove_journals(server: Server) -> None:
    for path in server.spool.iterdir():
        if path.is_file():
            path.unlink()


def cut(server: Server) -> None:
    os.truncate(server.spool / "q", 3)


def replace(server: Server) -> None:
    """As an editor does, or a restored backup."""
    (server.spool / "copy").write_bytes((server.spool / "q").read_bytes())
    (server.spool / "copy").rename(server.spool / "q")


@pytest.mark.parametrize(
    ("harm", "line"), [(remove, SPOOL_LINE), (remove_journals, FILE_LINE), (cut, FILE_LINE), (replace, FILE_LINE)]
)
@pytest.mark.parametrize("redo", ["none", "1MB"])
def test_files_that_are_taken_away_end_the_server_with_a_line_that_says_so(
    tmp_path: Path, harm: Callable[[Server], None], line: str, redo: str
) -> None:
    with Server(tmp_path, config=f'[server]\nredo_log = "{redo}"\n') as server:
        with Wire(server.address) as wire:
            assert wire.put("q", b"before") == wire.put("r", b"before") == b"STORED"
        harm(server)
        puts_until_it_ends(server)
        ends_with(server, line)


@pytest.mark.parametrize("has_successor", [False, True])
def test_a_spool_that_was_moved_ends_the_server_and_has_all_that_was_answered(
    tmp_path: Path, has_successor: bool
) -> None:
    with Server(tmp_path) as server:
        with Wire(server.address) as wire:
            assert wire.put("q", b"before") == b"STORED"
        moved = server.spool.rename(tmp_path / "moved")
        if has_successor:
            server.spool.mkdir()
        stored = puts_until_it_ends(server)
        ends_with(server, SPOOL_LINE)
        if has_successor:
            assert list(server.spool.iterdir()) == []
            server.spool.rmdir()
        moved.rename(server.spool)
        server.start()
        assert_kept(server, stored)


@pytest.mark.programs("unshare", "nsenter", "mount", "umount", "user:root")
@pytest.mark.parametrize("command", ["umount --lazy {0}", "mount -t tmpfs none {0}"])
def test_a_spool_that_was_unmounted_or_mounted_over_ends_the_server(tmp_path: Path, command: str) -> None:
    disk, back = tmp_path / "disk", tmp_path / "back"
    disk.mkdir()
    back.mkdir()
    script = 'mount -t tmpfs none "$1" && mkdir "$1/spool" && mount --bind "$1" "$2" && shift 2 && exec "$@"'
    wrapper = ("unshare", "--mount", "sh", "-c", script, "sh", str(disk), str(back))
    with Server(tmp_path, "--spool", str(disk / "spool"), "--log-level", "error", wrapper=wrapper) as server:
        with Wire(server.address) as wire:
            assert wire.put("q", b"before") == b"STORED"
        inside = ["nsenter", f"--target={server.pid}", "--mount", "--"]
        keeper = subprocess.Popen([*inside, "sleep", "infinity"])
        try:
            subprocess.run([*inside, *command.format(disk).split()], check=True)
            stored = puts_until_it_ends(server)
            ends_with(server, SPOOL_LINE)
            server.wrapper = ("nsenter", f"--target={keeper.pid}", "--mount", "--")
            server.options = ("--spool", str(back / "spool"), "--log-level", "error")
            server.start()
            assert_kept(server, stored)
        finally:
            server.kill()
            keeper.kill()
            keeper.wait()
