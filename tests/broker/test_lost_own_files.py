"""Another program removes the server's own files while it serves: which loss ends it, which costs a warning."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest

from staniel.broker import protocols
from staniel.broker.broker import LOOK_MS
from staniel.broker.operations.transfer import ITEMS_PER_SLICE, STEPS_PER_TURN
from staniel.broker.wall_clock import ClockReading
from staniel.journal.disk.fs import FilesMisplaced
from staniel.journal.group_commit import JournalFailure
from staniel.journal.own_files import LOSSES, Loss
from staniel.journal.redo.log import LogState
from staniel.journal.spool import OWN_FILES
from staniel.sim.disk.disk import Disk
from staniel.sim.world import START_MS, end_operations
from tests.broker.operations.test_undo import Admin, asked
from tests.faults.rich import files
from tests.support.job_world import job_id
from tests.support.streams import asks, settle
from tests.support.world import Client, World

OWN = "s/.staniel"
MANY = 4 * STEPS_PER_TURN * ITEMS_PER_SLICE  # more than a move sends in its first turns
SPOOL_PAGE = Path(__file__).parents[2] / "docs" / "spool.md"
OF_MEMBERS = ("member", "follower")  # of a cluster: its driver writes them, and tests/cluster removes them
CONFIG = """
server.redo_log = "1MB"
admin.port = 0
admin.audit_log = "64KB"
workq.port = 0
default.max_memory_size = "8KB"
default.default_journal_size = "4KB"
default.max_journal_size = "24KB"
queues.brief.max_age = "1ms"
queues.brief.expire_to_queue = "late"
"""


def served(config: str = CONFIG) -> World:
    """A server that has written each of its own files."""
    world: World | None = None

    def read_clocks() -> ClockReading:
        now_ms = START_MS if world is None else world.now_ms
        return ClockReading(now_ms, now_ms - START_MS, "boot")

    world = World(config, read_clocks=read_clocks)
    for number in range(30):
        asks(world, "set q 0 0 500", f"{number:03}".ljust(500, "x"))
    asks(world, "set brief 0 0 1", "b", "set other 0 0 1", "o", "set other/key=k 0 0 1", "k")
    world.turn(2000)
    settle(world)
    assert asked(world, "POST", "/api/queues/q/pause", {})[0] == 200
    assert asked(world, "POST", "/api/status", {"status": "writeavoid"})[0] == 200
    assert asked(world, "POST", "/api/queues/other/purge", {})[0] == 200
    assert asked(world, "POST", "/api/backup/made", {"made_at_ms": world.now_ms, "where": "/b"})[0] == 200
    assert asked(world, "POST", "/api/holds", {"name": "h"})[0] == 200
    worker = Client(world, protocols.workq())
    world.clients.append(worker)
    worker.says(f"add {job_id(1)} work 60000 600000 7", "payload")
    settle(world)
    world.turn(2000)
    return world


def there(disk: Disk, name: str) -> list[str]:
    """The files of that own name: one, or all in a folder."""
    return [path for path in files(disk, OWN) if re.match(rf"{OWN}/{re.escape(name)}(/|$)", path)]


def goes_on(world: World) -> None:
    for _ in range(4):
        world.turn(LOOK_MS)
        settle(world)
        asked(world, "POST", "/api/queues/q/pause", {})


@pytest.mark.parametrize("harm", ["removed", "emptied"])
@pytest.mark.parametrize("name", [name for name in LOSSES if name not in OF_MEMBERS])
def test_each_own_file_that_is_taken_away_costs_what_the_table_says(name: str, harm: str) -> None:
    world = served()
    paths = there(world.disk, name)
    if harm == "emptied" and name in ("lock", "redo.0", "redo.1", "failed_sync.room", "ballast"):
        return  # its bytes say nothing to this server, or are written again at their places
    for path in paths:
        if harm == "removed":
            world.disk.remove(path)
        else:
            world.disk.truncate(path, 0)
    if LOSSES[name] is Loss.ENDS:
        assert paths
        with pytest.raises(FilesMisplaced, match="was removed"):
            goes_on(world)
        return
    goes_on(world)
    assert world.events.count("disk.full") == 0
    if LOSSES[name] is Loss.REMADE:
        assert paths and there(world.disk, name) == paths
        assert "audit.replaced" in world.events if name == "audit" else "spool.remade" in world.events
    else:
        assert "spool.remade" not in world.events
    # A start after a kill knows pauses, status and items, and that the log was in use.
    again = World(CONFIG, world.disk.kill(), world.now_ms)
    if name != "last_backup" or harm == "removed":
        assert again.broker.last_backup.made
    assert (again.summary.paused, again.broker.status.reported.value) == (1, "WriteAvoid")
    assert len(again.items("q")) == 30 and again.items("late") == [b"b"]
    assert not [event for event in again.events if event.startswith("redo.")]


def test_the_table_has_every_name_of_the_code_and_the_docs_have_every_name_of_the_table() -> None:
    assert set(OWN_FILES) <= set(LOSSES)
    own = {path.removeprefix(f"{OWN}/").partition("/")[0] for path in files(served().disk, OWN)}
    assert own <= set(LOSSES)
    headings = {"it ends": Loss.ENDS, "it makes them again": Loss.REMADE, "it goes on": Loss.NOTHING}
    sections = SPOOL_PAGE.read_text().split("\n### Removed while a server runs: ")[1:]
    told = {
        name.removesuffix("/"): headings[section.partition("\n")[0]]
        for section in sections
        for name in re.findall(r"^- `([^`]+)`: ", section, re.MULTILINE)
    }
    assert told == LOSSES


def test_lines_of_the_audit_log_go_on_in_a_new_file_at_once() -> None:
    world = served()
    world.disk.rename(f"{OWN}/audit", f"{OWN}/audit-20261127")
    asked(world, "POST", "/api/queues/q/resume", {})
    assert b'"operation":"resume"' in world.disk.read(f"{OWN}/audit", 0, 1 << 20)
    assert world.reported("audit.replaced")[0]["file"] == f"{OWN}/audit"


def test_a_lost_log_of_checksums_is_a_warning_because_no_reply_rests_on_it() -> None:
    world = World('server.redo_log = "checksums"\ndefault.sync_journal = "os"\n')
    while world.broker.group.redo.state is not LogState.IN_USE:
        asks(world, "set q 0 0 1", "a")
        world.turn(LOOK_MS)
    world.disk.remove(f"{OWN}/redo.0")
    for _ in range(4):
        world.turn(LOOK_MS)
        assert asks(world, "set q 0 0 1", "a") == "STORED"
    assert world.events.count("redo.lost") == 1


def test_intents_that_are_lost_while_an_item_is_under_way_are_written_again() -> None:
    world = World('queues.q.max_age = "1ms"\nqueues.q.expire_to_queue = "late"\n')
    asks(world, "set q 0 0 1", "a")
    world.now_ms += 10
    world.broker.queues.by_name["q"].expire(world.now_ms, 100)
    world.broker.commit(world.now_ms)
    before = world.disk.read(f"{OWN}/intents", 0, 1 << 20)
    world.disk.remove(f"{OWN}/intents")
    world.turn(LOOK_MS)
    assert before and world.disk.read(f"{OWN}/intents", 0, 1 << 20) == before
    settle(world)
    assert (world.items("q"), world.items("late")) == ([], [b"a"])
    assert World("", world.disk.kill(), world.now_ms).items("late") == [b"a"]


def test_an_undo_file_that_is_gone_refuses_its_undo() -> None:
    world = served()
    (path,) = there(world.disk, "undo")
    world.disk.remove(path)
    status, said = asked(world, "POST", f"/api/undo/{path.rpartition('/')[2]}", {})
    assert status >= 400 and "undo" in said["error"]


@pytest.mark.parametrize("harm", ["removed", "emptied"])
def test_a_move_ends_early_when_its_file_is_gone_and_no_item_is_lost_or_doubled(harm: str) -> None:
    world = World()
    for number in range(MANY):
        asks(world, "set q 0 0 4", f"{number:04}")
    admin = Admin(world)
    admin.asks("POST", "/api/queues/q/move", {"to": "r"})
    world.turn()
    (path,) = there(world.disk, "undo")
    if harm == "removed":
        world.disk.remove(path)
    else:
        world.disk.truncate(path, 0)
    end_operations(world)
    settle(world)
    world.turn()
    heard = admin.hears()
    assert heard is not None and "another program has removed" in heard[1].get("why", heard[1].get("error", ""))
    assert world.items("q") + world.items("r") and len(world.items("q")) + len(world.items("r")) == MANY
    again = World("", world.disk.kill(), world.now_ms)
    assert sorted(again.items("q") + again.items("r")) == [f"{number:04}".encode() for number in range(MANY)]
    assert not again.broker.operations.running


def test_a_disk_that_fills_up_in_a_frame_of_a_move_costs_the_reserve() -> None:
    world = World()
    for number in range(MANY):
        asks(world, "set q 0 0 4", f"{number:04}")
    world.disk.fail("write", "s/.staniel/undo/1", errno.ENOSPC, after=1, short=40)
    found = asked(world, "POST", "/api/queues/q/move", {"to": "r"})[1]
    assert 0 < found["moved"] < MANY and found["why"].startswith("disk full")
    again = World("", world.disk.kill(), world.now_ms)
    assert (len(again.items("q")), len(again.items("r"))) == (MANY - found["moved"], found["moved"])
    assert asked(again, "POST", "/api/undo/1", {})[1]["returned"] == found["moved"]


def test_a_frame_of_a_move_that_cannot_be_written_ends_the_server_because_items_rest_on_it() -> None:
    world = World()
    asks(world, "set q 0 0 1", "a")
    world.disk.fail("write", "s/.staniel/undo/1", errno.EIO)
    with pytest.raises(JournalFailure, match=r"cannot write s/\.staniel/undo/1"):
        asked(world, "POST", "/api/queues/q/move", {"to": "r"})
    again = World("", world.disk.kill(), world.now_ms)
    assert again.items("q") == [b"a"] and not again.items("r")
