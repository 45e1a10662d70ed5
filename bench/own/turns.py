"""The server with a stopwatch at its hub: `python bench/own/turns.py FILE serve …` in the folder of any checkout.

It runs as a script, so that the server has no code for being measured, and older servers can be measured. Eight bytes
of FILE have the longest turn so far, in nanoseconds of the hub's thread (native order); a reader may set them to 0.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time
from pathlib import Path

NANOSECONDS = struct.Struct("=Q")


class Longest:
    """The longest turn, read by the process that started the server."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(NANOSECONDS.size))

    def ms(self) -> float:
        return float(NANOSECONDS.unpack(self.path.read_bytes())[0]) / 1e6

    def forget(self) -> None:
        with self.path.open("r+b") as file:
            file.write(bytes(NANOSECONDS.size))


def watch(path: str) -> None:
    """Time the turns of this process's hub from now on."""
    from staniel.server import app, hub

    with open(path, "r+b") as file:
        longest = mmap.mmap(file.fileno(), NANOSECONDS.size)

    class TimedHub(hub.Hub):  # a subclass, because methods of a compiled Hub cannot be replaced
        def turn(self, events: list[tuple[int, int]]) -> None:
            began_ns = time.thread_time_ns()
            super().turn(events)
            took_ns = time.thread_time_ns() - began_ns
            if took_ns > NANOSECONDS.unpack_from(longest)[0]:
                NANOSECONDS.pack_into(longest, 0, took_ns)

    app.Hub = TimedHub  # type: ignore[attr-defined]


def main() -> None:
    path = sys.argv.pop(1)
    sys.path[0] = os.path.join(os.getcwd(), "src")  # of the checkout to run, not this script's folder
    from staniel.server.__main__ import main as serve

    watch(path)
    serve()


if __name__ == "__main__":
    main()
