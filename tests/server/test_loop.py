"""What ends the service waits for the disk's calls that have begun."""

from __future__ import annotations

import threading
from contextlib import closing
from types import SimpleNamespace

import pytest

from staniel.server.clock import ServerClock
from staniel.server.cluster.driver import MustBeginAnew
from staniel.server.gc_policy import GcPolicy
from staniel.server.loop import Loop
from staniel.server.machine import SystemMachine


class LateTask:
    """A task that ends some time after a turn has failed, and fails, too."""

    redo = None

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.has_noted = False

    def run(self) -> None:
        self.may_end.wait()
        for _ in range(1000):
            threading.Event().wait(0)  # gives way to the thread that would not wait
        self.has_noted = True
        raise OSError("the disk is gone")


@pytest.mark.parametrize("thread", ["syncs", "tasks"])
@pytest.mark.parametrize("error", [MustBeginAnew(), OSError("no file is left")])
async def test_a_failed_turn_ends_the_service_once_the_running_sync_has_noted_its_failure(
    thread: str, error: Exception
) -> None:
    machine = SystemMachine(ServerClock())
    with closing(machine.poller), closing(machine.syncs), closing(machine.tasks):
        task = LateTask()
        getattr(machine, thread).start(task)

        def turn(events: object) -> None:
            task.may_end.set()
            raise error

        hub = SimpleNamespace(is_stopping=False, is_idle=False, turn=turn)
        with pytest.raises(type(error)):
            await Loop(hub, machine, GcPolicy()).run()  # type: ignore[arg-type]
        assert task.has_noted


async def test_a_failure_that_was_taken_is_not_waited_for_again() -> None:
    machine = SystemMachine(ServerClock())
    with closing(machine.poller), closing(machine.syncs), closing(machine.tasks):
        task = LateTask()
        task.may_end.set()
        machine.syncs.start(task)  # type: ignore[arg-type]

        def turn(events: object) -> None:
            machine.syncs.join()
            machine.syncs.finished()

        hub = SimpleNamespace(is_stopping=False, is_idle=False, turn=turn)
        with pytest.raises(OSError, match="the disk is gone"):
            await Loop(hub, machine, GcPolicy()).run()  # type: ignore[arg-type]
