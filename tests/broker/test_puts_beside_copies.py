"""Clients put what no byte tells from an item whose copy is on its way to the same queue: a crash neither loses nor
doubles one.

An item is put at each step of an operation, and the server ends at each later one. The wall is set so that the put
has the very time of a copy: before the operation, or in the moment of the put.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle
from typing import NamedTuple

import pytest

from staniel.broker.operations import moved_back, purge, transfer
from staniel.broker.operations.purge import RunningUndo
from staniel.broker.operations.transfer import TransferOperation
from staniel.broker.wall_clock import STEP_MS, ClockReading
from staniel.journal.background import BackgroundTask
from staniel.journal.group_commit import Sync
from staniel.sim.disk.disk import Disk
from staniel.sim.disk.durable import Crash
from staniel.sim.world import START_MS, World
from tests.broker.operations.test_undo import Admin, asked, settles

COUNT = 3
LATER_MS = 3_600_000
ITEM = b"same"
DEAD_LETTERS = 'queues.q.max_deliveries = 1\nqueues.q.dead_letter_queue = "dead"\n'
FORMATS = pytest.mark.parametrize("config", [DEAD_LETTERS, f'default.journal_format = "libkestrel"\n{DEAD_LETTERS}'])
Story = Callable[[World], None]


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purge, "ITEMS_PER_SLICE", 2)
    monkeypatch.setattr(moved_back, "ITEMS_PER_SLICE", 2)
    monkeypatch.setattr("staniel.broker.operations.move.ITEMS_PER_SLICE", 2)
    monkeypatch.setattr(transfer, "UNDER_WAY_MAX", 2)


class Machine:
    """The wall can be set; server time goes on."""

    def __init__(self, config: str, disk: Disk | None = None, wall_ms: int = START_MS, passed_ms: int = 0) -> None:
        self._set_ms = 0
        self._began_ms = wall_ms
        self._passed_ms = passed_ms
        self.world: World | None = None
        self.world = World(config, disk, wall_ms, read_clocks=self._read)

    @property
    def wall_ms(self) -> int:
        now_ms = self._began_ms if self.world is None else self.world.now_ms
        return now_ms + self._set_ms

    @property
    def passed_ms(self) -> int:
        return self._passed_ms + (0 if self.world is None else self.world.now_ms - self._began_ms)

    @property
    def missed_ms(self) -> int:
        """How far the wall is from what the server takes it for."""
        assert self.world is not None
        return self.wall_ms - self.world.broker.calendar.wall_ms(self.world.now_ms)

    def _read(self) -> ClockReading:
        return ClockReading(self.wall_ms, self.passed_ms, "boot")

    def set_wall(self, wall_ms: int) -> None:
        assert self.world is not None
        self._set_ms = wall_ms - self.world.now_ms
        self.world.broker.wall.check_clock(self.world.now_ms)

    def after(self, disk: Disk, config: str) -> Machine:
        """A server that starts on `disk`, at this moment."""
        return Machine(config, disk, self.wall_ms, self.passed_ms)


class Steps:
    """What a server does, in as small steps as there are: a turn, the beginning, the work and the end of syncs and of
    tasks. Clients may speak, and the machine may stop, between any two of them.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self._sync: Sync | None = None
        self._tasks: list[BackgroundTask] = []
        self._steps = cycle((self._turn, self._begin, self._work, self._end))

    def go_on(self) -> bool:
        """The next step that there is; False: there is none."""
        for _ in range(4):
            if next(self._steps)():
                return True
        return bool(self.world.broker.operations.running)

    def _turn(self) -> bool:
        self.world.turn(1)
        return bool(self.world.broker.operations.running)

    def _begin(self) -> bool:
        if self._sync is None:
            self._sync = self.world.start_sync()
        self._tasks += self.world.start_tasks()
        return self._sync is not None or bool(self._tasks)

    def _work(self) -> bool:
        if self._sync is not None:
            self._sync.run()
        for task in self._tasks:
            self.world.run_task(task)
        return self._sync is not None or bool(self._tasks)

    def _end(self) -> bool:
        if self._sync is None and not self._tasks:
            return False
        if self._sync is not None:
            self.world.finish_sync(self._sync)
            self._sync = None
        for task in self._tasks:
            self.world.finish_task(task)
        self._tasks.clear()
        return True


def put_equal(world: World, queue: str) -> None:
    client = world.client()
    client.sends(b"set %b 0 0 4\r\nsame\r\n" % queue.encode() * COUNT)
    settles(world)
    assert client.hears() == " ".join(["STORED"] * COUNT)


def begin_all_undos(world: World) -> None:
    for each in asked(world, "GET", "/api/undo")[1]:
        Admin(world).asks("POST", f"/api/undo/{each['id']}")


def undo_of_a_purge(world: World) -> None:
    put_equal(world, "q")
    world.turn(LATER_MS)
    assert asked(world, "POST", "/api/queues/q/purge")[1]["purged"] == COUNT
    begin_all_undos(world)


def undo_of_a_move(world: World) -> None:
    put_equal(world, "q")
    world.turn(LATER_MS)
    assert asked(world, "POST", "/api/queues/q/move", {"to": "a"})[0] == 200
    begin_all_undos(world)


def move(world: World) -> None:
    put_equal(world, "a")
    world.turn(LATER_MS)
    Admin(world).asks("POST", "/api/queues/a/move", {"to": "q"})


def redrive(world: World) -> None:
    """By an intent for each item."""
    put_equal(world, "q")
    client = world.client().says(*["get q/open", "get q/abort"] * COUNT)
    settles(world)
    assert client.hears().count("VALUE") == COUNT and world.items("dead") == [ITEM] * COUNT
    world.turn(LATER_MS)
    Admin(world).asks("POST", "/api/queues/dead/redrive")


STORIES = pytest.mark.parametrize("story", [undo_of_a_purge, undo_of_a_move, move, redrive])


def times_of_copies(world: World) -> set[int]:
    """Of those that are on their way."""
    found = {START_MS}
    for each in world.broker.operations.running.values():
        if isinstance(each, TransferOperation):
            found |= {copy.added_ms for slice in each._under_way for copy in slice.copies}
        if isinstance(each, RunningUndo):
            found |= {item.added_ms for item in each._items}
    return found


class Put(NamedTuple):
    """An item is put before the step number `step` of an operation, and `lead` steps before that the wall is set so
    that it gets the time of one of the copies; None: it is not set.
    """

    step: int
    lead: int | None
    time_ms: int


def begun(story: Story, config: str) -> tuple[Machine, Steps]:
    machine = Machine(config)
    assert machine.world is not None
    story(machine.world)
    return machine, Steps(machine.world)


def puts(story: Story, config: str, lead: int | None) -> Iterator[tuple[Put, list[int]]]:
    """All of them, with the moments of the steps before."""
    _, steps = begun(story, config)
    moments: list[int] = []
    is_more = True
    while is_more:
        moments.append(steps.world.now_ms)
        times = [START_MS] if lead is None else sorted(times_of_copies(steps.world))
        for time_ms in times:
            yield Put(len(moments) - 1, lead, time_ms), moments
        is_more = steps.go_on()


def lived(story: Story, config: str, put: Put, moments: list[int]) -> Iterator[tuple[Machine, bool]]:
    """The machine after each step of the operation from the put on, and whether the put has been answered."""
    machine, steps = begun(story, config)
    world = steps.world
    lead = min(put.lead or 0, put.step)
    for step in range(put.step + 1):
        if put.lead is not None and step == put.step - lead:
            wall_ms = put.time_ms - (moments[put.step] - moments[step])
            if abs(machine.wall_ms - wall_ms) < STEP_MS:
                world.turn(STEP_MS)
            machine.set_wall(wall_ms)
        if step < put.step:
            steps.go_on()
    client = world.client()
    client.sends(b"set q 0 0 4\r\nsame\r\n")
    is_more = True
    heard = ""
    while is_more:
        heard += client.hears()
        yield machine, heard == "STORED"
        is_more = steps.go_on()


def everything(world: World) -> int:
    """How many items there are when all that can be undone has been."""
    settles(world)
    for each in asked(world, "GET", "/api/undo")[1]:
        assert asked(world, "POST", f"/api/undo/{each['id']}")[0] == 200
    return sum([world.items(queue.name).count(ITEM) for queue in world.broker.queues])


def states(story: Story, config: str, lead: int | None) -> Iterator[tuple[Put, Machine, Disk, bool]]:
    """What every crash may leave: the put before it, the machine, its disk, and whether the put had been answered. None
    comes twice.
    """
    seen = set()
    for put, moments in puts(story, config, lead):
        for machine, is_stored in lived(story, config, put, moments):
            assert machine.world is not None
            for how in Crash:
                disk = machine.world.disk.crash(how)
                if (state := (bytes_of(disk), is_stored)) not in seen:
                    seen.add(state)
                    yield put, machine, disk, is_stored
        assert abs(machine.missed_ms) < STEP_MS, "a step of the wall was not taken over"


@FORMATS
@STORIES
@pytest.mark.parametrize("lead", [None, 0, 3, 100])
def test_an_item_that_is_put_beside_equal_copies_is_none_of_them(story: Story, config: str, lead: int | None) -> None:
    wrong = []
    count = 0
    for put, machine, disk, is_stored in states(story, config, lead):
        count += 1
        again = machine.after(disk, config).world
        assert again is not None
        found = everything(again)
        if found not in ((COUNT + 1,) if is_stored else (COUNT, COUNT + 1)):
            wrong.append((put, found))
    assert count > 25
    assert not wrong


def bytes_of(disk: Disk) -> bytes:
    return repr([(name, disk.read(name, 0, disk.size(name))) for name in files_below(disk, "s")]).encode()


def files_below(disk: Disk, folder: str) -> Iterator[str]:
    for name, is_file in sorted(disk.list(folder)):
        path = f"{folder}/{name}"
        if is_file:
            yield path
        else:
            yield from files_below(disk, path)
