"""Starts `staniel` for the tests in a fraction of the time: a process that has imported it forks it at request.

Most of what a start of `staniel serve` costs is importing (0.45 s of CPU), and the suite starts more than a thousand;
another command is little else. A process started here is like any other: it has its own arguments, standard streams,
folder and session, and default signals; it dies with the starter, and the starter ends with the tests. It runs
`staniel.server.__main__.main`, the whole command line included. Nothing is shared between two of them: each is a copy
of a process that has done nothing.

What it hides: whatever an import does (its time, its memory, a missing module, the environment that it reads),
and signals that arrive before `main` runs. Tests of those execute a real one.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, NoReturn

from tests.support.ready import is_readable

ROOT = Path(__file__).resolve().parents[2]
REQUEST_BYTES_MAX = 1 << 16
START_SECONDS_MAX = 60.0
NUMBER = struct.Struct("<i")  # on the pipe of a server: first its process id, then its wait status
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15


# the side of the tests


class Child:
    """A server that was forked: as much of subprocess.Popen as the tests use. The starter reaps it."""

    def __init__(self, arguments: list[str], stdout: BufferedReader | None, told: int) -> None:
        self.args = arguments
        self.stdout = stdout
        self.returncode: int | None = None
        self._told = told  # the pipe on which the starter tells of it
        self.pid = self._number(START_SECONDS_MAX) or 0
        assert self.pid, "the starter did not start a server"

    def _number(self, seconds_max: float | None) -> int | None:
        """What the starter says next; None if it says nothing in time."""
        if not is_readable(self._told, seconds_max):
            return None
        data = os.read(self._told, NUMBER.size)
        if len(data) < NUMBER.size:
            raise ChildProcessError("the starter has ended")
        number: int = NUMBER.unpack(data)[0]
        return number

    def poll(self) -> int | None:
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def _wait(self, seconds_max: float | None) -> int | None:
        if self.returncode is None and (status := self._number(seconds_max)) is not None:
            self.returncode = os.waitstatus_to_exitcode(status)
            os.close(self._told)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended by itself, and been reaped
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Starter:
    """The process that forks, and the socket on which it is asked. One serves all threads of a process of tests."""

    def __init__(self) -> None:
        self.environment = _lasting(os.environ)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # No PR_SET_PDEATHSIG: it would go with the thread that asks first. The end of the socket is what it heeds.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.starter", str(theirs.fileno())],
                cwd=ROOT, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip
        self._socket = ours

    def start(self, arguments: list[str], stderr: int, cwd: Path) -> Child:
        """Run `staniel ARGUMENTS`, with nothing to read, and standard output in a pipe."""
        heard, say = os.pipe()
        try:
            told = self._ask(arguments, say, stderr, cwd)
        finally:
            os.close(say)
        return Child(arguments, os.fdopen(heard, "rb"), told)

    def run(self, arguments: list[str], cwd: Path, seconds_max: float) -> subprocess.CompletedProcess[str]:
        """Run `staniel ARGUMENTS`, with nothing to read, to its end, as subprocess.run does with texts."""
        with TemporaryFile() as stdout, TemporaryFile() as stderr:
            child = Child(arguments, None, self._ask(arguments, stdout.fileno(), stderr.fileno(), cwd))
            try:
                code = child.wait(seconds_max)
            finally:
                child.kill()
            texts = [_text_of(file) for file in (stdout, stderr)]
        return subprocess.CompletedProcess(arguments, code, *texts)

    def _ask(self, arguments: list[str], stdout: int, stderr: int, cwd: Path) -> int:
        """Have a process made, and return the pipe on which the starter tells of it."""
        told, tell = os.pipe()
        try:
            request = json.dumps({"arguments": arguments, "cwd": str(cwd)}).encode()
            assert len(request) <= REQUEST_BYTES_MAX
            fds = array.array("i", [stdout, stderr, tell])
            self._socket.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        finally:
            os.close(tell)
        return told

    def close(self) -> None:
        self._socket.close()
        self._process.wait(START_SECONDS_MAX)


_lock = threading.Lock()
_starters: dict[int, Starter] = {}  # by process: one that was forked off must not use its parent's


def start(arguments: list[str], stderr: int, cwd: Path = ROOT) -> Child:
    """Run `staniel ARGUMENTS` in a new process."""
    return _starter().start(arguments, stderr, cwd)


def run(arguments: list[str], seconds_max: float) -> subprocess.CompletedProcess[str] | None:
    """Run `staniel ARGUMENTS` to its end. None, and nothing is run, if a test has changed the environment, which a
    program reads as it starts.
    """
    starter = _starter()
    if starter.environment != _lasting(os.environ):
        return None
    return starter.run(arguments, Path.cwd(), seconds_max)


def _starter() -> Starter:
    with _lock:
        starter = _starters.get(os.getpid())
        if starter is None:
            starter = _starters[os.getpid()] = Starter()
            atexit.register(starter.close)
    return starter


def _lasting(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what pytest changes from test to test."""
    return {name: value for name, value in environment.items() if name != "PYTEST_CURRENT_TEST"}


def _text_of(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode().replace("\r\n", "\n").replace("\r", "\n")


# the starter itself


def _receive(fd: int) -> tuple[bytes, list[int]]:
    """A request and what it brings; b"" when the tests have ended. The socket is a bare number: an object's copy in a
    forked server would close that number when it is collected, whatever file has it by then.
    """
    sock = socket.socket(fileno=fd)
    try:
        fds = array.array("i")
        data, extra, _, _ = sock.recvmsg(REQUEST_BYTES_MAX, socket.CMSG_SPACE(3 * fds.itemsize))
        for _, _, passed in extra:
            fds.frombytes(passed)
        return data, list(fds)
    finally:
        sock.detach()


def _become(request: dict[str, str], arguments: list[str], fds: list[int]) -> None:
    """In the new process: what a new process would have."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _LIBC.prctl(_PR_SET_NAME, b"staniel", 0, 0, 0)
    os.setsid()
    for number, fd in zip((1, 2), fds, strict=False):
        os.dup2(fd, number)
    os.closerange(3, 1 << 16)
    os.chdir(request["cwd"])
    sys.argv = ["staniel", *arguments]


def serve(fd: int) -> bool:
    """Fork at each request, and reap. Returns True in a new server, False when the tests have ended."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    children: dict[int, tuple[int, int]] = {}  # by their pidfd: process id, and the pipe of who waits for it
    while True:
        for ready, _ in poller.poll():
            if ready != fd:
                pid, tell = children.pop(ready)
                poller.unregister(ready)
                os.close(ready)
                _tell(tell, os.waitpid(pid, 0)[1])
                os.close(tell)
                continue
            data, fds = _receive(fd)
            if not data:
                _end(children)
                return False
            request = json.loads(data)
            pid = os.fork()
            if not pid:
                _become(request, request["arguments"], fds)
                return True
            os.close(fds[0])
            os.close(fds[1])
            _tell(fds[2], pid)
            pidfd = os.pidfd_open(pid)
            children[pidfd] = pid, fds[2]
            poller.register(pidfd, select.POLLIN)


def _tell(pipe: int, number: int) -> None:
    try:
        os.write(pipe, NUMBER.pack(number))
    except BrokenPipeError:
        pass  # nobody waits for it any more


def _end(children: dict[int, tuple[int, int]]) -> None:
    for pid, _ in children.values():
        os.kill(pid, signal.SIGKILL)


def _load() -> None:
    """Import what a server imports until it serves, and the commands, and find that nothing of it has begun to run."""
    import pkgutil
    import tomllib  # noqa: F401

    import trio._core._run as run

    import staniel.server.app  # noqa: F401
    from staniel.broker.config import load
    from staniel.journal import tools
    from staniel.server import cli

    for package in (cli, tools):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    load.defaults("/")  # evaluates the annotations of all settings, a sixth of the CPU time of a start
    gc.freeze()  # a process at its end goes through all that is not, and copies the pages

    # Trio's order of tasks is random, and seeded by its import: without this, the same in every server.
    os.register_at_fork(after_in_child=lambda: run._r.seed(time.time_ns() ^ os.getpid()))
    assert threading.active_count() == 1 and len(os.listdir("/proc/self/task")) == 1, "a thread would be lost by a fork"


def main() -> NoReturn:
    from staniel.server.__main__ import main as staniel

    _load()
    if serve(int(sys.argv[1])):
        staniel()
    sys.exit(0)


if __name__ == "__main__":
    main()
