"""What a backup holds of a spool at work, on the fake disk: copied whenever, it is a start's state of all queues at one
moment.
"""

from __future__ import annotations

import errno

from hypothesis import example, given, settings
from hypothesis import strategies as st

from staniel.broker.operations.backup import BackupHold
from staniel.sim.disk.disk import Disk
from staniel.sim.disk.durable import Crash
from staniel.sim.world import Client, end_operations
from staniel.sim.world import World as SlowWorld
from tests.broker.operations.test_undo import Admin
from tests.support.world import World, send_copies

SMALL = """
[default]
max_memory_size = 300
max_journal_size = 600
default_journal_size = 100
min_journal_compact_delay = 0
[queues.mail]
journal_format = "libkestrel"
[queues.q]
expire_to_queue = "late"
[queues.calls]
sync_journal = "os"
"""
QUEUES = ("q", "calls", "mail", "late")
State = dict[str, list[bytes]]


def hold(world: SlowWorld) -> tuple[BackupHold, Client]:
    """Of a client that stays; held once tasks have been done."""
    client = world.client()
    found = world.broker.new_backup(client.session)
    found.prepare(lambda now_ms: None)
    return found, client


def copy_of(found: BackupHold, disk: Disk) -> Disk:
    """A new disk with a spool that has what is held, as the copier reads it now."""
    copy = Disk()
    for folder in ("s/.staniel/segments", "s/.staniel/cmdlog", "s/.staniel/undo"):
        copy.make_folder(folder)
    for each in found.files:
        data = disk.read(each.path, 0, each.bytes)
        assert len(data) == each.bytes
        file = copy.append(f"s/{each.name}")
        file.write(data)
        file.close()
    copy.sync_all("")
    return copy


def state(world: SlowWorld) -> State:
    """What each queue holds, open reads and items on their way included."""
    found: State = {}
    for name in QUEUES:
        queue = world.broker.queues.find(name)
        if queue is not None:
            held = [*queue.open_reads.values(), *queue.in_transfer.values()]
            found[name] = sorted([*world.items(name), *(taken.item.data for taken in held)])
    return {name: items for name, items in found.items() if items}


def together(found: State) -> list[bytes]:
    """All items. One on its way between two queues is in both of them as long as a server runs."""
    return sorted({item for items in found.values() for item in items})


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "get", "open", "close", "move", "delete", "sync", "tasks", "expire"]),
        st.integers(0, 2),
        st.integers(1, 60),
    ),
    max_size=60,
)


class History:
    """Steps on a world whose syncs and tasks are done when they are told to."""

    def __init__(self) -> None:
        self.world = SlowWorld(SMALL)
        self.client = self.world.client()
        self.number = 0

    def step(self, verb: str, which: int, size: int) -> None:
        world, queue, other = self.world, QUEUES[which], QUEUES[(which + 1) % 3]
        match verb:
            case "put":
                self.number += 1
                self.client.puts(f"{self.number:05}".ljust(size, "."), queue)
            case "get" | "open":
                self.client.says(f"get {queue}{'/open' if verb == 'open' else ''}")
            case "close":
                self.client.says(f"get {queue}/close")
            case "move":
                self.client.says(f"move {queue} {other}")
            case "delete":
                self.client.says(f"delete {queue}")
            case "expire":
                self.number += 1
                self.client.says(f"set q 0 {world.now_ms // 1000 + 1} 5", f"{self.number:05}")
                world.turn(1500)
            case "sync":
                world.sync()
            case "tasks":
                world.do_tasks()


@settings(deadline=None)
@given(STEPS, STEPS)
@example([("put", 0, 60)] * 30 + [("get", 0, 1)] * 25, [("put", 0, 60)] * 20 + [("tasks", 0, 1), ("get", 0, 1)] * 8)
@example([("put", 0, 9), ("move", 0, 1)], [("sync", 0, 1)] * 4)
@example([("put", 2, 9), ("put", 0, 9), ("move", 2, 1)], [("delete", 0, 1), ("delete", 2, 1), ("tasks", 0, 1)])
def test_what_is_held_is_the_state_of_one_moment_however_late_it_is_copied(
    before: list[tuple[str, int, int]], after: list[tuple[str, int, int]]
) -> None:
    history = History()
    world = history.world
    for step in before:
        history.step(*step)
    found, _ = hold(world)
    world.do_tasks()
    assert found.summary is not None
    wanted = state(world)
    on_their_way = any(queue.in_transfer for queue in world.broker.queues)
    for step in after:
        history.step(*step)
    copy = World(SMALL, copy_of(found, world.disk), world.now_ms)
    got = state(copy)
    assert sorted(item for items in got.values() for item in items) == together(wanted)
    if not on_their_way:
        assert got == wanted
        assert found.summary.items == len(together(wanted))
    assert not {"journal.damaged", "journal.torn", "journal.gone"} & set(copy.events)


def test_the_files_are_let_go_of_when_the_connection_is_gone() -> None:
    world = World(SMALL)
    client = world.client()
    client.puts("a").puts("b", "mail")
    found, holder = hold(world)
    world.turn()
    used = world.disk.used_bytes
    assert len(world.disk.list("s/.staniel/held")) == len(found.files) >= 3
    for _ in range(3):
        world.turn(1000)
    assert world.disk.list("s/.staniel/held") and world.broker.holds == [found]
    client.says("delete q", "delete mail")
    world.sync()
    holder.session.close(world.now_ms)
    assert not world.broker.holds  # at once: a program makes one backup after the other
    world.turn(0)
    assert not world.disk.list("s/.staniel/held")
    assert world.disk.used_bytes < used


def test_a_connection_that_is_gone_before_its_turn_holds_nothing() -> None:
    world = SlowWorld(SMALL)
    world.client().puts("a")
    found, holder = hold(world)
    holder.session.close(world.now_ms)
    world.do_tasks()
    assert found.summary is None and not world.broker.holds and not world.disk.list("s/.staniel/held")


def test_a_disk_that_has_no_second_names_is_told_and_holds_nothing() -> None:
    world = World(SMALL)
    world.client().puts("a").puts("b", "mail")
    world.disk.fail("link", "", errno.EPERM, after=1)
    found, _ = hold(world)
    world.turn()
    assert "cannot be held" in found.why and not world.broker.holds
    world.turn()
    assert not world.disk.list("s/.staniel/held")
    again, _ = hold(world)
    world.turn()
    assert not again.why and again.files


def test_a_start_removes_what_was_held_whatever_the_crash_has_left_of_it() -> None:
    for how in (Crash.DROP, Crash.KEEP):
        world = World(SMALL)
        world.client().puts("a")
        hold(world)
        world.turn()
        world.disk.sync_folder("s/.staniel/held")
        world.sync()
        after = world.crash(how)
        assert not after.disk.list("s/.staniel/held") and after.items() == [b"a"]


def test_what_was_executed_and_not_written_yet_is_written_first() -> None:
    world = SlowWorld(SMALL)
    client = world.client()
    client.puts("a")
    client.sends(b"set q 0 0 1\r\nb\r\nset mail 0 0 1\r\nc\r\n")
    assert world.broker.group.pending_bytes
    found, _ = hold(world)
    world.do_tasks()
    assert found.summary is not None and (found.summary.items, found.summary.queues) == (3, 3)
    assert state(World(SMALL, copy_of(found, world.disk), world.now_ms)) == {"q": [b"a", b"b"], "mail": [b"c"]}


def test_intents_that_are_written_anew_in_their_place_are_held_as_they_were() -> None:
    world = SlowWorld(SMALL)
    world.client().says(f"set q 0 {world.now_ms // 1000 + 1} 1", "a")
    world.turn(1500)
    found, _ = hold(world)
    world.do_tasks()
    (intents,) = [each for each in found.files if each.name == ".staniel/intents"]
    assert intents.bytes > 100
    for _ in range(5):
        world.sync()
        world.turn()
    world.broker.transfers.transfer_log.restart()
    assert world.disk.size("s/.staniel/intents") == 0
    assert len(world.disk.read(intents.path, 0, 1 << 20)) == intents.bytes


def test_the_file_of_a_move_is_held_and_a_copy_goes_on_with_it() -> None:
    world = SlowWorld(SMALL)
    client = world.client()
    for number in range(3):
        client.puts(f"{number}")
    send_copies(world, "move q calls")
    found, _ = hold(world)
    world.do_tasks()
    assert [each.bytes > 200 for each in found.files if each.name == ".staniel/undo/1"] == [True]
    while world.sync() or world.broker.operations.running:
        world.turn(1)
    again = World(SMALL, copy_of(found, world.disk), world.now_ms)
    end_operations(again)
    assert state(again) == {"calls": [b"0", b"1", b"2"]}


def test_what_a_purge_has_put_into_its_file_is_in_no_copy() -> None:
    world = SlowWorld(SMALL)
    client, admin = world.client(), Admin(world)
    for number in range(3):
        client.puts(f"{number}")
    admin.asks("POST", "/api/queues/q/purge")
    copies = []
    while admin.hears() is None:
        found, _ = hold(world)
        world.do_tasks()
        copies.append(found)
        world.sync()
        world.turn(1)
    assert world.disk.list("s/.staniel/undo") and len(copies) > 1
    for each in copies:
        assert not [file for file in each.files if file.name.startswith(".staniel/undo")]
        again = World(SMALL, copy_of(each, world.disk), world.now_ms)
        assert state(again) in ({"q": [b"0", b"1", b"2"]}, {})


def test_a_stray_name_among_those_that_are_held_is_in_nothings_way() -> None:
    world = World(SMALL)
    world.disk.make_folder("s/.staniel/held")
    for name in ("stray", "7-0"):
        world.disk.append(f"s/.staniel/held/{name}").close()
    found, _ = hold(world)
    for task in world.start_tasks():
        world.finish_task(task)
    assert found.files and not found.why
