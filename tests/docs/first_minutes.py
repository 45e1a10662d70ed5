"""Takes docs/pictures/first-minutes.txt: python -m tests.docs.first_minutes

It types the commands of docs/worker-tutorial.md into a shell, each when the prompt has come, after an installation of
this checkout into a new environment, and writes down what the terminal shows. pip needs its index, or a cache.
"""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support.transcripts import DEFAULT_PORT, Document, end_session, free_port, with_port

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = ROOT / "docs" / "worker-tutorial.md"
CAPTURE = ROOT / "docs" / "pictures" / "first-minutes.txt"
PROMPT = "\n$ "
COMMAND_S_MAX = 120
INSTALLATION = (
    "python3 -m venv environment",
    "environment/bin/pip install -qq CHECKOUT",
    "export PATH=$PWD/environment/bin:$PATH",
    "staniel --version",
)


def take(folder: Path, first: tuple[str, ...] = (), path: str = os.environ["PATH"]) -> str:
    """Return what the terminal shows of the commands `first`, then of the tutorial. Files are written with `cat`."""
    document = Document(TUTORIAL)
    port = free_port()
    shell = Shell(folder, {**os.environ, "PATH": path})
    try:
        for command in first:
            shell.type(command.replace("CHECKOUT", str(ROOT)))
        for name, text in document.files.items():
            shell.type(f"cat > {name} <<'END'\n{with_port(text, port)}END")
        for command in document.commands:
            shell.type(with_port(command, port))
        shown = shell.shown
    finally:
        shell.end()
    shown = shown.removesuffix(PROMPT[1:]).replace(f" --port {port}", "").replace(str(port), DEFAULT_PORT)
    return shown.replace(str(ROOT), "./staniel").replace(str(folder), ".")


class Shell:
    """An interactive bash on a terminal. `shown`: all that the terminal has shown."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.shown = ""
        self._terminal, inner = pty.openpty()
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "--noediting", "-i"], stdin=inner, stdout=inner, stderr=inner,
            cwd=folder, start_new_session=True,
            env={**env, "PS1": PROMPT[1:], "PS2": "", "TERM": "dumb", "HISTFILE": ""},
        )  # fmt: skip
        os.close(inner)
        self._read_on("")

    def type(self, command: str) -> None:
        """Type a command, and wait for the prompt after it."""
        before = self.shown
        os.write(self._terminal, command.encode() + b"\n")
        self._read_on(before)

    def _read_on(self, before: str) -> None:
        give_up = time.monotonic() + COMMAND_S_MAX
        while not (len(self.shown) > len(before) and ("\n" + self.shown[len(before) :]).endswith(PROMPT)):
            if time.monotonic() > give_up or not select.select([self._terminal], [], [], COMMAND_S_MAX)[0]:
                raise AssertionError(f"no prompt after {COMMAND_S_MAX} s: {self.shown}")
            self.shown += os.read(self._terminal, 1 << 16).decode(errors="replace").replace("\r", "")

    def end(self) -> None:
        """Kill the shell and what it has left running."""
        os.close(self._terminal)
        end_session(self._process.pid)
        self._process.wait(COMMAND_S_MAX)


if __name__ == "__main__":
    os.environ["STANIEL_PURE"] = "1"  # compiling takes longer than all the rest
    with tempfile.TemporaryDirectory() as found:
        CAPTURE.write_text(take(Path(found), INSTALLATION), "utf-8")
    sys.stdout.write(CAPTURE.read_text("utf-8"))
