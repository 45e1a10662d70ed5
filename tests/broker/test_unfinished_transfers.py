"""Transfers that a start cannot finish, because it cannot read one of the two queues; and copies that a power cut has
torn.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest

from staniel.journal.disk.replace_file import replace_file
from staniel.journal.kestrel.find_copies import Search
from staniel.journal.kestrel.read_behind import ReadBehind
from staniel.journal.libkestrel.find_copies import StreamSearch
from staniel.journal.transfer_log import Intent, encode, key_of
from staniel.queues.item import Item
from staniel.queues.stream.stream import Stream
from staniel.queues.transfer_recovery import set_aside_found
from staniel.sim.disk.disk import Disk
from staniel.sim.disk.durable import Crash
from staniel.sim.world import end_operations
from tests.broker.operations.test_undo import asked
from tests.broker.test_transfers import (
    DEAD,
    EXPIRING,
    STREAMS,
    Story,
    Telling,
    crashes,
    is_in_one_place,
    twins_die,
    twins_expire,
    twins_move,
)
from tests.journal.test_renewal import addx, named, new_disk, put_file
from tests.support.streams import asks, settle
from tests.support.world import World, send_copies

STORIES: dict[str, tuple[Story, str, str]] = {
    "moved": (twins_move, "", "dead"),
    "moved, left to the OS": (twins_move, '[default]\nsync_journal = "os"\n', "dead"),
    "moved, in libkestrel's format": (twins_move, STREAMS, "dead"),
    "dead": (twins_die, DEAD, "dead"),
    "expired": (twins_expire, EXPIRING, "late"),
}


def unreadable(disk: Disk, name: str) -> Disk:
    for part in (f"s/{name}", f"s/{name}."):
        disk.fail("read", part, errno.EIO, times=1 << 30)
    return disk


def files_of(disk: Disk, queue: str) -> list[str]:
    """Those with items, the newest first."""
    return sorted((name for name, _ in disk.list("s") if name.startswith(queue) and ".read" not in name), reverse=True)


def drain(world: World, name: str) -> Counter[bytes]:
    """What clients get out of a queue."""
    found: Counter[bytes] = Counter()
    while (heard := asks(world, f"get {name}")).startswith("VALUE"):
        found[heard.split()[4].encode()] += 1
    return found


@pytest.mark.parametrize("comes_back_by", ["reload", "restart"])
@pytest.mark.parametrize("which", ["source", "target"])
@pytest.mark.parametrize("name", STORIES)
def test_a_queue_that_could_not_be_read_gets_no_second_copy_of_an_item(
    name: str, which: str, comes_back_by: str
) -> None:
    story, config, target = STORIES[name]
    whole = Telling(story, config)
    most = whole.safe_by(whole.last)
    broken, other = ("q", target) if which == "source" else (target, "q")
    kept = 0
    for stop in range(whole.first, whole.last + 1):
        told = Telling(story, config, stop)
        for how in crashes(2):
            world = World(config, unreadable(told.world.disk.crash(how), broken), told.world.now_ms + 1000)
            kept += len(world.broker.transfers.transfer_log.kept)
            found = drain(world, other)
            settle(world)
            if comes_back_by == "reload":
                world.disk._faults.clear()
                asks(world, "reload")
            else:
                world = World(config, world.disk.kill(), world.now_ms + 1)
            for _ in range(3):
                world.turn(1000)  # what expires is sent again
                settle(world)
            end_operations(world)
            found += drain(world, other) + drain(world, broken) + drain(world, other) + drain(world, "other")
            assert is_in_one_place(found, whole.safe_by(stop), most), (stop, how, found)
            assert not world.broker.transfers.transfer_log.kept
    assert kept or name.endswith("OS")


def test_an_item_whose_target_cannot_be_read_waits_and_comes_back_if_the_target_is_removed() -> None:
    world = World()
    asks(world, "set q 0 0 4", "tick", "set q 0 0 4", "tock")
    send_copies(world, "move q dead 1")
    world.sync()  # of the copy: the removal is only recorded
    disk = unreadable(world.disk.kill(), "dead")
    world = World("", disk, world.now_ms + 1)
    assert drain(world, "q") == {b"tock": 1}
    for name in [name for name, _ in disk.list("s") if name.startswith("dead")]:
        disk.remove(f"s/{name}")
    disk._faults.clear()
    waiting = world.client().says("get q/t=5000")
    asks(world, "reload")
    assert waiting.hears() == "VALUE q/t=5000 0 4 tick END"


@pytest.mark.parametrize(
    ("config", "flags"), [("", 0), ("", 7), (STREAMS, 0)], ids=["kestrel", "kestrel, flags", "libkestrel"]
)
def test_a_torn_copy_is_removed_and_the_item_is_moved_again(config: str, flags: int) -> None:
    """A file system may keep a file's size and lose its data: the copy's last bytes are zeros."""
    world = World(config)
    text = "tick" * 10
    asks(world, f"set q {flags} 0 40", text, "set dead 0 0 1", "z")
    send_copies(world, "move q dead 1")  # written, not synced
    disk = world.disk.crash(Crash.KEEP)
    name = files_of(disk, "dead")[0]
    size = disk.size(f"s/{name}")
    data = disk.read(f"s/{name}", 0, size)
    assert data.endswith(text.encode())
    replace_file(disk, f"s/{name}", data[:-17] + bytes(17))
    again = World(config, disk, world.now_ms + 1)
    assert "transfer.torn" in again.events
    assert again.items("dead") == [b"z"] and len(again.items("q")) == 1
    end_operations(again)
    assert asks(again, "get dead", "get dead") == f"VALUE dead 0 1 z END VALUE dead {flags} 40 {text} END"
    assert asks(again, "get q") == "END"


@pytest.mark.parametrize("config", ["", STREAMS], ids=["kestrel", "libkestrel"])
def test_a_torn_copy_behind_others_of_its_slice_is_removed(config: str) -> None:
    """All copies of a slice are looked for from one place on."""
    world, texts = World(config), [b"%d" % number * 40 for number in range(3)]
    for text in texts:
        asks(world, "set q 0 0 40", text.decode())
    send_copies(world, "move q dead 2")
    disk = world.disk.crash(Crash.KEEP)
    name = files_of(disk, "dead")[0]
    data = disk.read(f"s/{name}", 0, disk.size(f"s/{name}"))
    assert data.endswith(texts[1])
    replace_file(disk, f"s/{name}", data[:-17] + bytes(17))
    again = World(config, disk, world.now_ms + 1)
    assert "transfer.torn" in again.events and again.items("dead") == texts[:1]
    end_operations(again)
    assert sorted(again.items("dead") + again.items("q")) == texts


def test_an_intent_is_kept_while_an_alias_hides_its_source() -> None:
    world = World()
    asks(world, "set q 0 0 4", "tick", "set q 0 0 4", "tock")
    send_copies(world, "move q dead 1")
    world.sync()
    world = World("", unreadable(world.disk.kill(), "dead"), world.now_ms + 1)
    assert world.broker.transfers.transfer_log.kept
    for config in ('[aliases]\nq = ["r"]\n', '[aliases]\nq = ["r"]\n', ""):
        world.config = config
        asks(world, "reload")
        assert world.broker.transfers.transfer_log.kept
    world.disk._faults.clear()
    asks(world, "reload")
    settle(world)
    assert (world.items("q"), world.items("dead")) == ([b"tock"], [b"tick"])
    again = World("", world.disk.crash(Crash.DROP), world.now_ms + 1)
    assert (again.items("q"), again.items("dead")) == ([b"tock"], [b"tick"])


def test_an_intent_is_finished_in_a_source_that_an_alias_hides() -> None:
    world = World()
    asks(world, "set q 0 0 4", "tick", "set q 0 0 4", "tock")
    send_copies(world, "move q dead 1")
    world.sync()
    world = World("", unreadable(world.disk.kill(), "dead"), world.now_ms + 1)
    world.config = '[aliases]\nq = ["r"]\n'
    asks(world, "reload")
    world.disk._faults.clear()
    asks(world, "reload")
    assert [told["removal"] for told in world.reported("transfer.finished")] == ["recorded"]
    settle(world)
    world = World("", world.disk.crash(Crash.DROP), world.now_ms + 1)
    assert (world.items("q"), world.items("dead")) == ([b"tock"], [b"tick"])


def test_an_item_held_back_in_a_queue_that_had_to_be_withdrawn_goes_when_both_can_be_read() -> None:
    disk = new_disk()
    put_file(disk, "q", b"".join([named(7, 40 + number, b"%d" % number) for number in range(3)]))
    put_file(disk, "dead", addx(b"0"))
    disk.sync_all("")
    look = World(disk=disk.copy())
    first = [next(iter(look.broker.queues.by_name[name].line.items())) for name in ("q", "dead")]
    (was_added_ms, _, _), copy = map(key_of, first)
    disk.make_folder("s/.staniel")
    replace_file(disk, "s/.staniel/intents", encode(Intent(1, "q", was_added_ms, "dead", 0, 0, *copy, xid=1000)))
    disk.sync_all("")
    disk.fail("write", "q~~", errno.ENOSPC, times=1000)
    world = World(disk=unreadable(disk, "dead"))  # q's journal has to be written anew, and there is no room
    assert world.broker.queues.unreadable == {"q", "dead"}
    disk._faults.clear()
    asks(world, "reload")
    assert [told["removal"] for told in world.reported("transfer.finished")] == ["recorded"]
    settle(world)
    assert (world.items("q"), world.items("dead")) == ([b"1", b"2"], [b"0"])
    world = World(disk=world.disk.crash(Crash.DROP), now_ms=world.now_ms + 1)
    assert (world.items("q"), world.items("dead")) == ([b"1", b"2"], [b"0"])


REWRITTEN = addx(b"x" * 100) + b"\1" + named(7, 40, b"9")
"""A start writes such a journal anew: numbers of items were recorded with them. It gets shorter."""


def moved_behind(front: bytes, xid: int) -> Disk:
    """Item 0 of q is on its way to a queue whose journal begins with `front`: the copy is there."""
    disk = new_disk()
    put_file(disk, "q", b"".join(addx(data) for data in (b"0", b"0", b"1")))
    put_file(disk, "dead", front + addx(b"0"))
    disk.sync_all("")
    look = World(disk=disk.copy())
    added_ms, *copy = key_of(look.broker.queues.by_name["q"].line.head() or Item(b"", 0))
    disk.make_folder("s/.staniel")
    intent = Intent(1, "q", added_ms, "dead", 0, len(front), added_ms, *copy, xid=xid)
    replace_file(disk, "s/.staniel/intents", encode(intent))
    disk.sync_all("")
    return disk


@pytest.mark.parametrize("how", list(Crash))
def test_a_power_cut_behind_a_reload_that_rewrites_the_target_doubles_nothing(how: Crash) -> None:
    """The new journal is durable, and what leaves the source is not yet."""
    world = World(disk=unreadable(moved_behind(REWRITTEN, 1000), "dead"))
    world.disk._faults.clear()
    world.client().says("reload")
    assert [told["removal"] for told in world.reported("transfer.finished")] == ["recorded"]
    assert world.disk.size("s/dead") < 100
    world = World(disk=world.disk.crash(how), now_ms=world.now_ms + 1)
    assert (world.items("q"), world.items("dead")) == ([b"0", b"1"], [b"9", b"0"])


def test_a_power_cut_behind_a_reload_that_removes_a_torn_copy_leaves_none() -> None:
    """The intent must not end before the disk knows of the removal: no start would look for what is torn again."""
    begun = moved_behind(addx(b"9"), 1000)
    replace_file(begun, "s/q", addx(b"tick") + addx(b"1"))
    replace_file(begun, "s/dead", addx(b"9") + addx(b"ti\0\0"))
    look = World(disk=begun.copy()).broker.queues.by_name["q"].line.head() or Item(b"", 0)
    key = key_of(look)
    replace_file(begun, "s/.staniel/intents", encode(Intent(1, "q", key[0], "dead", 0, len(addx(b"9")), *key, xid=9)))
    begun.sync_all("")
    for seed in range(60):
        world = World(disk=unreadable(begun.copy(), "dead"))
        world.disk._faults.clear()
        world.client().says("reload")
        assert "transfer.torn" in world.events
        again = World(disk=world.disk.crash(Random(seed).randrange), now_ms=world.now_ms + 1)
        assert (again.items("q"), again.items("dead")) == ([b"tick", b"1"], [b"9"])
        settle(world)
        assert not world.broker.transfers.transfer_log.kept


def test_a_second_reload_does_not_finish_an_intent_again() -> None:
    """An intent of an older version names no transaction: any equal item will do, and there is another one."""
    world = World(disk=unreadable(moved_behind(b"", 0), "dead"))
    world.disk._faults.clear()
    world.client().says("reload")
    world.broker.queues.unreadable.add("none")
    world.client().says("reload")
    assert len(world.reported("transfer.finished")) == 1
    settle(world)
    world.client().says("reload")
    assert not world.broker.transfers.transfer_log.kept
    assert (world.items("q"), world.items("dead")) == ([b"0", b"1"], [b"0"])


def test_an_intent_whose_copy_never_came_is_not_taken_up_again_when_its_item_has_gone_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In libkestrel's format an item is known by its id, which it keeps."""
    world = World(STREAMS)
    asks(world, "set q 0 0 4", "tick")
    send_copies(world, "move q dead 1")
    world = World(STREAMS, unreadable(world.disk.crash(Crash.DROP), "dead"), world.now_ms + 1)
    end_operations(world)
    assert world.items("q") == [] and world.broker.transfers.transfer_log.kept
    world.disk._faults.clear()
    asks(world, "reload")
    end_operations(world)
    assert world.items("q") == [b"tick"]
    send_copies(world, "move q r 1")
    world.sync()  # of the copy: the removal is only recorded
    world = not_searched(monkeypatch, STREAMS, world.disk.crash(Crash.DROP), world.now_ms + 1)
    asks(world, "reload")
    settle(world)
    assert (world.items("q"), world.items("r")) == ([], [b"tick"])


BUSY = """[default]
default_journal_size = 100
max_journal_size = 400
max_memory_size = 150
min_journal_compact_delay = 0
"""


def fail_searches(patch: pytest.MonkeyPatch) -> None:
    def added_since(self: object, start: object) -> Iterator[object]:
        raise OSError(errno.EIO, "it cannot be read")

    for search in (Search, StreamSearch):
        patch.setattr(search, "added_since", added_since)


def not_searched(monkeypatch: pytest.MonkeyPatch, config: str, disk: Disk, now_ms: int) -> World:
    """Start a server that cannot read, when it looks for copies, what it could read before."""
    with monkeypatch.context() as patch:
        fail_searches(patch)
        return World(config, disk, now_ms)


@pytest.mark.parametrize("config", [BUSY, f'{BUSY}journal_format = "libkestrel"\n'], ids=["kestrel", "libkestrel"])
def test_a_target_that_could_not_be_searched_is_not_rewritten_before_it_is(
    config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(config)
    asks(world, "set q 0 0 4", "tick", "set q 0 0 4", "tock")
    send_copies(world, "move q dead 1")
    world.sync()  # of the copy: the removal is only recorded
    world = not_searched(monkeypatch, config, world.disk.crash(Crash.DROP), world.now_ms + 1)
    assert "transfer.kept" in world.events and world.items("q") == [b"tock"]

    def churn() -> None:
        for _ in range(12):
            asks(world, "set dead 0 0 40", "y" * 40)
        drain(world, "dead")
        for _ in range(6):
            world.turn(1000)
            settle(world)

    found = drain(world, "dead")
    churn()
    assert not found[b"tock"] and len(files_of(world.disk, "dead")) > 3
    asks(world, "reload")
    assert not world.broker.transfers.transfer_log.kept
    found += drain(world, "dead") + drain(world, "q")
    assert (found[b"tick"], found[b"tock"]) == (1, 1)
    churn()
    assert len(files_of(world.disk, "dead")) <= 3  # it is as any other again


@pytest.mark.parametrize("config", [BUSY, f'{BUSY}journal_format = "libkestrel"\n'], ids=["kestrel", "libkestrel"])
def test_no_transfer_waits_for_the_rewrite_of_a_target_that_could_not_be_searched(
    config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rewrite waits for a reload, and that may be long."""
    config += '[queues.work]\ndead_letter_queue = "dead"\nmax_deliveries = 1\n'
    world = World(config)
    asks(world, "set q 0 0 4", "tick", "set other 0 0 4", "tock")
    send_copies(world, "move q dead 1")
    world.sync()  # of the copy
    world = not_searched(monkeypatch, config, world.disk.crash(Crash.DROP), world.now_ms + 1)
    for _ in range(12):
        asks(world, "set dead 0 0 40", "y" * 40)
    drain(world, "dead")
    asks(world, "set work 0 0 4", "dies")
    asks(world, "get work/open", "get work/abort")
    assert world.items("dead") == [b"dies"]
    assert asks(world, "move other dead 1").startswith("MOVED") and world.items("dead") == [b"dies", b"tock"]


@pytest.mark.parametrize("is_under_way", [False, True], ids=["asked for", "under way"])
def test_other_journals_are_packed_while_a_target_waits_for_its_search(
    is_under_way: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pack runs at a time, and the search waits for a reload."""
    world = World(BUSY)
    asks(world, "set q 0 0 4", "tick", "set q 0 0 4", "tock")
    send_copies(world, "move q dead 1")
    world.sync()  # of the copy
    world = not_searched(monkeypatch, BUSY, world.disk.crash(Crash.DROP), world.now_ms + 1)

    def churn(queue: str) -> None:
        for _ in range(12):
            asks(world, f"set {queue} 0 0 40", "y" * 40)
        for _ in range(9):
            asks(world, f"get {queue}")
        for _ in range(6):
            world.turn(1000)
            settle(world)

    with monkeypatch.context() as patch:
        if is_under_way:  # it has begun before the target is known to wait
            patch.setattr(world.broker.maintenance.packs, "is_kept", lambda log: False)
        churn("dead")
    assert len(files_of(world.disk, "dead")) > 3
    churn("other")
    assert len(files_of(world.disk, "other")) <= 3
    asks(world, "reload")
    for _ in range(6):
        world.turn(1000)
        settle(world)
    assert len(files_of(world.disk, "dead")) <= 3


@pytest.mark.parametrize("config", ["", STREAMS], ids=["kestrel", "libkestrel"])
def test_a_target_that_could_not_be_searched_can_be_deleted(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(config)
    asks(world, "set q 0 0 4", "tick", "set q 0 0 4", "tock")
    send_copies(world, "move q dead 1")
    world.sync()
    world = not_searched(monkeypatch, config, world.disk.crash(Crash.DROP), world.now_ms + 1)
    with monkeypatch.context() as patch:
        fail_searches(patch)
        assert asks(world, "delete dead") == "DELETED"
    asks(world, "reload")
    assert drain(world, "q") == {b"tick": 1, b"tock": 1} and not world.broker.transfers.transfer_log.kept


@pytest.mark.parametrize("config", ["", STREAMS], ids=["kestrel", "libkestrel"])
@pytest.mark.parametrize("by", ["delete dead", "DELETE", "max_queue_age"])
def test_what_has_come_and_is_done_does_not_come_back_when_a_target_that_was_not_searched_is_deleted(
    by: str, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config += '[queues.dead]\nmax_queue_age = "5s"\n' * (by == "max_queue_age")
    world = World(config)
    asks(world, "set q 0 0 4", "tick", "set q 0 0 4", "tock")
    send_copies(world, "move q dead 1")
    world.sync()
    world = not_searched(monkeypatch, config, world.disk.crash(Crash.DROP), world.now_ms + 1)
    assert drain(world, "dead") == {b"tick": 1}
    if by == "DELETE":
        assert asked(world, "DELETE", "/api/queues/dead")[0] == 200
    elif by == "max_queue_age":
        for _ in range(20):
            world.turn(1000)
            settle(world)
    else:
        assert asks(world, by) == "DELETED"
    world = World(config, world.disk.crash(Crash.DROP), world.now_ms + 1)
    asks(world, "reload")
    assert drain(world, "q") == {b"tock": 1} and not world.broker.transfers.transfer_log.kept


def test_a_target_that_must_be_rewritten_and_could_not_be_searched_is_not_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = not_searched(monkeypatch, "", moved_behind(REWRITTEN, 1000), 1_700_000_001_000)
    assert world.broker.queues.unreadable == {"dead"} and world.items("q") == [b"0", b"1"]
    asks(world, "reload")
    assert (world.items("q"), world.items("dead")) == ([b"0", b"1"], [b"9", b"0"])


def test_an_intent_ends_with_its_source_and_is_not_finished_in_another_queue_of_that_name() -> None:
    world = World()
    asks(world, "set q 0 0 4", "tick")
    send_copies(world, "move q dead 1")
    world.sync()  # of the copy: the removal is only recorded
    world = World("", unreadable(world.disk.crash(Crash.DROP), "dead"), world.now_ms)
    assert world.broker.transfers.transfer_log.kept
    assert asks(world, "delete q", "set q 0 0 4", "tick") == "DELETED STORED"  # within the millisecond of the first
    settle(world)
    again = World("", world.disk.crash(Crash.DROP), world.now_ms)
    assert drain(again, "q") == {b"tick": 1} and drain(again, "dead") == {b"tick": 1}
    world.disk._faults.clear()
    asks(world, "reload")
    assert drain(world, "q") == {b"tick": 1} and drain(world, "dead") == {b"tick": 1}


def test_an_intent_outlives_its_source_until_no_power_cut_can_bring_that_back() -> None:
    world = World()
    asks(world, "set q 0 0 4", "tick", "set q 0 0 4", "tock")
    send_copies(world, "move q dead 1")
    world.sync()
    world = World("", unreadable(world.disk.crash(Crash.DROP), "dead"), world.now_ms + 1)
    client = world.client().says("delete q")
    assert not client.hears()
    for how in Crash:
        again = World("", world.disk.crash(how), world.now_ms + 1)
        found = drain(again, "q") + drain(again, "dead")
        assert found[b"tick"] == 1 and found[b"tock"] <= 1, (how, found)


@pytest.mark.pure
@pytest.mark.parametrize(
    ("journal_format", "reads"), [("kestrel", (ReadBehind, "load")), ("libkestrel", (Stream, "read"))]
)
def test_whoever_looks_for_one_item_of_a_long_queue_does_not_load_the_others(
    journal_format: str, reads: tuple[type, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(f'[default]\njournal_format = "{journal_format}"\nmax_memory_size = "20KB"\n')
    world.client().says(*(line for number in range(1000) for line in ("set q 0 0 1000", f"{number:01000}")))
    while any(client.session.wants_turn for client in world.clients):
        world.turn()
    queue = world.broker.queues.by_name["q"]
    head = queue.line.head()
    assert head is not None
    assert len(queue.line) == 1000
    wanted, loaded, right = key_of(head), [0], getattr(*reads)

    def counted(self: object, *args: int) -> list[Item]:
        found: list[Item] = right(self, *args)
        loaded[0] += len(found)
        return found

    monkeypatch.setattr(*reads, counted)
    assert set_aside_found(queue, 0, lambda item, item_id: key_of(item) == wanted) is not None
    assert loaded[0] < 400


def test_who_waits_for_a_queue_that_a_reload_makes_keeps_what_it_is_given() -> None:
    config = '[queues.q]\nexpire_to_queue = "late"\n'
    world = World(config)
    asks(world, "set q 0 10 4", "tick")
    send_copies(world, "move q dead 1")
    world.sync()  # of the copy: the removal is only recorded
    disk = unreadable(world.disk.kill(), "dead")
    world = World(config, disk, world.now_ms + 20_000)
    asks(world, "delete late")
    for name in [name for name, _ in disk.list("s") if name.startswith("dead")]:
        disk.remove(f"s/{name}")
    disk._faults.clear()
    world.client().says("get q/t=5000")
    first, second = world.client().says("get late/t=5000/open"), world.client().says("get late/t=5000/open")
    asks(world, "reload")
    settle(world)
    assert "tick" in first.hears() and not second.hears()
    late = world.broker.queues.by_name["late"]
    assert len(late.open_reads) == 1 and not len(late.line)
