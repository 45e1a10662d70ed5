"""Clients put, take, open and end reads while an operator moves or purges the same items and undoes that, and the power
is cut: a restart finds what clients were told is kept, nothing that one has taken, and nothing twice. Items that a
purge has removed are in its undo file.

What operations record waits for a sync longer than what clients do. An answer that rests on such a record must wait
for it, too: `Log.reply_batch` has it synced. Each seed is a story with its own settings and limits. Where an answer
does not mean that an item is on the disk, only a server that was killed keeps every promise.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable
from enum import Enum, auto
from typing import NamedTuple

import pytest

from staniel.broker.operations import move, moved_back, purge, transfer
from staniel.broker.operations.undo import UndoRecord
from staniel.journal import group_commit
from staniel.journal.group_commit import Sync
from staniel.journal.kestrel.log import Log
from staniel.journal.undo_file import read_items
from staniel.sim.disk.disk import Disk
from staniel.sim.disk.durable import Choose, Crash
from staniel.sim.world import World
from tests.broker.operations.test_undo import Admin, goes_on
from tests.support.world import World as RestartedWorld

SEEDS = range(40)
SEEDS_OF_THE_BROKEN_RULE = range(80)
CLIENTS = 4
TURNS_MAX = 3000
VALUE = re.compile(r"VALUE \S+ 0 \d+ (\S+) END")
WAITS = ("", "/t=60", "/t=5000")
MOVES = (("q", "r"), ("q", "r"), ("r", "q"), ("r", "t"), ("probe", "r"))
PURGED = ("q", "q", "r", "probe")
DELETED = "t"  # clients only put into it: what one holds open goes with its queue


class Operations(Enum):
    """What the operator of a story does, beside undoing it."""

    MOVES = auto()
    PURGES = auto()  # and deletions


class Violation(Exception):
    """What a client was told does not hold."""


class Known(Enum):
    """What clients know of an item."""

    UNSURE = auto()  # its put has not been answered
    KEPT = auto()
    GONE = auto()
    REFUSED = auto()


class Ask(Enum):
    """What a client asks for; from OPEN on, the name is the option of a `get`."""

    PUT = auto()
    GET = auto()
    OPEN = auto()
    CLOSE = auto()
    ABORT = auto()
    PEEK = auto()


class Request(NamedTuple):
    """What a client has asked; `item` is what it puts, or the open item that it ends."""

    ask: Ask
    queue: str
    item: str = ""


class Caller:
    """A client that waits for one answer at a time, and holds one open read at most."""

    def __init__(self, world: World) -> None:
        self.client = world.client()
        self.waits_for: Request | None = None
        self.holds: Request | None = None

    def asks(self, request: Request, wait: str = "") -> None:
        self.waits_for = request
        match request.ask:
            case Ask.PUT:
                self.client.puts(request.item, request.queue)
            case Ask.GET:
                self.client.says(f"get {request.queue}{wait}")
            case _:
                self.client.says(f"get {request.queue}/{request.ask.name.lower()}{wait}")


class Ledger:
    """What clients know of each item."""

    def __init__(self) -> None:
        self.items: dict[str, Known] = {}

    def new_item(self, length: int) -> str:
        item = f"i{len(self.items)}".ljust(length, ".")
        self.items[item] = Known.UNSURE
        return item

    def hear(self, caller: Caller) -> bool:
        """Note what `caller` is told; False: it still waits."""
        request, heard = caller.waits_for, caller.client.hears()
        if request is None or not heard:
            return False
        caller.waits_for = None
        match request.ask:
            case Ask.PUT:
                self._hear_of_put(request.item, heard)
            case Ask.GET | Ask.OPEN:
                self._hear_of_read(caller, request, heard)
            case Ask.CLOSE:
                self.items[request.item] = Known.GONE
                caller.holds = None
            case Ask.ABORT:
                caller.holds = None
        return True

    def _hear_of_put(self, item: str, heard: str) -> None:
        if heard != "STORED":
            self.items[item] = Known.REFUSED
        elif self.items[item] is Known.UNSURE:  # another client may have taken it before
            self.items[item] = Known.KEPT

    def _hear_of_read(self, caller: Caller, request: Request, heard: str) -> None:
        if (told := VALUE.match(heard)) is None:
            return
        item = told[1]
        if self.items.get(item) not in (Known.UNSURE, Known.KEPT):
            raise Violation(f"{request} gave {item}, which is {self.items.get(item)}")
        self.items[item] = Known.GONE if request.ask is Ask.GET else Known.KEPT
        if request.ask is Ask.OPEN:
            caller.holds = Request(Ask.OPEN, request.queue, item)

    def judge(self, found: Counter[str], callers: list[Caller], keeps_promises: bool) -> None:
        """Hold what a restart has `found` against what clients know."""
        if doubled := [item for item, count in found.items() if count > 1]:
            raise Violation(f"doubled: {doubled}")
        if invented := found.keys() - self.items.keys():
            raise Violation(f"invented: {invented}")
        if not keeps_promises:
            return
        waited_for = [caller.waits_for for caller in callers if caller.waits_for is not None]
        ending = {each.item for each in waited_for if each.ask is Ask.CLOSE}
        lost = [item for item, known in self.items.items() if known is Known.KEPT and not found[item]]
        lost = [item for item in lost if item not in ending]
        if len(lost) > sum(each.ask is Ask.GET for each in waited_for):  # each may have taken one
            raise Violation(f"lost: {lost}")
        if back := [item for item in found if self.items[item] in (Known.GONE, Known.REFUSED)]:
            raise Violation(f"came back: {back}")


def drawn_config(chance: random.Random) -> str:
    lines = []
    if chance.random() < 0.3:
        lines.append(f'server.redo_log = "{chance.choice(["checksums", "1mb"])}"')
    if chance.random() < 0.4:
        lines += [
            f"default.default_journal_size = {chance.choice([100, 400])}",
            f"default.max_journal_size = {chance.choice([400, 900])}",
            f"default.max_memory_size = {chance.choice([150, 500])}",
            "default.min_journal_compact_delay = 0",
        ]
    if chance.random() < 0.2:
        lines.append('default.journal_format = "libkestrel"')
    if chance.random() < 0.3:
        lines += ["default.max_deliveries = 3", 'default.dead_letter_queue = "dead"']
    for queue in "qr":
        number = chance.random()
        if number < 0.1:
            lines.append(f'queues.{queue}.sync_journal = "{chance.choice(["50ms", "os"])}"')
        elif number < 0.2:
            lines.append(f"queues.{queue}.max_items = 8")
    return "\n".join(lines)


def draw_limits(chance: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    items = chance.choice([1, 2, 3, 7])
    for module in (move, moved_back, purge, transfer):
        monkeypatch.setattr(module, "ITEMS_PER_SLICE", items)
    monkeypatch.setattr(moved_back, "READ_AHEAD_ITEMS", chance.choice([1, 2, 64]))
    monkeypatch.setattr(transfer, "UNDER_WAY_MAX", chance.choice([1, 2, 32]))
    monkeypatch.setattr(transfer, "STEPS_PER_TURN", chance.choice([1, 4]))
    monkeypatch.setattr(group_commit, "PATIENCE_MS", chance.choice([1, 4, 100]))
    monkeypatch.setattr(group_commit, "DEFERRED_MS", chance.choice([100, 5000]))


class Story:
    """Clients and an operator of one server, whose syncs and tasks take their time."""

    def __init__(self, chance: random.Random, operations: Operations) -> None:
        self.chance = chance
        self.operations = operations
        self.config = drawn_config(chance)
        self.world = World(self.config)
        self.callers = [Caller(self.world) for _ in range(CLIENTS)]
        self.ledger = Ledger()
        self._sync: Sync | None = None
        self._has_run = False

    def live(self) -> None:
        """Live the story. Raises Violation."""
        chance = self.chance
        for _ in range(chance.choice([30, 80, 160])):
            self._step()
            has_heard = self._hear()
            if chance.random() < (0.6 if has_heard else 0.03):
                self._judge_power_cut()
        self._judge(self.world.disk.copy(), keeps_promises=True)
        self._everything_ends()
        self._judge_power_cut()

    def _step(self) -> None:
        steps = (
            (35, self._client_asks),
            (10, self._operator_asks),
            (15, self._turn),
            (3, self._long_turn),
            (30, self._go_on_with_sync),
            (25 if self.operations is Operations.PURGES else 5, self._tasks),
        )
        (step,) = self.chance.choices([step for _, step in steps], [weight for weight, _ in steps])
        step()
        self._run_backlogs()

    def _client_asks(self) -> None:
        chance = self.chance
        caller = chance.choice(self.callers)
        if caller.waits_for is not None:
            return
        if caller.holds is not None:
            if chance.random() < 0.5:
                caller.asks(caller.holds._replace(ask=chance.choice([Ask.CLOSE, Ask.CLOSE, Ask.ABORT])))
            return
        (ask,) = chance.choices((Ask.PUT, Ask.GET, Ask.OPEN, Ask.PEEK), (5, 2, 2, 1))
        item = self.ledger.new_item(chance.choice([4, 4, 40])) if ask is Ask.PUT else ""
        wait = chance.choice(WAITS) if ask in (Ask.GET, Ask.OPEN) else ""
        queues = ["q", "r", "q", "r", "probe"]
        if ask is Ask.PUT and self.operations is Operations.PURGES:
            queues.append(DELETED)
        caller.asks(Request(ask, chance.choice(queues), item), wait)

    def _operator_asks(self) -> None:
        world, chance = self.world, self.chance
        undos = world.broker.undos.views(world.now_ms)
        moves = [(source, target) for source, target in MOVES if world.items(source)]
        if undos and chance.random() < 0.7:
            Admin(world).asks("POST", f"/api/undo/{chance.choice(undos).id}")
        elif self.operations is Operations.PURGES:
            self._operator_purges()
        elif moves:
            source, target = chance.choice(moves)
            Admin(world).asks("POST", f"/api/queues/{source}/move", {"to": target})
        world.turn()

    def _operator_purges(self) -> None:
        world, chance = self.world, self.chance
        if chance.random() < 0.2 and world.broker.queues.find(DELETED) is not None:
            Admin(world).asks("DELETE", f"/api/queues/{DELETED}")
        elif world.items(queue := chance.choice(PURGED)):
            Admin(world).asks("POST", f"/api/queues/{queue}/purge")

    def _turn(self) -> None:
        self.world.turn(self.chance.choice([0, 0, 1, 1, 3, 20]))

    def _long_turn(self) -> None:
        self.world.turn(self.chance.choice([100, 1000]))

    def _go_on_with_sync(self) -> None:
        """Begin a sync, have its thread run, or end it."""
        if self._sync is None:
            self.world.turn()
            self._sync, self._has_run = self.world.start_sync(), False
        elif not self._has_run:
            self._sync.run()
            self._has_run = True
        else:
            sync, self._sync = self._sync, None
            self.world.finish_sync(sync)

    def _tasks(self) -> None:
        for task in self.world.start_tasks():
            self.world.finish_task(task)
            if self.operations is Operations.PURGES:  # it has recorded what is not written before clients are heard
                self._client_asks()

    def _run_backlogs(self) -> None:
        for session in [session for session in self.world.broker.sessions if session.wants_turn]:
            session.run_backlog(self.world.now_ms)

    def _hear(self) -> bool:
        return sum(self.ledger.hear(caller) for caller in self.callers) > 0  # each of them hears

    def _everything_ends(self) -> None:
        """Let operations and waits end, with no other client that asks for a sync."""
        broker = self.world.broker
        for _ in range(TURNS_MAX):
            if not broker.operations.running and all(caller.waits_for is None for caller in self.callers):
                return
            until_ms = 0 if broker.unsettled else broker.next_ms() - self.world.now_ms
            self.world.turn(max(0, min(until_ms, 1000)))
            for _ in range(3):
                self._go_on_with_sync()
            self._tasks()
            self._run_backlogs()
            self._hear()
        raise Violation(f"never end: {broker.operations.running}, {[caller.waits_for for caller in self.callers]}")

    def _judge_power_cut(self) -> None:
        hows: list[Crash | Choose] = [Crash.DROP, Crash.DROP, Crash.KEEP, self.chance.randrange]
        disk = self.world.disk.crash(self.chance.choice(hows))
        self._judge(disk, keeps_promises="sync_journal" not in self.config)

    def _judge(self, disk: Disk, *, keeps_promises: bool) -> None:
        world = RestartedWorld(self.config, disk, self.world.now_ms + 1000)
        settles_in_time(world)
        world.turn(2000)
        settles_in_time(world)
        self.ledger.judge(found_in(world), self.callers, keeps_promises)


def settles_in_time(world: World) -> None:
    if all(goes_on(world) for _ in range(TURNS_MAX)):
        raise Violation("what a restart goes on with never ends")


def found_in(world: World) -> Counter[str]:
    """Count the items of all queues, wherever they are in them, and those that an undo would return from its file."""
    found: Counter[str] = Counter()
    for record in world.broker.undos.by_id.values():
        if not record.content.began.carries_items:
            found.update(in_file(world, record))
    for queue in world.broker.queues.all():
        queue.check()
        found.update(item.data.decode() for item in queue.line.walk())
        for entries in (queue.open_reads, queue.in_transfer, queue.delayed):
            found.update(entry.item.data.decode() for entry in entries.values())
    return found


def in_file(world: World, record: UndoRecord) -> list[str]:
    content, found = record.content, []
    for number in content.left:
        place = content.slices[number]
        items = read_items(world.disk.reader(record.path).read(place.at, place.size))
        assert items is not None
        kept = content.kept.get(number, frozenset())
        found += [item.data.decode() for at, (_, item) in enumerate(items) if at not in kept]
    return found


def tell(seed: int, operations: Operations, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tell the story of `seed`. Raises Violation."""
    chance = random.Random(seed)
    draw_limits(chance, monkeypatch)
    story = Story(chance, operations)
    try:
        story.live()
    except Violation as violation:
        raise Violation(f"seed {seed}: {violation}; configuration:\n{story.config}") from violation


def tell_all(seeds: Iterable[int], operations: Operations, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in seeds:
        tell(seed, operations, monkeypatch)


@pytest.mark.parametrize("operations", Operations)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_power_cut_beside_operations_and_undos_keeps_what_clients_were_told(
    seed: int, operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(seed, operations, monkeypatch)


@pytest.mark.pure
@pytest.mark.parametrize("operations", Operations)
def test_answers_that_do_not_hasten_what_they_rest_on_would_be_found(
    operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Log, "reply_batch", lambda self: self.batch)
    with pytest.raises(Violation, match=r"came back|lost"):
        tell_all(SEEDS_OF_THE_BROKEN_RULE, operations, monkeypatch)
