"""A broker on the simulated disk, with a stepped clock and clients without sockets.

`says` is what a client sends, `hears` what has reached it. A turn is the hub's: execute, tick, settle, commit, release
replies. Syncs and tasks run only when a test says so, so that batches overlap in every way that threads could produce.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

from staniel.broker import protocols
from staniel.broker.broker import Broker
from staniel.broker.config.load import Config, parse
from staniel.broker.events import Level
from staniel.broker.operations.audit import Requester
from staniel.broker.operations.resumption import begin_undo
from staniel.broker.session import ProtocolSpec, SessionState
from staniel.broker.status import ServerStatus
from staniel.broker.wall_clock import ClockReading
from staniel.journal.group_commit import JournalFailure, Sync
from staniel.journal.redo.log import RedoLog
from staniel.protocol.limits import Limits
from staniel.protocol.memcache.requests import Dialect
from staniel.queues.item import is_remnant
from staniel.queues.queue import Queue
from staniel.sim.disk.disk import Disk
from staniel.sim.disk.durable import Choose, Crash
from staniel.sim.queues.model import SWEPT
from staniel.sim.queues.workload import journals_kept

START_MS = 1_700_000_000_000
LONG_AGO_MS = START_MS - 10 * 86_400_000
DRAIN_TURNS_MAX = 100_000
AUDIT_LOG = "admin.audit_log"
REDO_LOG = "server.redo_log"


@lru_cache(maxsize=64)
def config_of(text: str) -> Config:
    """Return the configuration of a spool `s`. `text` is TOML without the spool. There is no audit log and no redo log
    unless `text` asks for one: both write to the disk, and accidents count writes.
    """
    quiet = "".join(f'{key} = "none"\n' for key in (AUDIT_LOG, REDO_LOG) if key not in text)
    return parse(f'server.spool = "s"\n{quiet}{text}'.encode(), "")


class World:
    """A served spool, `s`. `config` is TOML without the spool; after a change, a reload applies it. `ready` is called
    with the broker once it has recovered.
    """

    def __init__(
        self,
        config: str = "",
        disk: Disk | None = None,
        now_ms: int = START_MS,
        ready: Callable[[Broker], None] | None = None,
        read_clocks: Callable[[], ClockReading] | None = None,
    ) -> None:
        if disk is None:
            disk = Disk()
            disk.make_folder("s")
            disk.sync_folder("")
        self.config = config
        self.disk = disk
        self.now_ms = now_ms
        self.events: list[str] = []
        self._details: list[tuple[str, dict[str, object]]] = []
        self.clients: list[Client] = []
        self.broker = Broker(config_of(config), disk, self._report, lambda: config_of(self.config))
        self.running: dict[Any, bool] = {}  # running tasks, and whether the work of each is done
        upkeep = getattr(self.broker, "maintenance", None)
        if upkeep is not None:
            upkeep.tasks.wait_for = self.run_task
        self.running_sync: Callable[[Sync], None] = lambda sync: None
        """Run a sync that the broker has started, if it has not run yet."""
        self.broker.group.wait_for = lambda sync: self.running_sync(sync)
        disk.vouched = lambda: ()
        if read_clocks is not None:
            self.broker.wall.read_notes(read_clocks, now_ms)
        self.summary = self.broker.recover(now_ms)
        disk.vouched = partial(vouched_for, self.broker.group.redo)
        if ready is not None:
            ready(self.broker)

    def client(self, dialect: Dialect = Dialect.MEMCACHED) -> Client:
        client = Client(self, protocols.memcache(dialect))
        self.clients.append(client)
        return client

    def turn(self, ms: int = 0) -> None:
        """Do what the hub does between two polls, `ms` after the one before."""
        self.now_ms += ms
        broker = self.broker
        for client in self.clients:
            if client.session.wants_turn:
                client.session.run_backlog(self.now_ms)
                client.ran()
        broker.tick(self.now_ms)
        for client in self.clients:
            client.ran()
        broker.resume_woken(self.now_ms)
        for client in self.clients:
            client.ran()
        broker.commit(self.now_ms)
        self.collect()

    def collect(self) -> None:
        for client in self.clients:
            client.collect(self.broker.group.durable)

    def start_sync(self) -> Sync | None:
        return self.broker.group.start_sync(self.now_ms)

    def finish_sync(self, sync: Sync) -> None:
        self.broker.group.finish_sync(sync, self.now_ms)
        for client in self.clients:
            client.release(self.broker.group.durable)

    def sync(self) -> bool:
        """Run a sync, also for patient callers. Return whether one was due."""
        self.broker.group.include_patient()
        sync = self.start_sync()
        if sync is not None:
            sync.run()
            self.finish_sync(sync)
        return sync is not None

    def start_tasks(self) -> list[Any]:
        """Return the tasks for threads that the broker starts in addition to syncs."""
        tasks = self.broker.maintenance.tasks.start()
        self.running.update(dict.fromkeys(tasks, False))
        return tasks

    def run_task(self, task: Any) -> None:
        """Run a task as its thread does, unless it has run already."""
        if self.running.get(task) is False:
            self.running[task] = True
            task.run()

    def finish_task(self, task: Any) -> None:
        """Tell the broker that the thread is done, unless the broker has already waited for it."""
        self.run_task(task)
        del self.running[task]
        self.broker.finish_task(task, self.now_ms)

    def do_tasks(self) -> None:
        """Run tasks until there are none."""
        while tasks := self.start_tasks():
            for task in tasks:
                self.finish_task(task)

    def crash(self, how: Crash | Choose) -> World:
        """Return the server, started again after power loss."""
        return World(self.config, self.disk.crash(how), self.now_ms + 1000)

    def items(self, name: str = "q") -> list[bytes]:
        queue = self.broker.queues.find(name)
        return [item.data for item in queue.line.items()] if queue is not None else []

    def _report(self, level: Level, event: str, /, **fields: object) -> None:
        assert event != "request.failed", fields  # a defect of the server, which would write a line to its log
        self.events.append(event)
        self._details.append((event, fields))

    def reported(self, event: str) -> list[dict[str, object]]:
        """Return the fields of each report of `event`, without the hint."""
        reports = [fields for name, fields in self._details if name == event]
        return [{name: value for name, value in fields.items() if name != "hint"} for fields in reports]


class Client:
    """A client's connection without a socket."""

    def __init__(self, world: World, protocol: ProtocolSpec, address: str = "") -> None:
        self.world = world
        self.session = world.broker.connect(protocol, address)
        self.parser = protocol.parser(Limits())
        self._held: deque[tuple[int, bytes]] = deque()
        self._heard = b""

    def sends(self, data: bytes) -> None:
        """Send bytes to the server, which executes them at once, without ending a turn."""
        world = self.world
        self.session.execute(self.parser.feed(data), world.now_ms)
        self.ran()
        group = world.broker.group
        if group.pending_bytes > group.commit_above_bytes:
            world.broker.commit(world.now_ms)

    def says(self, *lines: str) -> Client:
        """Send lines, and give the server a turn."""
        self.sends("".join(f"{line}\r\n" for line in lines).encode())
        self.world.turn()
        return self

    def puts(self, data: str, queue: str = "q") -> Client:
        return self.says(f"set {queue} 0 0 {len(data)}", data)

    def hears(self) -> str:
        """Return what has arrived since the last call, with line ends as spaces."""
        heard, self._heard = self._heard, b""
        return heard.decode().replace("\r\n", " ").strip()

    def hangs_up(self) -> None:
        self.session.close(self.world.now_ms)
        self.world.turn()

    @property
    def is_cut_off(self) -> bool:
        return self.session.state is SessionState.CLOSING

    def ran(self) -> None:
        """Note that the session has run, and may have made replies."""

    def collect(self, durable: int) -> None:
        if self.session.out:
            self._held.append((self.session.batch, b"".join(self.session.out)))
            self.world.broker.unsent.pop(self.session)
            self.session.clear_out()
        self.release(durable)

    def release(self, durable: int) -> None:
        """Deliver the replies that waited for batch `durable`. Replies that were not collected before wait for their
        turn.
        """
        while self._held and self._held[0][0] <= durable:
            self._heard += self._held.popleft()[1]


class Thread:
    """A running sync or task of the broker. `work` is what its thread does."""

    def __init__(self, task: Any, work: Callable[[], None], began_ms: int) -> None:
        self.task = task
        self.work = work
        self.began_ms = began_ms
        self.has_run = False
        self.failure: Exception | None = None

    def run(self) -> None:
        self.has_run = True
        try:
            self.work()
        except (JournalFailure, OSError) as failure:
            self.failure = failure


def vouched_for(redo: RedoLog) -> set[str]:
    """Return the files whose whole bytes are known from the redo log, as it is on the disk."""
    if not redo.is_in_use:
        return set()
    return {path for path, binding in redo.bindings.items() if binding.bound_flush <= redo.durable_flush}


def content(
    disk: Disk, memory_queues: Sequence[str] = (), families: Sequence[str] = (), now_ms: int = LONG_AGO_MS
) -> dict[str, list[bytes]]:
    """Return what a server that starts on a copy of `disk` would deliver, by queue, in order. Empty queues are left
    out, and the remnant of an expired item is SWEPT. Purges that can be undone are undone first.

    The server is asked as by a client. Its clock is ten days behind, or `now_ms`, so that nothing expires during the
    check, and it has no limits. `memory_queues` keep no journal, even if the rest of their `families` does.
    """
    text = "\n".join(
        [
            'default.sync_journal = "os"',
            'server.redo_log = "none"',
            # Remnants may be dropped at any time: turns that end operations would drop those at the head, uncounted.
            'server.expiration_timer_frequency = "none"',
            *journals_kept(memory_queues, families),
        ]
    )
    copy = disk.copy()
    copy.capacity_bytes = 1 << 40
    world = World(text, copy, now_ms)
    world.broker.set_status(ServerStatus.UP, world.now_ms)
    for queue in world.broker.queues:
        queue.pause(gets=False, puts=False)
    _undo_all(world)
    return {queue.name: items for queue in list(world.broker.queues) if (items := _drained(world, queue))}


class Contents:
    """The results of `content` for many disks. Disks with the same bytes share one start, because the result depends
    only on them.
    """

    def __init__(self) -> None:
        self._known: dict[Any, dict[str, list[bytes]]] = {}

    def of(
        self,
        disk: Disk,
        memory_queues: Sequence[str] = (),
        families: Sequence[str] = (),
        now_ms: int = LONG_AGO_MS,
    ) -> dict[str, list[bytes]]:
        key = disk.digest(), tuple(memory_queues), tuple(families), now_ms
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = content(disk, memory_queues, families, now_ms)
        return {name: [*items] for name, items in known.items()}


def _undo_all(world: World) -> None:
    broker, by = world.broker, Requester("", "admin")
    for operation in list(broker.operations.running.values()):
        operation.cancel()  # judge what the crash has left, not what recovery continues
    end_operations(world)
    for record in [undo for undo in broker.undos.by_id.values() if undo.content.began.is_kept]:
        begin_undo(broker.operations, by, record, world.now_ms)
        end_operations(world)


def end_operations(world: World) -> None:
    """Continue the operations that a crash has cut off, until they end."""
    while world.broker.operations.running:
        world.now_ms += 1
        world.do_tasks()
        world.turn()
        world.sync()


def _drained(world: World, queue: Queue) -> list[bytes]:
    items: list[bytes] = []
    now_ms = world.now_ms
    for _ in range(DRAIN_TURNS_MAX):
        while (head := queue.line.head()) is not None and is_remnant(head):
            queue.drop_head()
            items.append(SWEPT)
        taken = queue.remove_head(now_ms)
        if taken is None and queue.resting:  # by a clock that is behind, nothing is due
            items += [delivery.item.data for delivery in queue.resting.values()]
            queue.drop_resting(len(queue.resting))
        elif taken is None:
            if not len(queue.line):
                return items
            world.do_tasks()
            world.turn()
        else:
            items.append(taken.item.data)
    raise AssertionError(f"queue {queue.name} can never be emptied")
