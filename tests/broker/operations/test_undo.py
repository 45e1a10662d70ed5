"""A purge that can be undone: nothing is lost or doubled, wherever the server is cut off, and bounds are kept."""

from __future__ import annotations

import errno
import json
import os
from functools import partial
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from staniel.broker import protocols
from staniel.broker.operations.purge import ITEMS_PER_SLICE
from staniel.journal.disk.fs import FULL_ERRNOS
from staniel.journal.disk.replace_file import replace_file
from staniel.journal.group_commit import JournalFailure
from staniel.journal.spool import SpoolError
from staniel.journal.undo_file import AppendFrames, frame
from staniel.protocol.limits import Limits
from staniel.queues.calendar import MARKS
from staniel.queues.item import Item
from staniel.sim.disk.disk import Disk, PowerCut
from staniel.sim.disk.durable import Crash
from staniel.sim.world import World
from tests.support.spool import cut_at_each_step, journals

ROTATES = "default.default_journal_size = '64B'\ndefault.max_memory_size = '8B'"
RETURNED = {"returned": 4, "queue": "q", "why": "", "open": 0, "gone": 0}


class Admin:
    """A client of the admin listener."""

    def __init__(self, world: World) -> None:
        self.world = world
        protocol = protocols.http()
        self.session = world.broker.connect(protocol, "unix:pid=7,uid=0")
        self.parser = protocol.parser(Limits())

    def asks(self, method: str, path: str, body: object = None) -> None:
        data = json.dumps(body).encode() if body is not None else b""
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        length = f"Content-Length: {len(data)}\r\n\r\n"
        self.session.execute(self.parser.feed((head + length).encode() + data), self.world.now_ms)

    def hears(self) -> tuple[int, Any] | None:
        """What has been answered, though it may still have to wait for the disk."""
        if not self.session.out:
            return None
        head, _, body = b"".join(self.session.out).partition(b"\r\n\r\n")
        self.session.clear_out()
        return int(head.split()[1]), json.loads(body)


def takes_turn(world: World) -> bool:
    """A turn, in which commands that take many go on; whether there is more of them."""
    for session in [session for session in world.broker.sessions if session.wants_turn]:
        session.run_backlog(world.now_ms)
    world.turn(1)
    return bool(world.broker.operations.running) or any(each.wants_turn for each in world.broker.sessions)


def goes_on(world: World) -> bool:
    """A turn, a sync, a task: whatever there is."""
    is_more = takes_turn(world)
    is_more = world.sync() or is_more
    for task in world.start_tasks():
        world.finish_task(task)
        is_more = True
    return is_more


def settles(world: World) -> None:
    while goes_on(world):
        pass
    world.turn(1)


def asked(world: World, method: str, path: str, body: object = None) -> tuple[int, Any]:
    admin = Admin(world)
    admin.asks(method, path, body)
    settles(world)
    while (heard := admin.hears()) is None:
        goes_on(world)
    return heard


def filled(count: int, config: str = "", queue: str = "q") -> World:
    world = World(config)
    client = world.client()
    for number in range(count):
        client.puts(f"item {number}", queue)
    settles(world)
    return world


@pytest.mark.parametrize("config", ["", 'default.sync_journal = "os"', 'default.journal_format = "libkestrel"'])
def test_a_purge_comes_back_with_its_times(config: str) -> None:
    world = filled(3, config)
    world.client().says("set q 5 60 4", "temp")
    settles(world)
    queue = world.broker.queues.by_name["q"]
    before = [(item.data, item.added_ms, item.expires_ms, item.flags) for item in queue.line.items()]
    status, purged = asked(world, "POST", "/api/queues/q/purge", {"expected": 4})
    assert status == 200 and purged["purged"] == 4 and purged["undo"] and world.items() == []
    world.client().puts("newer")
    world.now_ms += 5000
    assert asked(world, "GET", "/api/undo")[1][0]["items"] == 4
    assert asked(world, "POST", f"/api/undo/{purged['undo']}") == (200, RETURNED)
    after = [(item.data, item.added_ms, item.expires_ms, item.flags) for item in queue.line.items()]
    assert after[0][0] == b"newer" and after[1:] == before
    assert asked(world, "GET", "/api/undo")[1] == []
    assert asked(world, "POST", f"/api/undo/{purged['undo']}")[0] == 404
    again = World(config, world.disk.crash(Crash.DROP), world.now_ms)
    assert again.items() == [data for data, *_ in after]


def test_what_comes_while_it_goes_on_stays() -> None:
    world = filled(ITEMS_PER_SLICE + 10)
    admin = Admin(world)
    admin.asks("POST", "/api/queues/q/purge")
    world.client().puts("newer")
    settles(world)
    heard = admin.hears()
    assert heard is not None and heard[1]["purged"] == ITEMS_PER_SLICE + 10
    assert world.items() == [b"newer"]


def test_it_goes_on_when_its_client_hangs_up() -> None:
    world = filled(ITEMS_PER_SLICE + 10)
    admin = Admin(world)
    admin.asks("POST", "/api/queues/q/purge")
    admin.session.close(world.now_ms)
    settles(world)
    assert world.items() == [] and not world.broker.operations.running
    number = asked(world, "GET", "/api/undo")[1][0]["id"]
    admin = Admin(world)
    admin.asks("POST", f"/api/undo/{number}")
    admin.session.close(world.now_ms)
    settles(world)
    assert len(world.items()) == ITEMS_PER_SLICE + 10


def contents(world: World) -> list[bytes]:
    """What the queue has when everything that can be undone has been."""
    settles(world)
    for each in asked(world, "GET", "/api/undo")[1]:
        assert asked(world, "POST", f"/api/undo/{each['id']}")[0] == 200
    return world.items()


@pytest.mark.parametrize("config", ["", 'default.journal_format = "libkestrel"'])
@pytest.mark.parametrize("how", list(Crash))
@pytest.mark.parametrize("does_undo", [False, True])
def test_a_crash_at_any_step_neither_loses_nor_doubles(how: Crash, does_undo: bool, config: str) -> None:
    count = ITEMS_PER_SLICE + 5
    start = filled(count, config)
    number = asked(start, "POST", "/api/queues/q/purge")[1]["undo"] if does_undo else 0
    for steps in range(100):
        world = World(config, start.disk.copy(), start.now_ms)
        admin = Admin(world)
        admin.asks("POST", f"/api/undo/{number}" if does_undo else "/api/queues/q/purge")
        for _ in range(steps):
            is_more = step(world)
        after = World(config, world.disk.crash(how), world.now_ms)
        assert sorted(contents(after)) == sorted(b"item %d" % each for each in range(count)), steps
        if steps and not is_more:
            return
    raise AssertionError("it never ends")


def test_an_undo_may_be_cut_off_twice() -> None:
    start = filled(3)
    number = asked(start, "POST", "/api/queues/q/purge")[1]["undo"]
    for first in range(7):
        for second in range(7):
            world = World("", start.disk.copy(), start.now_ms)
            for steps in (first, second):
                Admin(world).asks("POST", f"/api/undo/{number}")
                for _ in range(steps):
                    step(world)
                world = World("", world.disk.crash(Crash.KEEP), world.now_ms)
            assert sorted(contents(world)) == [b"item 0", b"item 1", b"item 2"], (first, second)


@pytest.mark.parametrize("config", ["", 'default.journal_format = "libkestrel"'])
def test_a_purge_of_what_has_just_come_from_another_queue(config: str) -> None:
    start = filled(3, config)
    for before in range(6):
        for after in range(9):
            world = World(config, start.disk.copy(), start.now_ms)
            Admin(world).asks("POST", "/api/queues/q/move", {"to": "r"})
            for _ in range(before):
                step(world)
            Admin(world).asks("POST", "/api/queues/r/purge")
            for _ in range(after):
                step(world)
            world = World(config, world.disk.crash(Crash.DROP), world.now_ms)
            assert sorted(contents(world) + world.items("r")) == [b"item 0", b"item 1", b"item 2"], (before, after)


@pytest.mark.parametrize("config", ["", 'default.journal_format = "libkestrel"'])
@pytest.mark.parametrize("second", ["purge", "move"])
def test_what_an_undo_has_just_returned_is_taken_further(config: str, second: str) -> None:
    start = filled(3, config)
    number = asked(start, "POST", "/api/queues/q/purge")[1]["undo"]
    for before in range(8):
        for after in range(9):
            world = World(config, start.disk.copy(), start.now_ms)
            Admin(world).asks("POST", f"/api/undo/{number}")
            for _ in range(before):
                step(world)
            Admin(world).asks("POST", f"/api/queues/q/{second}", {"to": "r"} if second == "move" else {})
            for _ in range(after):
                step(world)
            world = World(config, world.disk.crash(Crash.DROP), world.now_ms)
            assert sorted(contents(world) + world.items("r")) == [b"item 0", b"item 1", b"item 2"], (before, after)


def step(world: World) -> bool:
    """One of the things that `goes_on` does."""
    is_more = takes_turn(world)
    tasks = world.start_tasks()
    for task in tasks:
        world.finish_task(task)
    return bool(tasks) or world.sync() or is_more


def test_a_purge_that_does_not_fit_says_so_and_no_undo_erases() -> None:
    world = filled(40, 'admin.undo_max_size = "1KB"')
    status, refused = asked(world, "POST", "/api/queues/q/purge")
    assert status == 409 and "no_undo" in refused["error"] and len(world.items()) == 40
    purged = {"purged": 40, "undo": 0, "undo_until_at_ms": 0, "why": ""}
    assert asked(world, "POST", "/api/queues/q/purge", {"no_undo": True}) == (200, purged)
    assert asked(world, "GET", "/api/undo")[1] == []


def test_the_oldest_makes_way_and_time_ends_them() -> None:
    world = filled(20, 'admin.undo_max_size = "1KB"')
    first = asked(world, "POST", "/api/queues/q/purge")[1]["undo"]
    for number in range(20):
        world.client().puts(f"more {number}")
    second = asked(world, "POST", "/api/queues/q/purge")[1]["undo"]
    assert [each["id"] for each in asked(world, "GET", "/api/undo")[1]] == [second] != [first]
    world.turn(3_600_000)
    world.turn(100)
    assert asked(world, "GET", "/api/undo")[1] == []
    assert world.disk.list("s/.staniel/undo") == []


def test_purges_at_the_same_time_take_no_more_together() -> None:
    world = filled(20, 'admin.undo_max_size = "1KB"', "q0")
    for number in range(20):
        world.client().puts(f"item {number}", "q1")
    settles(world)
    admins = [Admin(world) for _ in range(2)]
    for number, admin in enumerate(admins):
        admin.asks("POST", f"/api/queues/q{number}/purge")
    settles(world)
    (first, purged), (second, refused) = filter(None, [admin.hears() for admin in admins])
    assert (first, purged["purged"], second) == (200, 20, 409) and "under way" in refused["error"]
    assert len(world.items("q1")) == 20
    assert asked(world, "POST", "/api/queues/q1/purge")[0] == 200
    assert [each["queue"] for each in asked(world, "GET", "/api/undo")[1]] == ["q1"]


def test_a_start_leaves_names_alone_that_it_has_not_given() -> None:
    world = filled(3)
    number = asked(world, "POST", "/api/queues/q/purge")[1]["undo"]
    world.disk.append("s/.staniel/undo/\u00b2").close()
    again = World("", world.disk.kill(), world.now_ms)
    assert list(again.broker.undos.by_id) == [number]


def test_a_full_disk_takes_them_first() -> None:
    world = filled(3)
    asked(world, "POST", "/api/queues/q/purge")
    world.broker.undos.drop_all("the disk is full")
    assert world.disk.list("s/.staniel/undo") == [] and world.broker.undos.views(world.now_ms) == []


@pytest.mark.parametrize("does_undo", [False, True])
@pytest.mark.parametrize("written", [0, 7])
def test_a_disk_that_refuses_a_write_takes_nothing(
    does_undo: bool, written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever write to the undo file is refused, and however much of it was written."""
    right = AppendFrames.work
    for failing in range(1, 6):
        monkeypatch.setattr(AppendFrames, "work", right)
        world = filled(ITEMS_PER_SLICE + 5)
        path = "/api/queues/q/purge"
        if does_undo:
            path = f"/api/undo/{asked(world, 'POST', path)[1]['undo']}"
        calls = [0]

        def work(task: AppendFrames, failing: int = failing, calls: list[int] = calls) -> None:
            calls[0] += 1
            if calls[0] == failing:
                task._file.write(task._data[:written])
                raise OSError(errno.ENOSPC, "No space left on device")
            right(task)

        monkeypatch.setattr(AppendFrames, "work", work)
        status, told = asked(world, "POST", path)
        is_tried_again = failing in ((3, 5) if does_undo else (3,))  # what has come back, or gone, is noted later
        is_cut = calls[0] >= failing and not is_tried_again
        monkeypatch.setattr(AppendFrames, "work", right)
        counted = told.get("returned", told.get("purged", 0))
        assert (status == 503) == (is_cut and not counted), told
        assert not is_cut or "No space left" in told.get("error", "") + told.get("why", "")
        assert not is_tried_again or counted == ITEMS_PER_SLICE + 5
        after = World("", world.disk.crash(Crash.DROP), world.now_ms)
        assert len(contents(after)) == len(set(after.items())) == ITEMS_PER_SLICE + 5, failing


def steps_until_a_sync_fails(world: World, failing: int) -> None:
    for count in range(1, 20):
        if count == failing:
            world.disk.fail("sync", "s/.staniel/undo/1", errno.EIO)
        step(world)


@pytest.mark.parametrize("does_undo", [False, True])
def test_a_sync_of_the_undo_file_fails_and_the_caches_lie(does_undo: bool) -> None:
    for failing in range(1, 4):
        world = filled(3)
        path = "/api/queues/q/purge"
        if does_undo:
            path = f"/api/undo/{asked(world, 'POST', path)[1]['undo']}"
        Admin(world).asks("POST", path)
        with pytest.raises(JournalFailure):
            steps_until_a_sync_fails(world, failing)
        world = World("", world.disk.kill(), world.now_ms)
        settles(world)
        world = World("", world.disk.crash(Crash.DROP), world.now_ms)
        assert sorted(contents(world)) == [b"item 0", b"item 1", b"item 2"], failing
        world = World("", world.disk.crash(Crash.DROP), world.now_ms)
        assert sorted(contents(world)) == [b"item 0", b"item 1", b"item 2"], failing


def test_a_stop_in_the_middle_keeps_everything() -> None:
    for steps in range(12):
        for does_undo in (False, True):
            world = filled(ITEMS_PER_SLICE + 5)
            path = "/api/queues/q/purge"
            if does_undo:
                path = f"/api/undo/{asked(world, 'POST', path)[1]['undo']}"
            Admin(world).asks("POST", path)
            for _ in range(steps):
                step(world)
            world.broker.shutdown(world.now_ms)
            after = World("", world.disk.crash(Crash.DROP), world.now_ms)
            assert len(contents(after)) == len(set(after.items())) == ITEMS_PER_SLICE + 5


@pytest.mark.parametrize("config", [ROTATES, f'{ROTATES}\ndefault.journal_format = "libkestrel"'])
def test_a_stop_that_carries_out_a_deletion_may_be_killed_and_keeps_what_an_operation_took(config: str) -> None:
    """The deletion of a client had to wait for the operation, which comes to rest when the server stops."""
    start = filled(5, config)
    assert len(journals(start.disk)) >= 2
    items = sorted(start.items())
    kills = 0
    for turns in range(3):
        stops = partial(_stops_amid_two_deletions, config, start.now_ms, turns)
        for _, disk in cut_at_each_step(start.disk.copy(), stops):
            after = World(config, disk.kill(), start.now_ms + 100)
            assert sorted(contents(after)) == items, turns
            kills += 1
    assert kills > 20


def _stops_amid_two_deletions(config: str, now_ms: int, turns: int, disk: Disk) -> None:
    world = World(config, disk, now_ms)
    Admin(world).asks("DELETE", "/api/queues/q")
    for _ in range(turns):
        step(world)
    Admin(world).asks("DELETE", "/api/queues/q", {"no_undo": True, "expected": 0})
    world.broker.shutdown(world.now_ms)


def test_a_queue_that_is_gone_is_made_again() -> None:
    world = filled(3)
    number = asked(world, "POST", "/api/queues/q/purge")[1]["undo"]
    assert asked(world, "DELETE", "/api/queues/q")[1]["deleted"] == 0
    assert asked(world, "POST", f"/api/undo/{number}")[1]["returned"] == 3
    assert len(world.items()) == 3


def test_what_is_forgotten_cannot_come_back() -> None:
    world = filled(3)
    number = asked(world, "POST", "/api/queues/q/purge")[1]["undo"]
    assert asked(world, "DELETE", f"/api/undo/{number}") == (200, {"forgotten": 3})
    assert asked(world, "POST", f"/api/undo/{number}")[0] == 404


def test_a_paused_queue_and_one_in_memory_alone() -> None:
    world = filled(3, "queues.m.keep_journal = false")
    client = world.client()
    client.says("pause q")
    client.puts("x", "m")
    settles(world)
    for queue, count in (("q", 3), ("m", 1)):
        number = asked(world, "POST", f"/api/queues/{queue}/purge")[1]["undo"]
        assert world.items(queue) == []
        assert asked(world, "POST", f"/api/undo/{number}")[1]["returned"] == count
        assert len(world.items(queue)) == count


def test_an_expired_item_comes_back_to_expire() -> None:
    world = filled(0)
    queue = world.broker.queues.make("q", world.now_ms)
    queue.add(Item(b"soon", world.now_ms, world.now_ms + 50), world.now_ms)
    settles(world)
    number = asked(world, "POST", "/api/queues/q/purge")[1]["undo"]
    world.now_ms += 100
    assert asked(world, "POST", f"/api/undo/{number}")[1]["returned"] == 1
    assert queue.remove_head(world.now_ms) is None


def purge_cut_off() -> tuple[Disk, int]:
    """What a power cut leaves, and when it came: a purge had put five items into its file, and no removal is known."""
    world = filled(5)
    Admin(world).asks("POST", "/api/queues/q/purge")
    world.turn(1)
    for task in world.start_tasks():
        world.run_task(task)
    return world.disk.crash(Crash.KEEP), world.now_ms


@pytest.mark.parametrize(
    ("what", "number", "after"),
    [("write", errno.EIO, 0), ("read", errno.EIO, 0), ("size", errno.ENOSPC, 0)]
    + [("read", number, after) for number in FULL_ERRNOS for after in range(3)],
)
def test_a_start_that_cannot_use_an_undo_file_just_now_is_refused_and_the_next_one_has_it(
    what: str, number: int, after: int
) -> None:
    """A file that cannot be read is no full disk, whatever the errno says."""
    disk, now_ms = purge_cut_off()
    ((name, _),) = disk.list("s/.staniel/undo")
    disk.fail(what, f"s/.staniel/undo/{name}", number, after=after)
    with pytest.raises(SpoolError, match=f"s/.staniel/undo/{name}: {os.strerror(number)}"):
        World("", disk)
    again, sound = World("", disk.kill(), now_ms), World("", purge_cut_off()[0], now_ms)
    assert asked(again, "GET", "/api/undo")[1] == asked(sound, "GET", "/api/undo")[1]
    assert again.items() == sound.items() and not again.reported("undo.kept")


@pytest.mark.parametrize("request_", [("POST", "/api/queues/q/purge"), ("DELETE", "/api/queues/q")])
def test_that_a_purge_is_over_is_noted_again_and_again_and_its_items_stay_in_the_file(
    request_: tuple[str, str],
) -> None:
    world = filled(3)
    admin = Admin(world)
    admin.asks(*request_, {})
    world.disk.fail("write", "s/.staniel/undo/1", errno.ESTALE, after=1, times=4)
    for _ in range(20):
        goes_on(world)
    assert admin.hears() is None and len(world.reported("undo.unnoted")) == 1
    cut_off = World("", world.disk.crash(Crash.DROP), world.now_ms)
    assert contents(cut_off) == [b"item 0", b"item 1", b"item 2"]
    for _ in range(100):
        world.now_ms += 100
        goes_on(world)
    heard = admin.hears()
    assert heard is not None and heard[0] == 200 and heard[1]["undo"] == 1
    assert contents(World("", world.disk.crash(Crash.DROP), world.now_ms)) == [b"item 0", b"item 1", b"item 2"]


@pytest.mark.parametrize(
    "config",
    [
        'default.journal_format = "libkestrel"\ndefault.default_journal_size = 200\n',
        "default.default_journal_size = 200\ndefault.max_memory_size = 200\n",
    ],
)
@pytest.mark.parametrize(
    "request_",
    [
        ("DELETE", "/api/queues/q", {}),
        ("POST", "/api/queues/q/purge", {}),
        ("POST", "/api/queues/q/move", {"to": "r"}),
    ],
)
def test_a_queue_that_cannot_be_read_to_its_end_is_not_taken_for_one_that_is_at_it(
    config: str, request_: tuple[str, str, object]
) -> None:
    before = filled(30, config)
    world = World(config, before.disk.kill(), before.now_ms)
    world.disk.fail("read", "s/q", errno.EIO, times=1 << 30)
    world.disk.fail("reader", "s/q", errno.EIO, times=1 << 30)
    _, told = asked(world, *request_)
    assert "Input/output error" in told.get("error", "") + told.get("why", ""), told
    world.disk._faults.clear()
    again = World(config, world.disk.crash(Crash.DROP), world.now_ms)
    there = contents(again) + (again.items("r") if again.broker.queues.known("r") else [])
    assert len(set(there)) == len(there) == 30


def test_a_start_on_a_full_disk_keeps_an_undo_file_that_it_cannot_write_to() -> None:
    disk, _ = purge_cut_off()
    ((name, _),) = disk.list("s/.staniel/undo")
    content = disk.read(f"s/.staniel/undo/{name}", 0, 1 << 20)
    disk.fail("write", f"s/.staniel/undo/{name}", errno.ENOSPC)
    world = World("", disk)
    assert len(world.items()) == 5 and asked(world, "GET", "/api/undo")[1] == []
    (kept,) = world.reported("undo.kept")
    assert disk.read(str(kept["saved_as"]), 0, 1 << 20).startswith(content)
    again = World("", disk.crash(Crash.DROP), world.now_ms)
    assert len(contents(again)) == 5 and not again.reported("undo.kept")


def test_a_file_whose_time_is_over_and_that_cannot_be_removed_stays() -> None:
    world = filled(3)
    number = asked(world, "POST", "/api/queues/q/purge")[1]["undo"]
    disk, path = world.disk.kill(), f"s/.staniel/undo/{number}"
    for operation in "truncate", "remove":
        disk.fail(operation, path, errno.EPERM)
        started = World("", disk, world.now_ms + 3_600_000 + MARKS)
        (left,) = started.reported("undo.unremoved")
        assert left["file"] == path and not started.reported("undo.kept")
        assert started.items() == [] and asked(started, "GET", "/api/undo")[1] == []
        disk = started.disk.kill()
    again = World("", disk, world.now_ms + 3_600_000 + MARKS)
    assert not again.reported("undo.unremoved") and not disk.list("s/.staniel/undo")


def test_a_slice_is_returned_once_though_the_disk_is_full_when_that_is_to_be_noted() -> None:
    """Until it is noted a start finds the copies by their place in the journal, which therefore stays as it is."""
    config = 'default.max_journal_size = "2KB"\ndefault.default_journal_size = "1KB"\n'
    world = filled(3, config)
    number = asked(world, "POST", "/api/queues/q/purge")[1]["undo"]
    world.disk.fail("write", f"s/.staniel/undo/{number}", errno.ENOSPC, after=2, times=4)
    admin = Admin(world)
    admin.asks("POST", f"/api/undo/{number}")
    for _ in range(30):
        goes_on(world)
    assert sorted(world.items()) == [b"item 0", b"item 1", b"item 2"] and len(world.reported("undo.unnoted")) == 1
    client = world.client()
    for _ in range(3):
        client.says("get q")
        for _ in range(5):
            goes_on(world)
    for _ in range(40):
        client.puts("x" * 100)
        for _ in range(2):
            goes_on(world)
        client.says("get q")
        for _ in range(2):
            goes_on(world)
    assert world.items() == []
    again = World(config, world.disk.crash(Crash.DROP), world.now_ms)
    settles(again)
    assert again.items() == []
    settles(world)
    for _ in range(20):
        world.now_ms += 1000
        goes_on(world)
    assert not world.broker.operations.running and asked(world, "GET", "/api/undo")[1] == []
    assert world.items() == []
    once_more = World(config, world.disk.crash(Crash.DROP), world.now_ms)
    settles(once_more)
    assert once_more.items() == [] and asked(once_more, "GET", "/api/undo")[1] == []


def test_a_server_stops_although_what_has_come_back_cannot_be_noted_and_the_next_one_finds_it() -> None:
    world = filled(3)
    number = asked(world, "POST", "/api/queues/q/purge")[1]["undo"]
    world.disk.fail("write", f"s/.staniel/undo/{number}", errno.ENOSPC, after=2, times=1000)
    Admin(world).asks("POST", f"/api/undo/{number}")
    for _ in range(30):
        goes_on(world)
    assert world.reported("undo.unnoted")
    client = world.client()
    client.says("get q")
    for _ in range(10):
        goes_on(world)
    world.broker.operations.stop(world.now_ms)
    world.broker.shutdown(world.now_ms)
    again = World("", world.disk.kill(), world.now_ms)
    settles(again)
    assert sorted(again.items()) == [b"item 1", b"item 2"] and asked(again, "GET", "/api/undo")[1] == []


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.ENOSPC])
def test_a_start_that_cannot_read_where_an_undo_has_put_its_items_is_refused(number: int) -> None:
    world = filled(3)
    undone = asked(world, "POST", "/api/queues/q/purge")[1]["undo"]
    Admin(world).asks("POST", f"/api/undo/{undone}")
    for _ in range(3):
        goes_on(world)
    disk = world.disk.kill()
    reads = reads_of(disk.fork(), "s/q", world.now_ms)
    disk.fail("read", "s/q", number, after=reads - 1)
    with pytest.raises(SpoolError, match=f"s/q: {os.strerror(number)}"):
        World("", disk, world.now_ms)
    assert contents(World("", disk.kill(), world.now_ms)) == [b"item 0", b"item 1", b"item 2"]


def reads_of(disk: Disk, path: str, now_ms: int) -> int:
    """How often a start reads it."""
    disk.fail("read", path, errno.EIO, after=1000)
    World("", disk, now_ms)
    return 1000 - disk._faults[0].after


def test_a_start_that_cannot_list_the_undo_files_is_refused() -> None:
    """After a run without them nothing would tell which of their items are in their queues."""
    disk, now_ms = purge_cut_off()
    disk.fail("list", "s/.staniel/undo", errno.EIO)
    with pytest.raises(SpoolError, match=r"s/\.staniel/undo: Input/output error"):
        World("", disk)
    again = World("", disk.kill(), now_ms)
    assert len(contents(again)) == 5 and not again.reported("undo.kept")


def test_a_file_of_a_later_version_is_kept_and_its_number_is_not_given_again() -> None:
    world = filled(3)
    number = asked(world, "POST", "/api/queues/q/purge")[1]["undo"]
    began = world.broker.undos.by_id[number].content.began
    later = frame(replace(began, version=99, id=number + 7))
    file = world.disk.append(f"s/.staniel/undo/{number + 7}")
    file.write(later)
    file.close()
    again = World("", world.disk.kill(), world.now_ms)
    (kept,) = again.reported("undo.kept")
    assert kept["why"] == "a later version has written it" and again.disk.read(str(kept["saved_as"]), 0, 1000) == later
    again.client().puts("x")
    assert asked(again, "POST", "/api/queues/q/purge")[1]["undo"] > number + 7


@pytest.mark.parametrize("loss", ["none is kept", "removed", "unreadable", "garbage", "nothing"])
def test_a_number_is_not_given_again_where_the_audit_log_is_lost(loss: str) -> None:
    config = f'admin.audit_log = "{"none" if loss == "none is kept" else "64KB"}"'
    world = filled(3, config)
    number = asked(world, "POST", "/api/queues/q/purge")[1]["undo"]
    assert number == 1 and asked(world, "POST", f"/api/undo/{number}")[1]["returned"] == 3
    disk, path = world.disk.kill(), "s/.staniel/audit"
    if loss in ("removed", "garbage"):
        disk.remove(path)
    if loss == "garbage":
        disk.append(path).write(b"{}\nno line")
    if loss == "unreadable":
        disk.fail("read", path, errno.EIO, times=9)
    again = World(config, disk, world.now_ms + 1)
    assert asked(again, "POST", "/api/queues/q/purge")[1]["undo"] == (
        again.now_ms // 1000 + 1 if loss != "nothing" else 3
    )


def test_what_is_cut_off_of_a_file_is_kept() -> None:
    world = filled(3)
    number = asked(world, "POST", "/api/queues/q/purge")[1]["undo"]
    file = world.disk.append(f"s/.staniel/undo/{number}")
    file.write(b"no frame")
    file.close()
    again = World("", world.disk.kill(), world.now_ms)
    (torn,) = again.reported("undo.torn")
    assert again.disk.read(str(torn["saved_as"]), 0, 100) == b"no frame"
    assert len(contents(again)) == 3


def test_a_start_that_is_cut_off_leaves_no_torn_copy_of_an_undo() -> None:
    """A file system has kept the file's size and lost the copy's last bytes."""
    world = filled(1)
    asked(world, "POST", "/api/queues/q/purge")
    Admin(world).asks("POST", "/api/undo/1")
    while not world.items():
        goes_on(world)
    world.turn()  # the copy is written, and not synced
    disk = world.disk.crash(Crash.KEEP)
    data = disk.read("s/q", 0, disk.size("s/q"))
    assert data.endswith(b"item 0")
    replace_file(disk, "s/q", data[:-3] + bytes(3))
    disk.sync_all("")
    steps = whole = 0
    while not whole:
        torn = disk.copy()
        steps += 1
        torn.stop_at = len(torn.log) + steps
        try:
            World("", torn, world.now_ms + 1)
            whole = steps
        except PowerCut:
            torn.stop_at = None
        for seed in range(10):
            again = World("", torn.crash(Random(seed).randrange), world.now_ms + 2)
            settles(again)
            assert again.items() == [b"item 0"]


@pytest.mark.parametrize("body", [{}, {"no_undo": True, "expected": 0}], ids=["with an undo", "at most none"])
def test_a_delete_of_an_empty_queue_loses_nothing_that_an_undo_brings_meanwhile(body: dict[str, object]) -> None:
    answers = set()
    for steps in range(12):
        world = filled(3)
        asked(world, "POST", "/api/queues/q/purge")
        Admin(world).asks("POST", "/api/undo/1")
        for _ in range(steps):
            if not world.items():
                goes_on(world)
        status, deleted = asked(world, "DELETE", "/api/queues/q", body)
        answers.add((status, deleted.get("deleted")))
        for each in asked(world, "GET", "/api/undo")[1]:
            assert asked(world, "POST", f"/api/undo/{each['id']}")[0] == 200
        assert world.items() == [b"item 0", b"item 1", b"item 2"], (steps, status, deleted)
    assert answers == {(409, None) if body else (200, 3)}
