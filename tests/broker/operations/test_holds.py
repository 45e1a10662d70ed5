"""What a retention hold keeps of a spool at work, in each format, on the fake disk."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from typing import Any

import pytest

from staniel.broker import protocols
from staniel.broker.admin import health
from staniel.broker.broker import LOOK_MS
from staniel.journal import kept_files
from staniel.journal.disk.replace_file import replace_file
from staniel.journal.holds import Hold, encode, files_to_read, open_to_read, place_of, read_holds
from staniel.journal.spool import Spool
from staniel.sim.disk.disk import Disk
from staniel.sim.disk.durable import Crash
from tests.broker.admin.test_health import scraped
from tests.broker.operations.test_undo import Admin, asked
from tests.support.job_world import job_id
from tests.support.streams import settle
from tests.support.world import Client, World

SMALL = """
server.redo_log = "none"
workq.port = 0
workq.cmdlog_seg_size = "1KB"
workq.cmdlog_clean_int = "1s"
[default]
max_memory_size = 300
max_journal_size = 600
default_journal_size = 100
min_journal_compact_delay = 0
[queues.mail]
journal_format = "libkestrel"
[queues.idle]
max_memory_size = "1MB"
max_journal_size = "2MB"
"""
HELD = {"q", "idle", "mail", ".cmdlog"}


def create(world: World, name: str = "h", **more: object) -> dict[str, Any]:
    status, view = asked(world, "POST", "/api/holds", {"name": name, **more})
    assert status == 200, view
    return view  # type: ignore[no-any-return]


def turn_over(world: World, queue: str, count: int = 30) -> None:
    """Put and take items, until the server needs none of the files."""
    client = world.client()
    for number in range(count):
        client.puts(f"{number:05}".ljust(60, "."), queue)
    for _ in range(count):
        client.says(f"get {queue}")
    settle(world)
    world.turn(LOOK_MS)


def turn_jobs_over(world: World, count: int = 30) -> None:
    worker = Client(world, protocols.workq())
    world.clients.append(worker)
    for number in range(count):
        worker.says(f"add {job_id(number + 1)} work 60000 600000 60", "x" * 60)
    for number in range(count):
        worker.says(f"delete {job_id(number + 1)}")
    for _ in range(6):
        world.turn(1000)
        settle(world)


def turn_all_over(world: World) -> None:
    for queue in ("q", "idle", "mail"):
        turn_over(world, queue)
    turn_jobs_over(world)


def sealed(disk: Disk) -> dict[str, bytes]:
    """The files that a holder may read, by name: those that the hold keeps, and those in place."""
    (hold,) = read_holds(disk, "s")
    return {file.name: disk.read(file.path, 0, disk.size(file.path)) for file in files_to_read(disk, "s", hold)}


def test_nothing_is_kept_without_a_hold() -> None:
    world = World(SMALL)
    turn_all_over(world)
    assert not world.broker.spool.keeper.kept and not read_holds(world.disk, "s")


def test_sealed_files_of_every_format_are_kept_as_they_were_written() -> None:
    world = World(SMALL)
    create(world)
    written: dict[str, bytes] = {}
    for _ in range(3):
        turn_all_over(world)
        found = sealed(world.disk)
        current = {max(places, key=lambda name: place_of(name).number) for places in by_queue(found).values()}  # type: ignore[union-attr]
        for name, data in written.items():
            assert found[name] == data
        written = {name: data for name, data in found.items() if name not in current}
    assert {place.queue for name in written if (place := place_of(name))} == HELD
    puts = b"".join(data for name, data in sorted(written.items()) if name.startswith("mail."))
    assert all(f"{number:05}".encode() in puts for number in range(30))


def kept_for(world: World, name: str = "h") -> list[str]:
    """The names of the files that are kept for a hold, in their order."""
    return sorted(
        file.removeprefix(f"{name}~") for file in world.broker.spool.keeper.kept if file.startswith(f"{name}~")
    )


def by_queue(files: dict[str, bytes]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in files:
        place = place_of(name)
        assert place is not None
        found.setdefault(place.queue, []).append(name)
    return found


def test_a_move_gives_up_what_was_passed_and_no_more() -> None:
    world = World(SMALL)
    create(world)
    create(world, "other", queues=["q"])
    for _ in range(2):
        turn_over(world, "q")
        turn_over(world, "mail")
    names = [name for name in kept_for(world) if name.startswith("mail.")]
    status, view = asked(world, "POST", "/api/holds/h/move", {"passed": {"mail": names[1]}})
    assert status == 200 and view["passed"] == {"mail": names[1]}
    assert not {*names[:2]} & {*kept_for(world)} and {*names[2:]} <= {*kept_for(world)}
    of_q = kept_for(world, "other")
    assert asked(world, "POST", "/api/holds/h/move", {"passed": {"q": of_q[-1]}})[0] == 200
    assert not {*of_q} & {*kept_for(world)} and kept_for(world, "other") == of_q
    assert asked(world, "DELETE", "/api/holds/other") == (200, {"dropped": "other"})
    assert not kept_for(world, "other")
    assert not [name for name, _ in world.disk.list("s/.staniel/kept") if "q." in name]


@pytest.mark.parametrize(
    ("passed", "why"),
    [
        ({"mail": "mail.9999999999999"}, "there is no sealed file"),
        ({"mail": "mail.1"}, "never moves back"),
        ({"mail": "mail"}, "is not the name of a sealed file of mail"),
        ({"mail": "q.1"}, "is not the name of a sealed file of mail"),
        ({"mail": "../lock"}, "is not the name of a sealed file of mail"),
        ({"mail": f"mail.{'9' * 5000}"}, "is not the name of a sealed file of mail"),
        ({"q": "q.1"}, "is not about q"),
        ({"mail": "NEWEST"}, "there is no sealed file"),
        ({"mail": "FIRST"}, "never moves back"),
    ],
)
def test_a_move_to_elsewhere_is_refused(passed: dict[str, str], why: str) -> None:
    world = World(SMALL)
    create(world, queues=["mail"])
    turn_over(world, "mail")
    names = kept_for(world)
    newest = max(name for name, _ in world.disk.list("s") if name.startswith("mail.1"))
    assert asked(world, "POST", "/api/holds/h/move", {"passed": {"mail": names[1]}})[0] == 200
    passed = {queue: {"NEWEST": newest, "FIRST": names[0]}.get(name, name) for queue, name in passed.items()}
    status, reply = asked(world, "POST", "/api/holds/h/move", {"passed": passed})
    assert status == 409 and why in reply["error"]
    assert asked(world, "GET", "/api/holds")[1][0]["passed"] == {"mail": names[1]}


def test_a_hold_is_created_once_and_only_with_sound_values() -> None:
    world = World(SMALL)
    first = create(world, queues=["q*"], max_bytes=10)
    assert {**create(world, queues=["q*"], max_bytes=10), "age_ms": 0} == {**first, "age_ms": 0}
    assert create(world, queues=["q*"], max_bytes=20)["max_bytes"] == 20
    for body, status in [
        ({"name": "h", "queues": ["mail"]}, 409),
        ({"name": ""}, 400),
        ({"name": "a b"}, 400),
        ({"name": "x", "queues": []}, 400),
        ({"name": "x", "queues": [""]}, 400),
        ({"name": "x", "max_bytes": -1}, 400),
        ({"name": "x", "max_bytes": 1 << 63}, 400),
        ({"queues": ["q"]}, 400),
    ]:
        assert asked(world, "POST", "/api/holds", body)[0] == status, body
    assert asked(world, "POST", "/api/holds/x/move", {"passed": {}})[0] == 404
    assert asked(world, "DELETE", "/api/holds/x")[0] == 404
    for number in range(31):
        create(world, f"h{number}")
    assert asked(world, "POST", "/api/holds", {"name": "one-too-many"})[0] == 409


@pytest.mark.parametrize("queue", ["q", "idle", "mail"])
def test_files_of_a_deleted_queue_stay_and_those_of_its_successor_come_after_them(queue: str) -> None:
    world = World(SMALL)
    create(world)
    client = world.client().puts("first", queue)
    client.says(f"delete {queue}")
    settle(world)
    kept = {name: data for name, data in sealed(world.disk).items() if name.startswith(f"{queue}.")}
    assert b"first" in b"".join(kept.values())
    world.now_ms -= 3_600_000  # the clock is set back
    turn_over(world, queue)
    client.says(f"delete {queue}")
    settle(world)
    found = {name: data for name, data in sealed(world.disk).items() if name.startswith(f"{queue}.")}
    assert list(found)[: len(kept)] == list(kept) and {**found, **kept} == found and len(found) > len(kept)


HOW: list[Callable[[World], World]] = [
    lambda world: World(SMALL, world.disk.kill(), world.now_ms + 1000),
    lambda world: world.crash(Crash.DROP),
    lambda world: world.crash(Crash.KEEP),
]


@pytest.mark.parametrize("how", HOW)
def test_holds_and_kept_files_outlive_a_crash(how: Callable[[World], World]) -> None:
    world = World(SMALL)
    create(world)
    turn_all_over(world)
    before = {name: sealed(world.disk)[name] for name in kept_for(world)}
    passed = sorted(name for name in before if name.startswith("q."))[0]
    assert asked(world, "POST", "/api/holds/h/move", {"passed": {"q": passed}})[0] == 200
    del before[passed]
    again = how(world)
    (view,) = asked(again, "GET", "/api/holds")[1]
    assert view["passed"] == {"q": passed} and view["files"] == len(before)
    found = sealed(again.disk)
    assert {name: found[name] for name in before} == before
    turn_all_over(again)
    found = sealed(again.disk)
    assert {name: found[name] for name in before} == before


def test_a_hold_is_dropped_at_its_limit_and_its_holder_learns_that() -> None:
    world = World(SMALL)
    create(world, max_bytes=1000)
    create(world, "other", queues=["idle"])
    turn_over(world, "q")
    world.turn(LOOK_MS)
    settle(world)
    assert world.events.count("hold.dropped") == 1
    view = next(view for view in asked(world, "GET", "/api/holds")[1] if view["name"] == "h")
    assert view["state"] == "dropped" and view["files"] == 0 and "max_bytes is 1,000" in view["why"]
    assert not world.broker.spool.keeper.kept and world.broker.file_holds.dropped_at_limit == 1
    status, reply = asked(world, "POST", "/api/holds/h/move", {"passed": {}})
    assert status == 409 and "was dropped" in reply["error"]
    turn_over(world, "q")
    assert not world.broker.spool.keeper.kept
    assert create(world, max_bytes=1000)["state"] == "active"


def test_a_hold_at_its_limit_is_dropped_on_a_full_disk() -> None:
    world = World(SMALL)
    create(world, queues=["q"], max_bytes=1000)
    turn_over(world, "q")
    world.disk.fail("create", "holds.new", errno.ENOSPC)
    world.turn(LOOK_MS)
    settle(world)
    assert world.events.count("hold.dropped") == 1 and not world.broker.spool.keeper.kept


@pytest.mark.parametrize("how", ["move", "drop"])
def test_what_frees_a_full_disk_is_possible_on_it(how: str) -> None:
    world = World(SMALL)
    create(world, queues=["q"])
    turn_over(world, "q")
    kept = kept_for(world)
    world.disk.fail("create", "holds.new", errno.ENOSPC)
    if how == "move":
        assert asked(world, "POST", "/api/holds/h/move", {"passed": {"q": kept[-1]}})[0] == 200
    else:
        assert asked(world, "DELETE", "/api/holds/h")[0] == 200
    assert kept and not kept_for(world) and not world.disk.list("s/.staniel/kept")


def test_the_drop_of_a_hold_whose_files_cannot_be_removed_is_told_once() -> None:
    world = World(SMALL)
    create(world, max_bytes=1000)
    world.disk.fail("remove", "kept/h~", errno.EACCES, times=10_000)
    turn_over(world, "q")
    for _ in range(5):
        world.turn(LOOK_MS)
        settle(world)
    assert kept_for(world) and world.events.count("hold.dropped") == world.broker.file_holds.dropped_at_limit == 1


def test_a_limit_counts_while_changes_follow_each_other() -> None:
    world = World(SMALL)
    create(world, queues=["q"])
    turn_over(world, "q")
    create(world, queues=["q"], max_bytes=1000)
    holds = world.broker.file_holds
    for number in range(3):  # a change is under way whenever the limits are checked
        holds.create(f"other{number}", ["b"], 0, world.now_ms, lambda refused, now_ms: None)
    assert holds._is_changing
    holds.check_limits(world.now_ms)
    world.do_tasks()
    assert world.events.count("hold.dropped") == 1 and len(holds) == 4


def test_a_hold_whose_holder_has_moved_meanwhile_is_not_dropped_at_its_limit() -> None:
    world = World(SMALL)
    create(world, queues=["q"])
    turn_over(world, "q")
    create(world, queues=["q"], max_bytes=1000)
    holds = world.broker.file_holds
    holds.move("h", {"q": kept_for(world)[-1]}, world.now_ms, lambda refused, now_ms: None)
    holds.check_limits(world.now_ms)
    settle(world)
    world.do_tasks()
    assert not kept_for(world) and world.events.count("hold.dropped") == 0
    world.turn(LOOK_MS)
    turn_over(world, "q")
    assert world.events.count("hold.dropped") == 1  # limits are checked again


def test_what_was_kept_once_takes_no_memory_once_it_is_passed() -> None:
    world = World(SMALL)
    create(world)
    keeper = world.broker.spool.keeper
    for number in range(5):
        world.client().puts("x", f"temporary{number}").says(f"delete temporary{number}")
        settle(world)
        passed = {f"temporary{number}": kept_for(world)[-1]}
        _, view = asked(world, "POST", "/api/holds/h/move", {"passed": passed})
        assert view["passed"] == passed and view["files"] == 0
    assert not keeper.kept and [*keeper.places] == ["h"] and len(keeper.places["h"]) <= 1


def test_a_queue_numbers_its_files_behind_those_that_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_files, "LAST_NUMBERS_MAX", 2)
    world = World(SMALL)
    create(world)
    names = []
    for queue in ("q", "b", "c", "d"):
        world.client().puts("x", queue).says(f"delete {queue}")
        settle(world)
        names += [name for name in kept_for(world) if name not in names]
        asked(world, "POST", "/api/holds/h/move", {"passed": {queue: names[-1]}})
    keeper = world.broker.spool.keeper
    assert len(keeper._last_numbers) == 2 and not kept_for(world)
    world.now_ms -= 3_600_000
    world.client().puts("x", "q").says("delete q")
    settle(world)
    numbers = [place.number for place in map(place_of, [names[0], *kept_for(world)]) if place is not None]
    assert len(numbers) > 1 and numbers[0] < min(numbers[1:])


@pytest.mark.parametrize("at", range(5))
def test_a_holder_that_lists_the_files_while_they_move_misses_none_that_is_before_one_that_it_sees(at: int) -> None:
    world = World(SMALL)
    create(world)
    for queue in ("q", "mail"):
        turn_over(world, queue)
        for number in range(30):
            world.client().puts(f"{number:05}".ljust(60, "."), queue)
    world.turn()
    (hold,) = read_holds(world.disk, "s")
    disk = RacingDisk(world, at)
    found = files_to_read(disk, "s", hold)  # type: ignore[arg-type]
    everything = [file.name for file in files_to_read(world.disk, "s", hold)]
    for queue in ("q", "mail"):
        seen = [file.name for file in found if file.queue == queue]
        assert [name for name in everything if place_of(name).queue == queue][: len(seen)] == seen  # type: ignore[union-attr]


class RacingDisk:
    """A disk whose queues are read in part, and written, just after the folder `at`, in their order, was listed."""

    def __init__(self, world: World, at: int) -> None:
        self._world, self._left = world, at

    def list(self, folder: str) -> list[tuple[str, bool]]:
        entries = self._world.disk.list(folder)
        if self._left == 0:
            client = self._world.client()
            for queue in ("q", "mail"):
                for _ in range(25):
                    client.says(f"get {queue}").puts("x" * 60, queue)
            settle(self._world)
        self._left -= 1
        return entries


def test_a_holder_that_opens_a_file_just_when_a_pack_replaces_it_reads_the_file() -> None:
    world = World(SMALL)
    turn_over(world, "q")
    create(world)
    (hold,) = read_holds(world.disk, "s")
    files = files_to_read(world.disk, "s", hold)
    before = {file.name: world.disk.read(file.path, 0, 1 << 20) for file in files}
    assert files and not kept_for(world)
    turn_over(world, "q")
    assert {*before} & {*kept_for(world)}
    for file in files:
        reader = open_to_read(world.disk, file)
        assert reader.read(0, 1 << 20) == before[file.name]
        reader.close()


def test_a_name_that_another_thread_has_just_made_is_used_as_it_is() -> None:
    world = World(SMALL)
    create(world)
    world.client().puts("x", "mail")
    world.turn()
    (name,) = [name for name, _ in world.disk.list("s") if re.fullmatch(r"mail\.[0-9]+", name)]
    world.disk.link(f"s/{name}", f"s/.staniel/kept/h~{name}")
    world.disk.fail("remove", "kept/h~", errno.EACCES)  # the other thread is about to open it
    world.client().says("delete mail")
    assert kept_for(world) == [name] and name not in [name for name, _ in world.disk.list("s")]


def test_a_file_that_another_thread_keeps_and_removes_meanwhile_refuses_nothing() -> None:
    world = World(SMALL)
    create(world)
    world.client().puts("x", "mail")
    world.turn()
    world.disk.fail("link", "s/mail.", errno.ENOENT, times=2)
    client = world.client().says("delete mail")
    settle(world)
    assert client.hears() == "DELETED"


@pytest.mark.parametrize("refused", [False, True])
def test_a_start_removes_a_second_name_without_reading_the_file_and_serves_if_it_cannot(refused: bool) -> None:
    world = World(SMALL)
    create(world)
    world.client().puts("x", "mail")
    world.turn()
    (name,) = [name for name, _ in world.disk.list("s") if re.fullmatch(r"mail\.[0-9]+", name)]
    disk = world.disk.kill()
    disk.link(f"s/{name}", f"s/.staniel/kept/h~{name}")
    disk.fail("read", "kept/h~", errno.EIO, times=10)
    if refused:
        disk.fail("remove", "kept/h~", errno.EACCES)
    again = World(SMALL, disk, world.now_ms + 1000)
    assert again.items("mail") == [b"x"]
    assert kept_for(again) == ([name] if refused else [])


def test_a_deletion_under_holds_syncs_no_sealed_file_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(SMALL)
    for name in ("h", "i", "j"):
        create(world, name)
    client = world.client()
    for number in range(30):
        client.puts(f"{number:05}".ljust(60, "."), "mail")
    settle(world)
    synced: list[str] = []
    sync = Disk.sync_inode
    monkeypatch.setattr(Disk, "sync_inode", lambda disk, inode: (synced.append(inode.path), sync(disk, inode))[1])
    client.says("delete mail")
    assert len(kept_for(world)) >= 10 and len(kept_for(world, "j")) >= 10 and len(synced) < 10


def test_a_file_that_a_killed_process_has_not_synced_is_synced_when_it_is_kept() -> None:
    disk = Disk()
    disk.make_folder("s/.staniel")
    replace_file(disk, "s/.staniel/holds", encode([Hold("h", ["*"], 0, 1, 1)]))
    file = disk.append("s/mail.5")
    file.write(b"items")
    disk.sync_folder("s")
    spool = Spool(disk, "s")
    spool.fs.remove("s/mail.5")
    assert disk.crash(Crash.DROP).read("s/.staniel/kept/h~mail.5", 0, 9) == b"items"


@pytest.mark.parametrize("queue", ["q", "mail"])
def test_a_holder_can_pass_a_file_that_the_server_needs_no_more_and_has_not_removed(queue: str) -> None:
    world = World(SMALL)
    create(world)
    world.disk.fail("link", f"s/{queue}.", errno.ENOSPC, times=1000)
    turn_over(world, queue)
    (hold,) = read_holds(world.disk, "s")
    files = [file for file in files_to_read(world.disk, "s", hold) if file.queue == queue]
    newest = queue == "mail"  # which is still written
    assert not kept_for(world) and len(files) > 1 + newest
    world.disk.fail("size", f"s/{files[0].name}", errno.EIO)
    assert asked(world, "POST", "/api/holds/h/move", {"passed": {queue: files[0].name}})[0] == 503
    for file in files[: len(files) - newest]:
        assert asked(world, "POST", "/api/holds/h/move", {"passed": {queue: file.name}})[0] == 200
    if newest:
        assert asked(world, "POST", "/api/holds/h/move", {"passed": {queue: files[-1].name}})[0] == 409


def test_an_error_of_a_link_names_the_hold() -> None:
    world = World(SMALL)
    create(world, "archive")
    world.client().puts("x", "q")
    world.disk.fail("link", "s/q.", errno.EXDEV)
    assert "kept/archive~q." in world.client().says("delete q").hears()


@pytest.mark.parametrize(("verb", "path"), [("create", "holds.new"), ("link", "lock"), ("rename", "holds")])
def test_a_hold_that_cannot_be_stored_is_refused(verb: str, path: str) -> None:
    world = World(SMALL)
    world.disk.fail(verb, path, errno.EPERM)
    status, reply = asked(world, "POST", "/api/holds", {"name": "h"})
    assert status == 503 and "the holds cannot be stored" in reply["error"]
    assert asked(world, "GET", "/api/holds")[1] == [] and not read_holds(world.disk, "s")
    create(world)


@pytest.mark.parametrize("queue", ["q", "mail"])
def test_files_that_cannot_be_kept_are_not_removed_until_they_can(queue: str) -> None:
    world = World(SMALL)
    create(world)
    world.disk.fail("link", f"s/{queue}.", errno.ENOSPC, times=3)
    for _ in range(3):
        turn_over(world, queue)
    data = b"".join(sealed(world.disk).values())
    data += world.disk.read(f"s/{queue}", 0, 1 << 20) if queue == "q" else b""  # its current file
    assert all(data.count(f"{number:05}".encode()) >= 3 for number in range(30))


def test_a_damaged_file_of_holds_costs_the_holds_and_its_bytes_are_saved() -> None:
    world = World(SMALL)
    create(world)
    turn_over(world, "q")
    kept = kept_for(world)
    disk = world.disk.kill()
    disk.truncate("s/.staniel/holds", 20)
    again = World(SMALL, disk, world.now_ms + 1000)
    assert again.events.count("holds.damaged") == 1 and len(again.broker.file_holds) == 0
    assert [name for name, _ in again.disk.list("s/.staniel/damaged")] == ["holds@0+20"]
    assert kept_for(again) == kept  # until a hold is created
    create(again)
    assert not kept_for(again)


def test_a_later_hold_begins_with_the_pack_that_has_replaced_what_an_earlier_one_keeps() -> None:
    world = World(SMALL)
    create(world)
    turn_over(world, "q")
    create(world, "later")
    earlier, later = read_holds(world.disk, "s")
    files = [{file.name: file.path for file in files_to_read(world.disk, "s", hold)} for hold in (earlier, later)]
    packs = {name for name, path in files[1].items() if name in files[0] and path != files[0][name]}
    assert packs and not any(".staniel" in path for path in files[1].values())
    before = {name: world.disk.read(path, 0, 1 << 20) for name, path in files[1].items()}
    turn_over(world, "q")
    after = {file.name: world.disk.read(file.path, 0, 1 << 20) for file in files_to_read(world.disk, "s", later)}
    assert {name: after[name] for name in before} == before


def test_a_hold_does_not_take_over_what_a_former_one_of_its_name_has_left() -> None:
    world = World(SMALL)
    create(world)
    turn_over(world, "q")
    names = kept_for(world)
    world.disk.fail("remove", "h~q.", errno.EACCES, times=2 * len(names))
    assert asked(world, "DELETE", "/api/holds/h")[0] == 200
    status, reply = asked(world, "POST", "/api/holds", {"name": "h"})
    assert status == 503 and "a former hold" in reply["error"]
    create(world)
    assert not kept_for(world)


def test_stats_metrics_and_displays_have_the_age_and_the_bytes_of_each_hold() -> None:
    world = World(SMALL)
    create(world, "archive", max_bytes=100_000)
    turn_over(world, "q")
    world.now_ms += 60_000
    size = sum(world.broker.spool.keeper.kept.values())
    said = world.client().says("stats").hears()
    assert "STAT holds 1 STAT holds_dropped 0 STAT hold_archive_state active STAT hold_archive_age_msec 6" in said
    assert f"STAT hold_archive_bytes {size} " in said and size > 2000
    text = scraped(world).decode()
    assert f'staniel_hold_bytes{{hold="archive"}} {size}\n' in text and "staniel_holds_dropped_total 0\n" in text
    assert re.search(r'staniel_hold_age_seconds{hold="archive"} 6\d', text)
    assert 'staniel_hold_active{hold="archive"} 1\n' in text and 'hold_bytes_max{hold="archive"} 100000\n' in text
    (figure,) = world.broker.sampler(world.now_ms).state(world.now_ms).disk.holds
    assert (figure.name, figure.bytes, figure.max_bytes) == ("archive", size, 100_000)


def test_health_names_a_hold_near_its_limit_and_one_that_was_dropped() -> None:
    world = World(SMALL)
    create(world)
    turn_over(world, "q")
    size = sum(world.broker.spool.keeper.kept.values())
    create(world, max_bytes=size + 10)
    told = {reason.name.value: reason for reason in world.broker.health.check(world.now_ms).reasons}
    assert f"the hold h keeps {size:,} of at most {size + 10:,} bytes, and last moved" in told["hold_filling"].text
    create(world, max_bytes=size - 1)
    world.turn(LOOK_MS)
    settle(world)
    told = {reason.name.value: reason for reason in world.broker.health.check(world.now_ms).reasons}
    assert "hold_filling" not in told and "staniel hold drop h" in told["hold_dropped"].mend


def test_a_client_that_is_gone_has_made_its_hold_all_the_same() -> None:
    world = World(SMALL)
    admin = Admin(world)
    admin.asks("POST", "/api/holds", {"name": "h"})
    admin.session.close(world.now_ms)
    settle(world)
    world.do_tasks()
    assert [hold.name for hold in read_holds(world.disk, "s")] == ["h"]


def test_health_names_the_hold_that_fills_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(SMALL)
    create(world, "archive")
    create(world, "small", queues=["b"])
    for _ in range(6):
        turn_over(world, "q")
    size = sum(world.broker.spool.keeper.kept.values())
    reasons = world.broker.health.check(world.now_ms).reasons
    assert "hold_filling" not in {reason.name.value for reason in reasons}
    world.disk.capacity_bytes = 3 * size
    told = {reason.name.value: reason for reason in world.broker.health.check(world.now_ms).reasons}
    assert f"the hold archive keeps {size:,} bytes without a limit, more than a quarter" in told["hold_filling"].text
    assert "staniel hold drop archive" in told["hold_filling"].mend
    monkeypatch.setattr(health, "LARGE_HOLD_SHARE", 10_000)  # the reserve takes nearly all of this disk
    world.disk.capacity_bytes = world.disk.used_bytes
    told = {reason.name.value: reason for reason in world.broker.health.check(world.now_ms).reasons}
    assert "the hold archive keeps" in told["disk_low"].mend and "staniel hold drop archive" in told["disk_low"].mend
    world.client().puts("x" * 3000)
    settle(world)
    told = {reason.name.value: reason for reason in world.broker.health.check(world.now_ms).reasons}
    assert "staniel hold drop archive" in told["disk_full"].mend
