"""The transcripts of a document, pasted as a whole into a real shell: an interactive bash on a terminal of its own.

What is pasted waits in the terminal until the shell reads on, so a command that relies on the one before it having
ended some time ago fails here as it does for a reader.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import socket
import subprocess
import termios
import time
from pathlib import Path
from random import sample
from tempfile import gettempdir

from tests.support.ready import is_readable, is_writable

DEFAULT_PORT = "22133"
OTHER_PORTS = ("22134", "7001", "7002", "2379", "2380")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LOG_LINE = re.compile(r"(?=\d{4}-\d\d-\d\dT[\d:.]+Z [a-z]+ )")
SECONDS_MAX = 120
VOLATILE = (  # what is another in every run, and what it is compared as
    (re.compile(r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ?\b"), "MOMENT"),
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"spool /\S*/spool"), "SPOOL"),
    (re.compile(r"\b\d+(\.\d+)? m?s\b"), "TIME"),
    (re.compile(r"\((pure Python|compiled)\)"), "(BUILD)"),
    (re.compile(r"\b\d{2,}(?=  )"), "NUMBER"),
    (re.compile(r" +"), " "),
)


class Document:
    """`files`: the programs and settings that it shows, by name. `commands` and `expected`: all transcripts, joined."""

    def __init__(self, path: Path) -> None:
        text = path.read_text("utf-8")
        self.files: dict[str, str] = {}
        self.commands: list[str] = []
        self.expected: list[str] = []
        for found in BLOCK.finditer(text):
            if found[1] == "console":
                for line in found[2].splitlines():
                    if line.startswith("$ "):
                        self.commands.append(line[2:])
                    else:
                        self.expected.append(line)
            elif found[1] in ("python", "toml"):
                self.files[re.findall(r"`(\w+\.(?:py|toml))`", text[: found.start()])[-1]] = found[2]

    def missing_in(self, output: str) -> list[str]:
        """The lines that a reader is promised, and that did not come in their order."""
        output = LOG_LINE.sub("\n", output)  # a server writes to the same terminal, at any moment
        heard, missing, at = [comparable(line) for line in output.splitlines()], [], 0
        for line in self.expected:
            try:
                at = heard.index(comparable(line), at) + 1
            except ValueError:
                missing.append(line)
        return missing


def comparable(line: str) -> str:
    for pattern, name in VOLATILE:
        line = pattern.sub(name, line)
    return line.strip()


PORTS = range(20_000, 32_000)  # below those that the system gives to connections
_held: list[int] = []  # descriptors of their locks


def free_port() -> int:
    """A port that nothing listens on, and that no other test is given while this process runs."""
    folder = Path(gettempdir(), "staniel-test-ports")
    folder.mkdir(exist_ok=True)
    for port in sample(PORTS, len(PORTS)):
        lock = os.open(folder / str(port), os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            os.close(lock)
            continue
        _held.append(lock)
        return port
    raise AssertionError("no port is free")


def with_port(text: str, port: int) -> str:
    """The same on a port that is free, so that tests do not meet on the default one."""
    text = re.sub(r"\bstaniel (serve|ping|work)\b(?! --config [ab]\.toml)", rf"staniel \1 --port {port}", text)
    return text.replace(DEFAULT_PORT, str(port)).replace("[workq]", "[workq]\nport = 0")


def with_ports(document: Document) -> None:
    """Give the other ports that a document names, of a second server and of etcd, numbers that are free."""
    shown = "\n".join([*document.files.values(), *document.commands])
    for number in [number for number in OTHER_PORTS if number in shown]:
        free = str(free_port())
        document.files = {name: text.replace(number, free) for name, text in document.files.items()}
        document.commands = [command.replace(number, free) for command in document.commands]


def play(document: Document, folder: Path, port: int, env: dict[str, str]) -> str:
    """All that the terminal shows. The shell and what it has left running are gone afterwards."""
    with_ports(document)
    for name, text in document.files.items():
        (folder / name).write_text(with_port(text, port))
    script = "\n".join([with_port(command, port) for command in document.commands]) + "\nexit\n"
    terminal, inner = pty.openpty()
    modes = termios.tcgetattr(inner)
    modes[3] &= ~termios.ECHO
    termios.tcsetattr(inner, termios.TCSANOW, modes)
    shell = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "--noediting", "-i"], stdin=inner, stdout=inner, stderr=inner,
        cwd=folder, env={**env, "PS1": "\n", "TERM": "dumb", "HISTFILE": ""}, start_new_session=True,
    )  # fmt: skip
    os.close(inner)
    try:
        return _talk(terminal, script.encode())
    finally:
        os.close(terminal)
        end_session(shell.pid)
        shell.wait(SECONDS_MAX)


def _talk(terminal: int, script: bytes) -> str:
    heard, give_up = b"", time.monotonic() + SECONDS_MAX
    os.set_blocking(terminal, False)
    while time.monotonic() < give_up:
        if is_readable(terminal, 0.01 if script else 1.0):
            try:
                piece = os.read(terminal, 1 << 16)
            except OSError:  # the shell has gone
                return heard.decode(errors="replace").replace("\r", "")
            heard += piece
        if script and is_writable(terminal):
            try:
                script = script[os.write(terminal, script[:1024]) :]
            except BlockingIOError:
                pass
    raise AssertionError(f"the shell is not done after {SECONDS_MAX} s: {heard.decode(errors='replace')}")


def end_session(leader: int) -> None:
    """Kill what still runs in a session, as its jobs are groups of their own."""
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == leader:
                    os.kill(int(path.name), signal.SIGKILL)
            except (OSError, IndexError):
                continue
