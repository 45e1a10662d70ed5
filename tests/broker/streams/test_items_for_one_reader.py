"""Items that come to one reader of a family, by puts and by moves: a kill never leaves one with another reader, and
equal items of several readers are not taken for each other.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator

import pytest

from staniel.broker.operations import transfer
from staniel.broker.operations.redrive import home_of
from staniel.broker.operations.running import LOOK_AGAIN_MS
from staniel.broker.transfer_recovery import TransferRecovery
from staniel.broker.transfers import Transfers
from staniel.sim.disk.disk import Disk
from staniel.sim.disk.durable import Crash
from staniel.sim.world import content
from tests.broker.operations.test_redrive import died
from tests.broker.operations.test_undo import Admin, goes_on, settles
from tests.support.spool import cut_at_each_step
from tests.support.streams import asks, names, segments, settle
from tests.support.world import World

CONFIG = """
default.sync_journal = "always"
queues.q.journal_format = "libkestrel"
queues.q.default_journal_size = 100
"""
READERS = ("q", "q+a", "q+b")
MANY = 3 * transfer.ITEMS_PER_SLICE  # more than a move adds in one turn
PLANS = (
    ("move s1 q 2", "move q+a s2 1", "move q+a s2 2", "move s1 q 1"),
    ("move s2 q 3", "move q q+b 3", "move s1 q+a 3", "move q+a s2 1"),
    ("move s1 q+a 2", "move s2 q+b 2", "move q q+a 3", "move q+b q 1"),
)


def with_readers(config: str) -> World:
    world = World(config)
    world.client().says("set q+a 0 0 1", "1").says("get q+a").says("set q+b 0 0 1", "2")
    world.client().says("get q+a").says("get q+b").says("get q")
    for _ in range(4):
        world.sync()
        world.turn(200)
    return world


def filled(are_equal: bool) -> tuple[Disk, int]:
    """Three items in each reader and in s1 and s2. Return the disk and the time."""
    world = with_readers(CONFIG)
    for count in range(3):
        for queue in ("q", "s1", "s2"):
            world.client().puts("x" if are_equal else f"{queue}{count}", queue)
    for _ in range(6):
        goes_on(world)
    return world.disk.copy(), world.now_ms


def moved(disk: Disk, now_ms: int, plan: tuple[str, ...]) -> None:
    """Carry out `plan`, each move by a client of its own, two turns apart. Raises PowerCut."""
    world = World(CONFIG, disk, now_ms)
    clients = [world.client() for _ in plan]
    for turn in range(18):
        if turn % 2 == 0 and turn // 2 < len(plan):
            clients[turn // 2].says(plan[turn // 2])
        goes_on(world)


@pytest.mark.parametrize("are_equal", [False, True])
@pytest.mark.parametrize("plan", PLANS)
def test_a_kill_amid_moves_between_readers_loses_and_doubles_nothing(plan: tuple[str, ...], are_equal: bool) -> None:
    base, now_ms = filled(are_equal)
    before = sorted(item for items in content(base.copy()).values() for item in items)
    for step, disk in cut_at_each_step(base, lambda disk: moved(disk, now_ms + 10, plan)):
        left = content(disk.kill())
        assert sorted(item for items in left.values() for item in items) == before, (step, left)


def test_a_kill_amid_a_put_to_one_reader_leaves_the_item_with_no_other() -> None:
    def put(disk: Disk) -> None:
        world = World(CONFIG, disk)
        world.client().says("set q+a 0 0 3", "new")
        world.sync()

    seen = set()
    for step, disk in cut_at_each_step(with_readers(CONFIG).disk.copy(), put):
        left = content(disk.kill())
        assert not left.get("q") and not left.get("q+b"), (step, left)
        seen.add(len(left.get("q+a", [])))
    assert seen == {0, 1}


ROOMY = CONFIG.replace("100", "100000")


def test_two_moves_of_equal_items_to_two_readers_at_once_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first turn notes several slices of a move, the later ones have time to copy one of them each."""
    world = with_readers(ROOMY)
    for source in ["s1"] * MANY + ["s2"] * 2:
        world.client().puts("x", source)
    settles(world)
    base, now_ms = world.disk.copy(), world.now_ms

    def end_operations(world: World) -> None:
        while goes_on(world) or world.broker.operations.running:
            world.now_ms += 1

    def move(disk: Disk) -> None:
        world = World(ROOMY, disk, now_ms + 10)
        world.client().says(f"move s1 q+b {MANY}")
        world.client().says("move s2 q+a 2")
        monkeypatch.setattr(transfer, "STEPS_PER_TURN", 4)
        world.turn(1)
        monkeypatch.setattr(transfer, "STEPS_PER_TURN", 1)
        end_operations(world)

    left = {}
    for step, disk in cut_at_each_step(base, move):
        world = World(ROOMY, disk.kill(), now_ms + 1000)
        end_operations(world)
        left = {name: len(world.items(name)) for name in ("s1", "q+b", "s2", "q+a", "q")}
        assert (left["s1"] + left["q+b"], left["s2"] + left["q+a"], left["q"]) == (MANY, 2, 0), (step, left)
    assert (left["q+b"], left["q+a"]) == (MANY, 2)


DEAD = CONFIG + "".join(
    f'queues."{reader}".max_deliveries = 1\nqueues."{reader}".dead_letter_queue = "dead"\n' for reader in READERS[1:]
)


def redriven(disk: Disk, now_ms: int, config: str, then: str = "") -> None:
    """Redrive the dead letters. `then`: a queue to which a client puts meanwhile. Raises PowerCut."""
    world = World(config, disk, now_ms)
    Admin(world).asks("POST", "/api/queues/dead/redrive", {})
    world.turn(1)
    if then:
        world.client().puts("y", then)
    for _ in range(14):
        goes_on(world)


@pytest.mark.parametrize("how", list(Crash))
def test_equal_dead_letters_of_several_readers_go_home_each(how: Crash) -> None:
    """After a power cut a reader may have those of the others, too: its file may be the only one that is not synced."""
    world = died(with_readers(DEAD), *[(reader, "x") for reader in ("q+b", "q+a", "q+b", "q+b", "q+a")])
    base, now_ms = world.disk.copy(), world.now_ms
    seen: list[list[int]] = []
    for step, disk in cut_at_each_step(base, lambda disk: redriven(disk, now_ms + 10, DEAD)):
        world = World(DEAD, disk.crash(how), now_ms + 1000)
        for _ in range(12):
            goes_on(world)
        left = [len(world.items(name)) for name in ("dead", "q+a", "q+b", "q")]
        has_all = left[0] == 5 or (left[1] >= 2 and left[2] >= 3)
        assert has_all if how is Crash.DROP else left in ([5, 0, 0, 0], [0, 2, 3, 0]), (step, left)
        seen.append(left)
    assert seen[0] != seen[-1] == [0, 2, 3, 0]


LAX = """
default.sync_journal = "100ms"
queues.q.journal_format = "libkestrel"
queues.q.default_journal_size = 120
queues.o1.expire_to_queue = "q+a"
queues.o1.max_age = "1s"
queues.o2.expire_to_queue = "q+b"
queues.o2.max_age = "1s"
"""
PAYLOAD = "p" * 60


def test_a_power_cut_between_two_segments_loses_none_of_two_equal_items_that_move_to_two_readers() -> None:
    world = with_readers(LAX)
    world.client().puts(PAYLOAD, "o1").puts(PAYLOAD, "o2")
    for _ in range(4):
        world.sync()
        world.turn(1)
    world = World(LAX, world.disk.copy(), world.now_ms + 100)
    for _ in range(4):
        world.sync()
        world.turn(1)
    world.turn(3000)  # both expire, and the second copy begins a segment
    assert sum(operation.verb == "create" for operation in world.disk.log) >= 1
    for seed in range(100):
        left = content(world.disk.crash(random.Random(seed).randrange))
        for source, target in (("o1", "q+a"), ("o2", "q+b")):
            assert left.get(source) or left.get(target), (seed, left)


def test_a_power_cut_between_two_segments_leaves_no_key_without_its_item() -> None:
    world = with_readers(LAX)
    world.client().says("set q+a/key=k 0 0 60", PAYLOAD, "set q+b/key=l 0 0 60", PAYLOAD)
    for seed in range(100):
        after = World(LAX, world.disk.crash(random.Random(seed).randrange), world.now_ms + 1000)
        after.client().says("set q+a/key=k 0 0 60", PAYLOAD).says("set q+b/key=l 0 0 60", PAYLOAD)
        for _ in range(4):
            after.sync()
            after.turn(200)
        left = content(after.disk.kill())
        assert left["q+a"] and left["q+b"], (seed, left)


def homes_of(world: World) -> dict[str, int]:
    """Count the items of each reader, with those of the dead letter queue that are to go home to it."""
    found = {reader: world.items(reader).count(b"x") for reader in READERS}
    dead = world.broker.queues.find("dead")
    for item in dead.line.walk() if dead is not None else ():
        found[home_of(item)] += 1
    return found


def redriven_at_each_step(base: Disk, now_ms: int, config: str, then: str = "") -> Iterator[tuple[int, World]]:
    """Kill a redrive at each step, and yield what a start makes of it. `then`: a queue to which a client puts."""
    for step, disk in cut_at_each_step(base, lambda disk: redriven(disk, now_ms + 10, config, then)):
        world = World(config, disk.kill(), now_ms + 1000)
        for operation in list(world.broker.operations.running.values()):
            operation.cancel()
        for _ in range(14):
            goes_on(world)
        yield step, world


@pytest.mark.parametrize("order", [("q+b", "q+a"), ("q+a", "q+b"), ("q+b", "q+b", "q+a", "q+a")])
def test_a_reader_without_a_journal_takes_no_copy_of_another_for_its_own(order: tuple[str, ...]) -> None:
    config = DEAD + 'queues."q+b".keep_journal = false\n'
    world = died(with_readers(config), *[(reader, "x") for reader in order])
    for step, after in redriven_at_each_step(world.disk.copy(), world.now_ms, config):
        found = homes_of(after)
        assert (found["q+a"], found["q"]) == (order.count("q+a"), 0), (step, found)


@pytest.mark.parametrize("order", [("q+a", "q+a", "q+b"), ("q+b", "q+a", "q+a"), ("q+a", "q+b", "q+a")])
@pytest.mark.parametrize("max_items", [1, 2])
def test_what_finds_no_room_in_a_reader_is_not_taken_for_the_copy_in_another(
    order: tuple[str, ...], max_items: int
) -> None:
    world = died(with_readers(DEAD), *[(reader, "x") for reader in order])
    limited = DEAD + f'queues."q+a".max_items = {max_items}\n'
    for step, after in redriven_at_each_step(world.disk.copy(), world.now_ms, limited, then="q+a"):
        assert homes_of(after) == {"q": 0, "q+a": order.count("q+a"), "q+b": order.count("q+b")}, step


def test_a_reader_that_was_deleted_with_its_family_does_not_come_back_with_items_of_the_next() -> None:
    config = LAX.replace("100ms", "1s")
    world = World(config)
    world.client().says("set q+a 0 0 1", "1").says("get q+a").says("delete q+a")
    world.client().puts("new", "q")
    world.turn(1)
    for seed in range(50):
        assert "q+a" not in content(world.disk.crash(random.Random(seed).randrange)), seed


def test_nor_does_one_whose_files_are_removed_later() -> None:
    """The system refuses to remove a segment at first."""
    config = LAX.replace("100ms", "1s")
    world = World(config)
    for number in range(3):
        asks(world, "set q+a 0 0 60", f"{number:060}")
        world.turn(1000)
        settle(world)
    second = segments(world.disk)[1]
    world.disk.fail("remove", second, errno.EPERM, times=2)
    assert asks(world, "delete q+a") == "DELETED" and world.reported("queue.unremoved")
    for _ in range(5):
        world.turn(1000)
        if not names(world.disk):
            break
        world.sync()
    assert not names(world.disk)
    for number in range(6):
        world.client().puts(str(number), "q")  # acknowledged before any sync
    assert world.items("q")
    for seed in range(50):
        assert "q+a" not in content(world.disk.crash(random.Random(seed).randrange)), seed


def test_a_move_that_waits_for_another_ends_when_it_is_cancelled() -> None:
    world = with_readers(ROOMY)
    for source in ["s1"] * MANY + ["s2"]:
        world.client().puts("x", source)
    settles(world)
    world.client().says(f"move s1 q+a {MANY}")
    world.client().says("move s2 q+b 1")
    world.turn(1)
    waiting = next(operation for operation in world.broker.operations.running.values() if operation.total == 1)
    waiting.cancel()
    world.turn(LOOK_AGAIN_MS)
    world.sync()
    assert waiting.ended_ms and world.items("s2") == [b"x"]
    assert [operation.total for operation in world.broker.operations.running.values()] == [MANY]


def test_readers_of_kestrels_format_do_not_wait_for_each_other() -> None:
    world = with_readers('default.sync_journal = "always"\n')
    for source in ["s1"] * MANY + ["s2"]:
        world.client().puts("x", source)
    settles(world)
    world.client().says(f"move s1 q+a {MANY}")
    world.client().says("move s2 q+b 1")
    for _ in range(3):
        goes_on(world)
    assert len(world.items("q+b")) == 1 and len(world.broker.operations.running) > 0


def test_without_their_rules_the_equal_items_of_two_readers_are_confused(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(TransferRecovery, "files_of", lambda self, target: target)
        with pytest.raises(AssertionError):
            test_equal_dead_letters_of_several_readers_go_home_each(Crash.KEEP)
    monkeypatch.setattr(Transfers, "may_announce", lambda self, target, operation, keeps_times=False: True)
    with pytest.raises(AssertionError):
        test_two_moves_of_equal_items_to_two_readers_at_once_take_turns(monkeypatch)
