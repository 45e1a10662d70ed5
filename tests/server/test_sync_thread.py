"""The thread that waits for the disk: its tasks are done, what goes wrong arrives, and it stands back if told to."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from staniel.server.sync_thread import WorkerThread
from tests.support.ready import is_readable


class Look:
    """Notes how its thread is scheduled."""

    nice = -1

    def run(self) -> None:
        self.nice = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


class Trouble:
    def run(self) -> None:
        raise OSError("the disk is gone")


@contextmanager
def sync_thread(nice: int) -> Iterator[WorkerThread[Look | Trouble]]:
    made: WorkerThread[Look | Trouble] = WorkerThread("test", nice)
    try:
        yield made
    finally:
        made.close()


def flag_is_up(fd: int) -> bool:
    return is_readable(fd, 60)


@pytest.mark.parametrize("more", [0, 7])
def test_the_thread_is_as_nice_as_asked_and_the_others_are_not(more: int) -> None:
    ours = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    with sync_thread(more) as thread:
        look = Look()
        thread.start(look)
        assert flag_is_up(thread.fd) and thread.finished() is look
    assert look.nice == (max(more, ours) if more else ours)
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == ours


def test_what_a_task_raises_is_raised_where_its_end_is_asked_for() -> None:
    with sync_thread(0) as thread:
        thread.start(Trouble())
        assert flag_is_up(thread.fd)
        with pytest.raises(OSError, match="the disk is gone"):
            thread.finished()
        assert not is_readable(thread.fd)


def test_an_end_that_nobody_has_asked_for_is_not_waited_for() -> None:
    with sync_thread(0) as thread:
        assert thread.finished() is None
        look = Look()
        thread.start(look)
        assert thread.wait() is look
        assert thread.finished() is None


def test_a_process_that_is_nicer_than_asked_keeps_that() -> None:
    """To take it back is refused to all but root."""
    seen = list[int]()

    def run() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        with sync_thread(5) as thread:  # a thread begins as nice as the one that made it
            thread.start(Look())
            ended = thread.wait()
            assert isinstance(ended, Look)
            seen.append(ended.nice)

    maker = threading.Thread(target=run)
    maker.start()
    maker.join()
    assert seen == [19]
