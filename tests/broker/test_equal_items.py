"""Equal items that are put at the same moment, and more than one operation that carries them: after a crash at any step
there are as many as before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from staniel.broker.operations import moved_back, purge, transfer
from staniel.broker.operations.purge import RunningUndo
from staniel.broker.operations.undo import UndoRecord
from staniel.broker.operations.undo_recovery import UndoRecovery
from staniel.broker.transfers import Transfers
from staniel.journal.kestrel.encoder import Encoder
from staniel.journal.kestrel.log import Log
from staniel.journal.kestrel.replay import Replay
from staniel.journal.transfer_log import Intent, encode, key_of
from staniel.queues.changes import Confirmed
from staniel.queues.config import JournalDialect
from staniel.queues.item import Item
from staniel.sim.disk.disk import Disk
from staniel.sim.disk.durable import Crash
from staniel.sim.world import World
from tests.broker.operations.test_undo import Admin, asked, goes_on, settles
from tests.support.spool import new_disk, put_file

PUT_MS = 1_000_000
COUNT = 4
FORMATS = pytest.mark.parametrize("config", ["", 'default.journal_format = "libkestrel"'])
Story = Callable[[World], None]


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purge, "ITEMS_PER_SLICE", 2)
    monkeypatch.setattr(moved_back, "ITEMS_PER_SLICE", 2)
    monkeypatch.setattr(moved_back, "PASSING_ITEMS", 2)
    monkeypatch.setattr("staniel.broker.operations.move.ITEMS_PER_SLICE", 1)
    monkeypatch.setattr(transfer, "STEPS_PER_TURN", 3)


def put_equal(world: World, queue: str) -> None:
    made = world.broker.queues.make(queue, world.now_ms)
    for _ in range(COUNT):
        made.add(Item(b"same", PUT_MS), world.now_ms)
    settles(world)


def begin(world: World, *requests: tuple[str, str, object]) -> None:
    """All of them in one turn."""
    for request in requests:
        Admin(world).asks(*request)


def begin_all_undos(world: World) -> None:
    begin(world, *[("POST", f"/api/undo/{each['id']}", None) for each in asked(world, "GET", "/api/undo")[1]])


def two_undos_of_purges(world: World) -> None:
    for _ in range(2):
        put_equal(world, "q")
        assert asked(world, "POST", "/api/queues/q/purge")[1]["purged"] == COUNT
    begin_all_undos(world)


def two_moves(world: World) -> None:
    for name in ("a", "b"):
        put_equal(world, name)
    begin(world, *[("POST", f"/api/queues/{name}/move", {"to": "q"}) for name in ("a", "b")])


def two_undos_of_moves(world: World) -> None:
    """Back to the same queue, from two."""
    for name in ("a", "b"):
        put_equal(world, "q")
        assert asked(world, "POST", "/api/queues/q/move", {"to": name})[0] == 200
    begin_all_undos(world)


def undos_of_a_move_and_of_a_purge(world: World) -> None:
    put_equal(world, "q")
    assert asked(world, "POST", "/api/queues/q/move", {"to": "a"})[0] == 200
    put_equal(world, "q")
    assert asked(world, "POST", "/api/queues/q/purge")[1]["purged"] == COUNT
    begin_all_undos(world)


def everything(world: World) -> int:
    """How many items there are when all that can be undone has been."""
    settles(world)
    for each in asked(world, "GET", "/api/undo")[1]:
        assert asked(world, "POST", f"/api/undo/{each['id']}")[0] == 200
    return sum([world.items(queue.name).count(b"same") for queue in world.broker.queues])


@FORMATS
@pytest.mark.parametrize("how", list(Crash))
@pytest.mark.parametrize("story", [two_undos_of_purges, two_moves, two_undos_of_moves, undos_of_a_move_and_of_a_purge])
def test_a_crash_at_any_step_neither_loses_nor_doubles(story: Story, how: Crash, config: str) -> None:
    wrong = []
    for steps in range(1000):
        world = World(config)
        story(world)
        is_more = all(goes_on(world) for _ in range(steps))
        again = World(config, world.disk.crash(how), world.now_ms)
        if (found := everything(again)) != 2 * COUNT:
            wrong.append((steps, found))
        if not is_more:
            break
    assert steps > 8
    assert not wrong


@FORMATS
@pytest.mark.parametrize("how", list(Crash))
@pytest.mark.parametrize("story", [two_undos_of_purges, undos_of_a_move_and_of_a_purge])
def test_a_copy_belongs_to_one_of_two_files_that_wait_for_equal_ones(story: Story, how: Crash, config: str) -> None:
    """A version whose operations do not take turns may have left them."""
    wrong = []
    is_more, steps = True, 0
    while is_more:
        with pytest.MonkeyPatch.context() as without_turns:
            without_turns.setattr(Transfers, "may_announce", lambda self, target, operation, keeps_times=False: True)
            without_turns.setattr(Transfers, "end_announcing", lambda self, target, operation: None)
            world = World(config)
            story(world)
            is_more = all(goes_on(world) for _ in range(steps))
        again = World(config, world.disk.crash(how), world.now_ms)
        if (found := everything(again)) != 2 * COUNT:
            wrong.append((steps, found))
        steps += 1
    assert steps > 8
    assert not wrong


def those_that_wait(world: World) -> list[RunningUndo]:
    undos = [each for each in world.broker.operations.running.values() if isinstance(each, RunningUndo)]
    return [each for each in undos if each._retry is not None]


def test_an_undo_that_waits_for_another_is_cancelled_or_stopped() -> None:
    world = World()
    two_undos_of_purges(world)
    while not (waiting := those_that_wait(world)):
        assert goes_on(world)
    waiting[0].cancel()
    settles(world)
    assert world.items("q").count(b"same") == COUNT
    assert everything(world) == 2 * COUNT


def test_an_undo_that_goes_on_and_a_new_one_have_numbers_of_their_own() -> None:
    """Else one of them is found by nobody: neither shown, nor cancelled, nor waited for by a stop."""
    config = 'admin.audit_log = "64KB"'
    world = World(config)
    for _ in range(2):
        put_equal(world, "q")
        assert asked(world, "POST", "/api/queues/q/purge")[1]["purged"] == COUNT
    audit = "s/.staniel/audit"
    before = world.disk.read(audit, 0, world.disk.size(audit))
    first, second = [each["id"] for each in asked(world, "GET", "/api/undo")[1]]
    begin(world, ("POST", f"/api/undo/{first}", None))
    while world.broker.undos.by_id[first].content.undoing is None:
        assert goes_on(world)
    disk = world.disk.crash(Crash.KEEP)
    disk.truncate(audit, len(before))  # a log of lines that no start rests on: it is not synced
    again = World(config, disk, world.now_ms)
    assert len(again.broker.operations.running) == 1
    begin(again, ("POST", f"/api/undo/{second}", None))
    assert len(again.broker.operations.running) == 2
    settles(again)
    assert again.items("q").count(b"same") == 2 * COUNT


# a second power cut, in the start that recovers from the first


def spool(queue: bytes) -> Disk:
    """Three items have left `q`: the first one wholly; the copy of the second, an equal one, did not come; that of the
    third did, and its removal is not recorded.
    """
    same, other = Item(b"same", PUT_MS), Item(b"other", PUT_MS)
    copied, moved = [Item(item.data, PUT_MS + 5) for item in (same, other)]
    encoder = Encoder(JournalDialect.DOCUMENTS)
    dead, late = encoder.addx(copied), encoder.addx(moved)
    intents = [
        Intent(1, "q", PUT_MS, "dead", 0, 0, *key_of(copied), 1),
        Intent(2, "q", PUT_MS, "dead", 0, len(dead), *key_of(copied), 2),
        Intent(3, "q", PUT_MS, "late", 0, 0, *key_of(moved), 3),
    ]
    disk = new_disk()
    for name, data in (("q", queue), ("dead", dead), ("late", late)):
        put_file(disk, name, data)
    disk.make_folder("s/.staniel")
    put_file(disk, ".staniel/intents", b"".join(map(encode, intents)))
    disk.sync_all("")
    return disk


@pytest.mark.parametrize("dialect", JournalDialect)
def test_a_start_that_is_cut_off_amid_the_removal_of_a_moved_item(dialect: JournalDialect) -> None:
    encoder = Encoder(dialect)
    items = [Item(b"same", PUT_MS), Item(b"same", PUT_MS), Item(b"other", PUT_MS)]
    before = b"".join([encoder.addx(item) for item in items]) + encoder.opened(1) + encoder.encode(Confirmed(0, 1))
    config = f'default.journal_dialect = "{dialect.value}"'
    world = World(config, spool(before))
    settles(world)
    disk = world.disk.crash(Crash.DROP)
    after = disk.read("s/q", 0, disk.size("s/q"))
    assert after.startswith(before) and len(after) > len(before) + 10
    for end in range(len(before), len(after)):
        again = World(config, spool(after[:end]))
        settles(again)
        for world in (again, World(config, again.disk.crash(Crash.DROP))):
            found = Counter(item for name in ("q", "dead", "late") for item in world.items(name))
            assert found == {b"same": 2, b"other": 1}, end
            assert world.items("q") == [b"same"], end


@pytest.mark.pure
def test_a_number_behind_the_last_one_that_is_believed_before_it_is_restored_would_be_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Replay, "_note_number", lambda self, before: None)
    with pytest.raises(AssertionError):
        test_a_start_that_is_cut_off_amid_the_removal_of_a_moved_item(JournalDialect.DOCUMENTS)


REWRITING = """
default.max_memory_size = 300
default.default_journal_size = 200
default.max_journal_size = 300
default.min_journal_compact_delay = 0
"""


@pytest.mark.parametrize("how", list(Crash))
def test_a_journal_that_is_written_anew_between_two_slices(how: Crash, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the copies of settled slices ended is no place in the new file."""
    monkeypatch.setattr(transfer, "UNDER_WAY_MAX", 2)
    steps, rewrites, wrong = 0, 0, []
    is_more = True
    while is_more:
        world = World(REWRITING)
        for number in range(12):
            world.client().puts(f"{number:02}".ljust(30, "."), "a")
        settles(world)
        begin(world, ("POST", "/api/queues/a/move", {"to": "q"}))
        clients = []
        for _ in range(steps):
            if not (is_more := goes_on(world)):
                break
            clients.append(world.client().says("get q"))
            world.sync()
        answers = [client.hears() for client in clients]
        taken = Counter(line.encode() for answer in answers for line in answer.split() if line.endswith("."))
        queue = world.broker.queues.find("q")
        rewrites += queue is not None and isinstance(queue.journal, Log) and queue.journal.rewrites > 0
        again = World(REWRITING, world.disk.crash(how), world.now_ms)
        settles(again)
        found = taken + Counter(again.items("a") + again.items("q"))
        if len(found) + answers.count("") < 12 or max(found.values()) > 1:
            wrong.append((steps, found))
        steps += 1
    assert rewrites and steps > 12
    assert not wrong


BOUNDED = "queues.r.max_items = 2"


def filled_meanwhile(filled_at: int, steps: int, how: Crash) -> Counter[bytes] | None:
    """Move equal items to a queue that gets full in step `filled_at`, and return what a start finds that many steps
    later; None: it was over.
    """
    world = World(BOUNDED)
    put_equal(world, "q")
    begin(world, ("POST", "/api/queues/q/move", {"to": "r"}))
    for at in range(filled_at + steps):
        if at == filled_at:
            world.client().puts("filler", "r")
        if not goes_on(world):
            return None
    again = World(BOUNDED, world.disk.crash(how), world.now_ms)
    settles(again)
    return Counter(again.items("q") + again.items("r"))


@pytest.mark.parametrize("how", list(Crash))
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_an_item_that_finds_no_room_is_not_taken_for_one_that_has_arrived(
    steps: int, how: Crash, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its transaction has ended, as that of an item that has left; the copy is that of an equal one."""
    monkeypatch.setattr(transfer, "STEPS_PER_TURN", steps)
    tried, wrong = 0, []
    for filled_at in range(12):
        for more in range(12):
            if (found := filled_meanwhile(filled_at, more, how)) is None:
                break
            tried += 1
            if found[b"same"] != COUNT:
                wrong.append((filled_at, more, found))
    assert tried > 10 and not wrong


def test_a_start_does_not_look_for_copies_of_what_found_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy of an equal item would be taken for one of them."""
    right, kept, asked = UndoRecovery._moving, 0, 0

    def moving(self: UndoRecovery, record: UndoRecord, number: int) -> list[Intent]:
        nonlocal kept, asked
        found = right(self, record, number)
        stayed = record.content.kept.get(number, frozenset())
        kept += len(stayed)
        asked += len({self._intents[each.begin][3] for each in found} & stayed)
        return found

    monkeypatch.setattr(transfer, "STEPS_PER_TURN", 2)
    monkeypatch.setattr(UndoRecovery, "_moving", moving)
    for filled_at in range(12):
        for more in range(12):
            if filled_meanwhile(filled_at, more, Crash.KEEP) is None:
                break
    assert kept and not asked
