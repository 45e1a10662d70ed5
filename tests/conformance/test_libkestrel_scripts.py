"""What the libkestrel library answered to scripts of operations under a stepped clock, and what it left in the folder:
the same said to queues in its format, step by step.

Where ours departs on purpose (docs/journal-libkestrel.md) it is said here how: positions are appended as they come, and
compared by what they say; segments are not made longer than what they hold, and go as soon as nobody needs them; an
item is too old one millisecond later, as in Kestrel; a queue with children is a reader of its own name and keeps its
backlog; what is handed back keeps its place in the order of ids.
"""

from __future__ import annotations

from typing import Any

import pytest

from staniel.journal.libkestrel.position import Position, ReaderFileScan
from staniel.journal.libkestrel.records import MAGIC_BYTES, READER_MAGIC
from staniel.journal.libkestrel.scan import SegmentScan
from staniel.queues.item import Delivery, Item
from staniel.queues.queue import Queue
from staniel.sim.disk.disk import Disk
from tests.conformance import cases
from tests.support.world import World

SCRIPTS = cases.load("libkestrel/scripts.json")
SILENT = ("clock", "config")  # steps without a result
OURS = {"unget_goes_first", "reader_rename", "fanout_no_default"}  # tests of their own
PADDING = "+zeros"


class Play:
    """One script."""

    def __init__(self, journal_size: int, late_ms: int) -> None:
        self.late_ms = late_ms
        self.config = f'default.journal_format = "libkestrel"\ndefault.default_journal_size = {journal_size}\n'
        self.disk = Disk()
        self.disk.make_folder("s")
        self.disk.sync_folder("")
        self.now_ms = 0
        self.world: World | None = None
        self.taken: dict[tuple[str, int], Delivery] = {}

    def step(self, op: list[Any]) -> Any:
        result = getattr(self, f"do_{op[0]}")(*op[1:])
        if self.world is not None:
            self.world.turn()
            while self.world.sync():
                self.world.turn()
        return result

    def queue(self, reader: str) -> Queue:
        assert self.world is not None
        return self.world.broker.queues.make(f"jobs+{reader}" if reader else "jobs", self.now_ms)

    def do_config(self, key: str, value: int = 0) -> None:
        if key == "drop_oldest":
            self.config += "default.discard_old_when_full = true\n"
        elif key == "max_age":
            self.config += f'default.max_age = "{value}ms"\n'
        else:
            self.config += f"default.{key} = {value}\n"

    def do_clock(self, now_ms: int) -> None:
        self.now_ms = now_ms
        if self.world is not None:
            self.now_ms = self.world.now_ms = now_ms + self.late_ms

    def do_open(self) -> str:
        self.world = World(self.config, self.disk, self.now_ms)
        self.queue("")
        return "ok"

    def do_close(self) -> str:
        assert self.world is not None
        self.world.broker.shutdown(self.now_ms)
        self.disk = self.world.disk.kill()
        self.world = None
        return "ok"

    def do_checkpoint(self) -> str:
        return "ok"  # whatever a checkpoint would say has been written

    def do_put(self, data: str, added_ms: int, expires_ms: int | None, errors: int) -> bool:
        assert errors == 0
        return self.queue("").add(Item(data.encode("latin-1"), added_ms, expires_ms or 0), self.now_ms)

    def do_get(self, reader: str) -> dict[str, Any] | None:
        taken = self.queue(reader).open(self.now_ms)
        if taken is None:
            return None
        self.taken[reader, taken.id] = taken
        return {"id": taken.id, "data": taken.item.data.decode("latin-1"), "errors": taken.deliveries - 1}

    def do_commit(self, reader: str, item_id: int) -> str:
        assert self.queue(reader).confirm(self.taken.pop((reader, item_id)))
        return "ok"

    def do_unget(self, reader: str, item_id: int) -> str:
        assert self.queue(reader).abort(self.taken.pop((reader, item_id)), self.now_ms)
        return "ok"

    def do_reader(self, reader: str) -> str:
        self.queue(reader)
        return "ok"

    def do_flush(self, reader: str) -> str:
        self.queue(reader).flush()
        return "ok"

    def do_stats(self, reader: str) -> dict[str, int]:
        """What both count. An open item counts as one of the library's."""
        queue = self.queue(reader)
        queue.sync_counters()
        counters, held = queue.counters, [taken.item for taken in queue.open_reads.values()]
        return {
            "items": len(queue.line) + len(held),
            "bytes": queue.line.bytes + sum(len(item.data) for item in held),
            "open": len(held),
            "open_bytes": sum(len(item.data) for item in held),
            "puts": counters.total_items,
            "put_bytes": counters.put_bytes,
            "expired": counters.expired_items,
            "discarded": counters.discarded,
            "canceled": counters.canceled_transactions,
            "flushes": counters.total_flushes,
        }

    def do_files(self) -> dict[str, Any]:
        disk = self.disk if self.world is None else self.world.disk
        names = [name for name, regular in disk.list("s") if regular]
        return {name: shown(name, disk.read(f"s/{name}", 0, disk.size(f"s/{name}"))) for name in names}


def shown(name: str, data: bytes) -> Any:
    """A segment as its bytes, a reader's file as what it says."""
    if ".read." not in name:
        return data.hex()
    assert data.startswith(READER_MAGIC)
    read = ReaderFileScan()
    read.consume(data[MAGIC_BYTES:], 0)
    read.position.done.drop_through(read.position.head)
    return position(read.position)


def position(found: Position) -> tuple[int, list[int]]:
    return found.head, list(found.done)


def agrees(op: list[Any], ours: Any, theirs: Any) -> bool:
    """Whether a result is the library's, as far as that is promised."""
    if op[0] == "stats":
        return bool(ours == {key: theirs[key] for key in ours})
    if op[0] != "files":
        return bool(ours == theirs)
    wanted = {name: shown(name, bytes.fromhex(text.removesuffix(PADDING))) for name, text in theirs.items()}
    heads = [position[0] for name, position in ours.items() if ".read." in name]
    for name, found in wanted.items():
        if ".read." in name:
            if ours[name] != found and not ours[name][0] > found[0]:  # the library's checkpoint is still to come
                return False
        elif ours.get(name, found) != found or (name not in ours and last_id(found) > min(heads)):
            return False
    return set(ours) <= set(wanted)


def last_id(segment: str) -> int:
    scan = SegmentScan("", MAGIC_BYTES)
    scan.consume(bytes.fromhex(segment)[MAGIC_BYTES:], 0)
    return scan.runs[-1].last_id


def played(name: str) -> tuple[list[tuple[list[Any], Any, Any]], Play]:
    """(step, our result, the library's) of every step that has a result."""
    script = next(each for each in SCRIPTS if each["name"] == name)
    play = Play(script["journal_size"], late_ms=int(name == "max_age"))
    results, found = iter(script["results"]), []
    for op in script["ops"]:
        ours = play.step(op)
        if op[0] not in SILENT:
            found.append((op, ours, next(results)))
    assert next(results, None) is None
    return found, play


@pytest.mark.parametrize("name", [each["name"] for each in SCRIPTS if each["name"] not in OURS])
def test_a_script_goes_as_it_went_in_the_library(name: str) -> None:
    for at, (op, ours, theirs) in enumerate(played(name)[0]):
        assert agrees(op, ours, theirs), (at, op, ours, theirs)


def test_what_is_handed_back_comes_again_in_the_order_of_ids() -> None:
    gets = [ours for op, ours, _ in played("unget_goes_first")[0] if op[0] == "get"]
    assert [(got["id"], got["errors"]) for got in gets] == [(1, 0), (2, 0), (1, 1), (2, 1), (3, 0)]


def test_a_first_child_leaves_the_queue_its_backlog_and_begins_at_the_end() -> None:
    found, play = played("reader_rename")
    assert [ours for op, ours, _ in found if op == ["get", "named"]] == [None, None]
    assert found[-1][1].keys() == {"jobs.1321401903634", "jobs.read.jobs", "jobs.read.named"}
    play.do_open()
    assert play.do_get("") == {"id": 2, "data": "b", "errors": 0}


def test_a_queue_is_still_there_beside_its_children() -> None:
    assert [ours for _, ours, _ in played("fanout_no_default")[0]] == ["ok", "ok", "ok", "ok"]


def test_every_script_is_played() -> None:
    assert len(SCRIPTS) == 14 and {each["name"] for each in SCRIPTS} > OURS
