"""A thread that runs blocking calls on the disk, one at a time, and signals the hub's poller through an eventfd; and
one that closes a file.

A thread of our own and an eventfd cost a third of a trip through a pool of worker threads, and every durable reply pays
for that.
"""

from __future__ import annotations

import errno
import os
import select
import threading
from _thread import start_new_thread
from contextlib import suppress
from queue import SimpleQueue
from time import perf_counter_ns
from typing import Generic

from staniel.server.interfaces import E

CLOSING_NICE = 10  # the same as for background tasks


class WorkerThread(Generic[E]):
    """A worker thread. `fd` becomes readable when the started task has ended. `nice` is the thread's priority, which
    also holds for the kernel's work for its tasks.
    """

    def __init__(self, name: str, nice: int = 0) -> None:
        self._nice = nice
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._started: SimpleQueue[E | None] = SimpleQueue()
        self._done: SimpleQueue[tuple[E, BaseException | None]] = SimpleQueue()
        self.took_ns = 0  # the duration of the last task
        self._is_busy = False
        self.is_cheap = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # all that Python says of clone's EAGAIN
            os.close(self.fd)
            raise OSError(errno.EAGAIN, "cannot start a thread for it", name) from error

    def start(self, task: E) -> None:
        """Run `task` in the thread."""
        self._is_busy = True
        self._started.put(task)

    def finished(self) -> E | None:
        """Return the task that has ended since the last call, if any. Raises what it raised."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return None
        self._is_busy = False
        task, error = self._done.get()
        if error is not None:
            raise error
        return task

    def wait(self) -> E:
        """Block until the started task has ended, and return it."""
        self.join()
        task = self.finished()
        assert task is not None
        return task

    def join(self) -> None:
        """Block until the started task has ended; `finished` must still be called."""
        flag = select.poll()
        flag.register(self.fd, select.POLLIN)
        flag.poll()

    def wait_for_task(self) -> None:
        """Block until nothing runs: a sync that fails leaves its mark from within this process, or nowhere."""
        if self._is_busy:
            self.join()

    def close(self) -> None:
        """End the thread once it is idle."""
        self._started.put(None)
        self._thread.join()
        os.close(self.fd)

    def _work(self) -> None:
        if self._nice:
            _be_nice(self._nice)
        while (task := self._started.get()) is not None:
            error: BaseException | None = None
            began_ns = perf_counter_ns()
            try:
                task.run()
            except BaseException as wrong:  # carried to the hub, which ends the process
                error = wrong
            self.took_ns = perf_counter_ns() - began_ns
            self._done.put((task, error))
            os.eventfd_write(self.fd, 1)  # after the result, so that it is there when the hub wakes


def _be_nice(nice: int) -> None:
    """Lower this thread's priority: on Linux each thread has its own. A thread that is nicer already, like its process,
    may not be allowed to raise it.
    """
    own = threading.get_native_id()
    try:
        os.setpriority(os.PRIO_PROCESS, own, max(nice, os.getpriority(os.PRIO_PROCESS, own)))
    except OSError:
        pass  # a sandbox forbids it: the work is done all the same


def close_apart(fd: int) -> None:
    """Close the last descriptor of a removed file in a thread that then ends: the thread of the background tasks may be
    busy for long, and the disk may need the room.
    """
    try:
        start_new_thread(_close_nicely, (fd,))  # a Thread would be waited for until it runs
    except RuntimeError:  # the system has none
        os.close(fd)


def _close_nicely(fd: int) -> None:
    _be_nice(CLOSING_NICE)
    with suppress(OSError):  # there is no name that it could harm
        os.close(fd)
