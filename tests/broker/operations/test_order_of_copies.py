"""Copies of equal items come in the order of their notes, whatever delays one of them: after a kill the copies that are
there are those of the first notes, and so no queue gets the items of another.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable

import pytest

from staniel.broker.operations import move, moved_back, transfer
from staniel.broker.operations.redrive import RunningRedrive, home_of
from staniel.queues.item import Item, item_with
from staniel.queues.past import Why, next_past
from staniel.sim.disk.disk import Disk
from staniel.sim.world import World as SimWorld
from tests.broker.operations.test_undo import Admin, asked, goes_on, settles
from tests.support.spool import cut_at_each_step
from tests.support.world import World

HOMES = ("q+a", "q+b", "q+c")
CONFIG = 'default.sync_journal = "always"\nqueues.q.journal_format = "libkestrel"\n' + "".join(
    f'queues."{home}".max_deliveries = 1\nqueues."{home}".dead_letter_queue = "dead"\n' for home in HOMES
)
PLAIN = CONFIG.replace('"libkestrel"', '"kestrel"')
Letters = tuple[str, ...]


def dead_letters(config: str, letters: Letters) -> World:
    """A server with equal dead letters, each of which was put to its queue at the same time. All the queues exist."""
    world = World(config)
    for home in HOMES:
        world.client().says(f"set {home} 0 0 1", "1").says(f"get {home}")
    settles(world)
    dead = world.broker.queues.make("dead", world.now_ms)
    for home in letters:
        past = next_past(Item(b"x", world.now_ms), Why.DEAD, home, 1, "c", world.now_ms)
        dead.add(item_with(past, b"x", world.now_ms, 0, 0), world.now_ms)
    settles(world)
    world.now_ms += 1000
    return world


def by_home(world: World) -> Counter[str]:
    """How many of the items are in each home, or dead letters of it."""
    there = Counter({home: world.items(home).count(b"x") for home in HOMES})
    dead = world.broker.queues.find("dead")
    return there + Counter(home_of(item) for item in (dead.line.walk() if dead is not None else ()))


def ends(world: World) -> World:
    """Let what a kill has cut off come to its end."""
    for operation in list(world.broker.operations.running.values()):
        operation.cancel()
    for _ in range(40):
        goes_on(world)
    return world


def kills(config: str, base: World, letters: Letters, run: Callable[[Disk, int], None]) -> None:
    """Kill the server at each step of `run` and check that each home has its items."""
    for step, disk in cut_at_each_step(base.disk.copy(), lambda disk: run(disk, base.now_ms + 10)):
        assert by_home(ends(World(config, disk.kill(), base.now_ms + 5000))) == Counter(letters), step


@pytest.mark.pure
def test_a_settled_copy_of_one_reader_is_not_taken_for_one_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The syncs of three slices overlap. When the first one is settled, no note is left that claims its copy."""
    for module in (transfer, move):
        monkeypatch.setattr(module, "ITEMS_PER_SLICE", 1)
    letters = ("q+a", "q+c", "q+a")

    def redrive(disk: Disk, now_ms: int) -> None:
        world = World(CONFIG, disk, now_ms)
        Admin(world).asks("POST", "/api/queues/dead/redrive", {})
        sync = None
        # By turn: the second slice is noted; copies of the first and a note of the third; copies of the second; its
        # removal; what says that the first one is settled, and copies of the third.
        for steps, ms in ((1, 0), (1, 0), (2, 0), (1, 1), (1, 1)):
            monkeypatch.setattr(transfer, "STEPS_PER_TURN", steps)
            world.turn(ms)
            if sync is not None:
                sync.run()
                world.finish_sync(sync)
            world.broker.group.include_patient()
            sync = world.start_sync()
        if sync is not None:
            sync.run()
            world.finish_sync(sync)
        world.turn(1)
        for _ in range(20):
            goes_on(world)

    kills(CONFIG, dead_letters(CONFIG, letters), letters, redrive)


@pytest.mark.pure
def test_slices_behind_items_that_stay_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client's put leaves no room for the second item of the first slice. Others are ready when that is noted."""
    for module in (transfer, move):
        monkeypatch.setattr(module, "ITEMS_PER_SLICE", 2)
    monkeypatch.setattr(RunningRedrive, "slices_per_step", 1)
    letters = ("q+a", "q+b", "q+c", "q+c", "q+c")
    limited = CONFIG + 'queues."q+a".max_items = 1\n'

    def redrive(disk: Disk, now_ms: int) -> None:
        world = World(limited, disk, now_ms)
        Admin(world).asks("POST", "/api/queues/dead/redrive", {})
        monkeypatch.setattr(transfer, "STEPS_PER_TURN", 8)
        world.turn(1)
        world.client().puts("y", "q+a")
        monkeypatch.setattr(transfer, "STEPS_PER_TURN", 2)
        for _ in range(40):
            goes_on(world)

    kills(limited, dead_letters(CONFIG, letters), letters, redrive)


@pytest.mark.pure
@pytest.mark.parametrize("config", [CONFIG, PLAIN])
def test_a_note_that_waits_for_clients_is_not_overtaken(monkeypatch: pytest.MonkeyPatch, config: str) -> None:
    """An undo is patient until 100 ms after a client's last request, and then notes another slice impatiently."""
    letters = ("q+c",) * 2 + ("q+a",) * 2 + ("q+b",) * transfer.ITEMS_PER_SLICE
    world = dead_letters(config, letters)
    number = asked(world, "POST", "/api/queues/dead/redrive", {})[1]["undo"]
    settles(world)
    world.now_ms += 1000
    monkeypatch.setattr(transfer, "STEPS_PER_TURN", 1)

    def undo(disk: Disk, now_ms: int) -> None:
        world = SimWorld(config, disk, now_ms)  # its tasks take until the next turn
        Admin(world).asks("POST", f"/api/undo/{number}")
        world.client().says("set z 0 0 1", "1")
        for ms in (90, 7, *[1] * 60):
            world.turn(ms)
            for task in world.start_tasks():
                world.finish_task(task)
            sync = world.start_sync()
            if sync is not None:
                sync.run()
                world.finish_sync(sync)

    kills(config, world, letters, undo)


@pytest.mark.pure
@pytest.mark.parametrize("config", ["", 'default.journal_format = "libkestrel"\n'])
def test_an_undo_waits_while_copies_of_an_earlier_life_cannot_be_searched(
    monkeypatch: pytest.MonkeyPatch, config: str
) -> None:
    """Its copies have the times that the items had before, as have those that are searched for after a reload."""
    for module in (transfer, moved_back):
        monkeypatch.setattr(module, "ITEMS_PER_SLICE", 2)
    monkeypatch.setattr(transfer, "UNDER_WAY_MAX", 1)
    base = World(config)
    base.client().sends(b"set s 0 0 1\r\nx\r\n" * 6)
    settles(base)
    number = asked(base, "POST", "/api/queues/s/move", {"to": "t"})[1]["undo"]
    settles(base)

    def undo(disk: Disk) -> None:
        world = World(config, disk, base.now_ms + 10)
        Admin(world).asks("POST", f"/api/undo/{number}")
        for _ in range(30):
            goes_on(world)

    unsearched = 0
    for step, disk in cut_at_each_step(base.disk.copy(), undo):
        killed = disk.kill()
        for after in range(6):
            failing = killed.fork()
            failing.fail("read", "s/s", errno.EACCES, after=after, times=1)
            world = World(config, failing, base.now_ms + 1000)
            for reloads in (False, True):
                if reloads:
                    world.broker.reload(world.now_ms)
                for _ in range(30):
                    goes_on(world)
            unsearched += "transfer.kept" in world.events
            assert len(world.items("s") + world.items("t")) == 6, (step, after)
    assert unsearched


def test_a_new_reader_of_a_deleted_family_waits_for_an_operation_that_sent_to_the_old_one() -> None:
    world = World(CONFIG)
    world.client().puts("s", "source")
    dead = world.broker.queues.make("dead", world.now_ms)
    for number, home in enumerate(["q+a"] * 3 + ["other"] * 5000):
        item = Item(b"%d" % number, world.now_ms)
        past = next_past(item, Why.DEAD, home, 1, "c", world.now_ms)
        dead.add(item_with(past, item.data, world.now_ms, 0, 0), world.now_ms)
    settles(world)
    Admin(world).asks("POST", "/api/queues/dead/redrive", {})
    while len(world.items("q+a")) < 3:
        goes_on(world)
    world.client().says("delete q+a")
    while "q" in world.broker.spool.streams.families:
        goes_on(world)
    assert world.broker.operations.running
    world.client().says("move source q+b 1")
    settles(world)
    assert (world.items("q+b"), len(world.items("other"))) == ([b"s"], 5000)
