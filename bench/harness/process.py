"""A server process: started on its core, awaited until its port accepts, killed and removed in every case.

Three mechanisms ensure that no process remains: a context manager; SIGTERM and SIGHUP turned into exceptions, so that
context managers run; and the kernel, asked to kill the child if we die without notice.
"""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from msgspec import Struct

from staniel.bench.harness.contestant import ROOT, Contestant, Launch, Sync

_POLL_SECONDS = 0.01
_LOG_TAIL_CHARS = 400
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)

# Below the kernel's ephemeral range: a connect() to a free ephemeral port can connect to itself and take the server's
# port.
_PORTS = range(10_240, 32_000)


class StartFailed(Exception):
    """A server ended, or stayed silent, before its port answered; the text holds the end of its log."""


class Running(Struct, frozen=True):
    pid: int
    port: int
    log: Path


@contextmanager
def running(contestant: Contestant, sync: Sync, base: Path, core: int | None) -> Iterator[Running]:
    """Yield a new server in a new folder under `base`, pinned to `core` if given. Raises StartFailed."""
    folder = Path(tempfile.mkdtemp(prefix=f"bench-{contestant.name}-", dir=base))
    try:
        data = folder / "data"
        data.mkdir()
        port = free_port()
        command = contestant.command(Launch(port, data, sync))
        with (folder / "log").open("wb") as log, _spawned(command, log.fileno(), core) as child:
            server = Running(child.pid, port, folder / "log")
            _await_port(contestant, child, server)
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _spawned(command: list[str], log: int, core: int | None) -> Iterator[subprocess.Popen[bytes]]:
    try:
        child = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True, preexec_fn=child_setup(core),
        )  # fmt: skip
    except OSError as error:
        raise StartFailed(f"{command[0]}: {error.strerror}") from error
    try:
        yield child
    finally:
        _kill_group(child)


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    child.wait()


def child_setup(core: int | None) -> Callable[[], None]:
    """Return a preexec_fn that pins the child to a core, and has it killed when its parent dies."""

    def setup() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if core is not None:
            os.sched_setaffinity(0, {core})

    return setup


def free_port() -> int:
    """Return a random free port on loopback."""
    while True:
        port = random.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def _await_port(contestant: Contestant, child: subprocess.Popen[bytes], server: Running) -> None:
    name, seconds_max = contestant.name, contestant.start_seconds_max
    give_up = time.monotonic() + seconds_max
    while time.monotonic() < give_up:
        if child.poll() is not None:
            raise StartFailed(f"{name} ended with status {child.returncode} at once: {log_tail(server)}")
        try:
            socket.create_connection(("127.0.0.1", server.port), timeout=1).close()
        except OSError:
            time.sleep(_POLL_SECONDS)
        else:
            return
    raise StartFailed(f"{name} did not answer on its port in {seconds_max:.0f} s: {log_tail(server)}")


def log_tail(server: Running) -> str:
    """Return the end of the server's output, on one line."""
    text = " ".join(server.log.read_text(errors="replace").split())
    return text[-_LOG_TAIL_CHARS:] or "it printed nothing"


def exit_on_signals() -> None:
    """Turn SIGTERM and SIGHUP into SystemExit, so that every `finally` runs."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGHUP, leave)
