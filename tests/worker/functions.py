"""Functions that workers of the tests call by name: each item is a number, and what was done is a line of a file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

DONE = "STANIEL_TEST_DONE"


def note(data: bytes) -> None:
    """Write the item's line, with one write."""
    fd = os.open(os.environ[DONE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, data + b"\n")
    finally:
        os.close(fd)


def slow(data: bytes) -> None:
    time.sleep(0.002)
    note(data)


def odd(data: bytes) -> None:
    """Do what the item says."""
    what, _, rest = data.partition(b" ")
    if what == b"print":
        print("a line that is no reply", flush=True)
    elif what == b"raise":
        raise RuntimeError(rest.decode())
    elif what == b"exit":
        sys.exit(3)
    elif what == b"vanish":
        os._exit(int(rest))
    elif what == b"memory":
        bytearray(1 << 32)
    elif what == b"hang":
        time.sleep(600)
    elif what == b"orphan":
        child = os.fork()
        if not child:
            time.sleep(20)
            os._exit(0)
        Path(rest.decode()).write_text(str(child))
        os._exit(3)
    elif what == b"terminate":
        program = subprocess.Popen(["sleep", "20"])
        program.terminate()
        assert program.wait() == -signal.SIGTERM
        child = os.fork()
        if not child:
            os._exit(signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL)
        assert os.waitpid(child, 0) == (child, 0)


def hang(data: bytes) -> None:
    note(b"begun")
    time.sleep(600)


def forks(data: bytes) -> None:
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        note(b"%d" % os.waitstatus_to_exitcode(status))


async def hang_on_the_loop(data: bytes) -> None:
    import anyio

    note(b"begun")
    await anyio.sleep(600)


async def fork_on_the_loop(data: bytes) -> None:
    forks(data)


async def waits(data: bytes) -> None:
    import anyio

    await anyio.sleep(0.001)
    note(data)
