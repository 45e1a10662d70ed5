"""What the commands on files print where names are hostile, letters are not known, or the pipe is closed."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from tests.support.process import STANIEL, START_SECONDS_MAX, run_staniel

ADD = b"\0" + (8).to_bytes(4, "little") + b"\0" * 4 + b"data"
NAMES = (b"a\x1b[31m", b"b\xff\xfe", b"c\xc2\x9b2J", "d\u202e\u65e5".encode())
FILES = (["verify"], ["verify", "--json"], ["dump"], ["stats"], ["stats", "--json"], ["repair", "--to", "NEW"])
DAMAGED = 1


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Queues with names of all kinds, one item each, and then bytes that are no record."""
    folder = tmp_path / "spool"
    folder.mkdir()
    for name in NAMES:
        Path(os.fsdecode(bytes(folder) + b"/" + name)).write_bytes(ADD + b"\x77\x1b[2J")
    return folder


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
@pytest.mark.parametrize("command", FILES, ids=" ".join)
def test_no_name_of_a_file_steers_the_terminal(
    damaged: Path, tmp_path: Path, command: list[str], encoding: str
) -> None:
    options = [str(tmp_path / "new") if each == "NEW" else each for each in command[1:]]
    line = [*STANIEL, "journal", command[0], str(damaged), *options]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    said = subprocess.run(line, capture_output=True, timeout=START_SECONDS_MAX, env=environment)
    assert said.returncode == DAMAGED and b"Traceback" not in said.stderr
    shown = (said.stdout + said.stderr).decode(encoding)
    assert all(line.isprintable() for line in shown.split("\n")), shown


@pytest.mark.parametrize("command", [["journal", *each] for each in FILES] + [["adopt", "--dry-run"]], ids=" ".join)
def test_a_closed_pipe_ends_them_without_a_word(damaged: Path, tmp_path: Path, command: list[str]) -> None:
    options = [str(tmp_path / "new") if each == "NEW" else each for each in command]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        line = [*STANIEL, *options, str(damaged)]
        said = subprocess.run(line, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=START_SECONDS_MAX)
    finally:
        os.close(writing)
    assert said.returncode == 1 and "Broken pipe" not in said.stderr and "Traceback" not in said.stderr, said.stderr


def test_no_answer_to_ping_steers_the_terminal() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            sock, _ = listening.accept()
            with sock:
                sock.recv(100)
                sock.sendall(b"VERSION 1\x1b[2J\x9b\r\n")
                sock.recv(100)
                sock.sendall(b"STAT status \x1b]0;owned\x07\r\nEND\r\n")

        answering = threading.Thread(target=answer)
        answering.start()
        said = run_staniel("ping", "--port", str(listening.getsockname()[1]))
        answering.join(START_SECONDS_MAX)
    assert r"1\x1b[2J\x9b" in said.stdout and r"status \x1b]0;owned\x07" in said.stdout and "\x1b" not in said.stdout
