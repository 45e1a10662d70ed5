"""Makes docs/pictures/terminal-move.svg: python -m tests.server.cli.terminal_picture

A move of many items on a terminal, cancelled from another one and undone. Of each bar, which changes in place, three
moments are shown below each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import tempfile
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests.server.admin.asking import Operator
from tests.support.process import STANIEL, Server, running
from tests.support.wire import Wire

PICTURE = Path(__file__).resolve().parents[3] / "docs" / "pictures" / "terminal-move.svg"
CONFIG = "[admin]\nport = 0\n"
ITEMS, AT_ONCE, ITEM_BYTES = 300_000, 500, 250
COLUMNS, LINES = 166, 30
MOMENTS = 3
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
MOVES = re.compile(r"\x1b\[[0-9;?]*[A-HJKfhl]|\r")  # all but colours
FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def fill(wire: Wire) -> None:
    item = b"set archive 0 0 %d\r\n%b\r\n" % (ITEM_BYTES, b"x" * ITEM_BYTES)
    for _ in range(ITEMS // AT_ONCE):
        wire.say(item * AT_ONCE)
        wire.hear(len(b"STORED\r\n") * AT_ONCE)


def on_terminal(server: Server, *arguments: str) -> list[str]:
    """Run a command on a terminal; return its lines in the order in which they were shown, changed ones included."""
    inner, outer = pty.openpty()
    fcntl.ioctl(outer, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = {**os.environ, "STANIEL_SPOOL": str(server.spool), "TERM": "xterm-256color", "STANIEL_PURE": "1"}
    child = subprocess.Popen([*STANIEL, *arguments], stdin=outer, stdout=outer, stderr=outer, env=environment)
    os.close(outer)
    seen = b""
    with contextlib.suppress(OSError):  # EIO: its other side is closed
        while data := os.read(inner, 65536):
            seen += data
    os.close(inner)
    child.wait()
    return [line for line in re.split(r"\n|" + MOVES.pattern, seen.decode()) if ESCAPES.sub("", line).strip()]


def moments(lines: list[str]) -> list[str]:
    """Keep MOMENTS of the moments of a bar, and all other lines."""
    bars = [line for line in lines if " items/s" in line]
    kept = bars[1 :: max(1, len(bars) // MOMENTS)][:MOMENTS]
    return [*kept, *[line for line in lines if line not in bars]]


def wait_until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        time.sleep(0.02)


def main() -> None:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    with tempfile.TemporaryDirectory() as folder, running(Path(folder), config=CONFIG) as server:
        with Wire(server.address) as wire:
            fill(wire)
        operator = Operator(server.second_port)
        cancelled: list[str] = []

        def cancel() -> None:
            wait_until(lambda: any(each["done"] > ITEMS // 3 for each in operator.get("/api/operations")))
            cancelled.extend(on_terminal(server, "operations", "1", "--cancel"))

        other = threading.Thread(target=cancel)
        other.start()
        moved = on_terminal(server, "move", "archive", "archive-2025", "--yes")
        other.join()
        undone = on_terminal(server, "undo", "1")
    for command, lines in (
        ("staniel move archive archive-2025 --yes", moments(moved)),
        ("staniel operations 1 --cancel      # on another terminal, meanwhile", cancelled),
        ("staniel undo 1", moments(undone)),
    ):
        console.print(Text.assemble(("$ ", "green"), (command, "bold")))
        for line in lines:
            console.print(Text.from_ansi(line.rstrip()))
    PICTURE.write_text(FONT.sub("", console.export_svg(title="a move, cancelled and undone")))


if __name__ == "__main__":
    main()
