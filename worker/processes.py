"""A function in processes: each lane has one, which is started by a lane's first item and again after its end.

Parent and child exchange frames over pipes. The parent sends 4 bytes of length and the data of an item; the child
replies with a byte for the end, 4 bytes of length, and the traceback. The child is started anew rather than forked, so
it shares no connection, lock or thread with the worker. Programs that the function starts get neither the pipes nor the
child's signals. Otherwise the parent would not notice the end of the child while they live, and a function that forks
and returns twice would reply for the next item.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable
from functools import partial
from select import POLLIN, poll
from typing import IO

from staniel.worker.runners import DONE, FORKED, End, NextData, Outcome, ThreadRunner, is_always_due
from staniel.worker.target import find

SIZE = struct.Struct("!I")
ENDS = {b"D": End.DONE, b"F": End.FAILED, b"G": End.GAVE_UP}
LETTERS = {end: letter for letter, end in ENDS.items()}
READY = b"R"
STOPS = (signal.SIGINT, signal.SIGTERM)
_PR_SET_PDEATHSIG = 1


class ProcessRunner:
    """A runner in a process. An interrupted call is killed with its process."""

    def __init__(self, target: str, memory_max_bytes: int, start_limit_s: float = 0) -> None:
        """Prepare a runner. A process that imports the function for longer than `start_limit_s` is killed; 0: none
        is.
        """
        self._target = target
        self._memory_max_bytes = memory_max_bytes
        self._start_limit_s = start_limit_s
        self._child: subprocess.Popen[bytes] | None = None
        self._failed_start: Outcome | None = None
        self._why = ""

    def prepare(self) -> None:
        """Start the process, unless it is there: it may have been killed between two calls."""
        if self._child is not None and self._child.poll() is not None:
            self._ended()
        if self._child is None:
            try:
                self._start()
            except (OSError, EOFError):
                self._failed_start = self._ended()

    def run(self, data: bytes, next_data: NextData | None = None) -> Outcome:
        """Call the function in the process, once. One that `interrupt` has killed since `prepare` is not replaced: the
        call is to fail.
        """
        if self._child is None:
            self.prepare()
        if self._failed_start is not None:
            outcome, self._failed_start = self._failed_start, None
            return outcome
        try:
            child = self._child
            assert child is not None and child.stdin is not None and child.stdout is not None
            child.stdin.write(SIZE.pack(len(data)) + data)
            child.stdin.flush()
            letter, text = read_reply(child.stdout)
        except (OSError, EOFError):
            return self._ended()
        self._why = ""
        return DONE if letter == b"D" else Outcome(ENDS[letter], text)

    def _start(self) -> None:
        """Start the process, and wait until it has imported the function. Raises EOFError if it cannot."""
        command = [sys.executable, "-c", f"from {__name__} import {main.__name__}; {main.__name__}()"]
        self._child = child = subprocess.Popen(
            [*command, self._target, str(self._memory_max_bytes)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        if self._start_limit_s:
            imported = poll()  # not select(), which refuses descriptors from 1024 on
            imported.register(child.stdout, POLLIN)
            if not imported.poll(self._start_limit_s * 1000):
                self._why = f"the process took longer than {self._start_limit_s:g} s to import the function"
                raise EOFError
        letter, text = read_reply(child.stdout)
        if letter != READY:
            self._why = text
            raise EOFError

    def _ended(self) -> Outcome:
        """Return the outcome of a call whose process has ended."""
        child, self._child = self._child, None
        why, self._why = self._why, ""
        if child is None:
            return Outcome(End.FAILED, why or "the process could not be started")
        for pipe in (child.stdin, child.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()
        child.kill()
        status = child.wait()
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return Outcome(End.FAILED, why or f"the process of the function {how}")

    def interrupt(self, why: str, is_due: Callable[[], bool] = is_always_due) -> None:
        """Kill the process."""
        child = self._child
        if child is not None and is_due():
            self._why = why
            child.kill()

    def close(self) -> None:
        """End the process."""
        if self._child is not None:
            self._ended()


def read_reply(pipe: IO[bytes] | None) -> tuple[bytes, str]:
    """Return the letter and the text of a reply. Raises EOFError."""
    assert pipe is not None
    head = read_exactly(pipe, 1 + SIZE.size)
    (size,) = SIZE.unpack(head[1:])
    return head[:1], read_exactly(pipe, size).decode("utf-8", "replace")


def read_exactly(pipe: IO[bytes], size: int) -> bytes:
    """Return so many bytes. Raises EOFError if the other side ends before."""
    data = pipe.read(size)
    if len(data) < size:
        raise EOFError
    return data


def main() -> None:
    """Serve calls until the worker closes the pipe. The worker decides about stops, so its signals change nothing here;
    SIG_IGN would stay in force in programs that the function starts, which could not be terminated.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in STOPS:
        signal.signal(number, lambda *_: None)
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the function prints must not stand between replies
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.register_at_fork(after_in_child=partial(_leave_the_worker, requests.fileno(), replies.fileno()))
    process = os.getpid()
    target, memory_max_bytes = sys.argv[1], int(sys.argv[2])
    try:
        runner = ThreadRunner(find(target))
    except BaseException:
        _reply(replies, b"F", traceback.format_exc())
        return
    if memory_max_bytes:
        resource.setrlimit(resource.RLIMIT_AS, (memory_max_bytes, memory_max_bytes))
    _reply(replies, READY, "")
    while True:
        try:
            (size,) = SIZE.unpack(read_exactly(requests, SIZE.size))
            outcome = runner.run(read_exactly(requests, size))
        except EOFError:
            return
        if os.getpid() != process:
            os._exit(FORKED)  # the function has forked and returned twice
        _reply(replies, LETTERS[outcome.end], outcome.reason)


def _leave_the_worker(*pipes: int) -> None:
    """Give up the pipes to the worker, and its signals, in a process that the function has forked."""
    null = os.open(os.devnull, os.O_RDWR)
    for pipe in pipes:
        os.dup2(null, pipe, inheritable=False)
    os.close(null)
    for number in STOPS:
        signal.signal(number, signal.SIG_DFL)


def _reply(pipe: IO[bytes], letter: bytes, text: str) -> None:
    data = text.encode("utf-8", "replace")
    pipe.write(letter + SIZE.pack(len(data)) + data)
    pipe.flush()
