"""A measured server: its program, promise and command line; and the folder of this checkout."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from enum import Enum
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS_MAX = 15.0


class Sync(Enum):
    """The promise before a reply; the value is our server's own spelling."""

    JOURNALED = "1s"
    DURABLE = "always"


class Launch(Struct, frozen=True):
    """The place and mode of one server: a TCP port on loopback, a folder of its own, a promise."""

    port: int
    folder: Path
    sync: Sync


class Contestant(Struct, frozen=True):
    """A server: its name in the table, the generator's protocol, the command that runs it in the foreground.

    `described` replaces the program's version, or `version_program` prints it. `kv` is for a plain memcached: a key for
    each item, so it shows the cost of protocol and sockets without a queue. `promises` returns what the installed
    program can promise.
    """

    name: str
    proto: str
    program: str
    command: Callable[[Launch], list[str]]
    kv: bool = False
    version_args: tuple[str, ...] = ()
    version_program: str = ""
    described: str = ""
    start_seconds_max: float = START_SECONDS_MAX
    promises: Callable[[], tuple[Sync, ...]] = lambda: tuple(Sync)


def version(contestant: Contestant) -> str:
    """Return a peer's version, on one line; for ours, the commit, or the command if one was given."""
    return (
        contestant.described
        or first_line([contestant.version_program or contestant.program, *contestant.version_args])
        or "unknown"
    )


def first_line(command: list[str]) -> str:
    """Return the first line that a command prints, or "" if it cannot be run or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout.splitlines() or [""])[0].strip() if done.returncode == 0 else ""
