"""A history of queues: its clients, its checker and its promises take part in the steps of history.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from staniel.broker import protocols
from staniel.broker.broker import Broker
from staniel.journal.kestrel import files as kestrel_files
from staniel.journal.kestrel.log import Log
from staniel.protocol.memcache.requests import Dialect
from staniel.sim.actor import QueueActor
from staniel.sim.disk.disk import Disk
from staniel.sim.history import UNABLE, History, SeedPlan
from staniel.sim.queues.checker import Checker, Put
from staniel.sim.queues.conversation import Request, Want
from staniel.sim.queues.model import SWEPT, QueueModel, Record
from staniel.sim.queues.pasts import StatedPasts
from staniel.sim.queues.promises import Accident, check, committed, synced
from staniel.sim.queues.recorder import watch
from staniel.sim.queues.workload import Workload
from staniel.sim.violations import Kind, Violation, shown
from staniel.sim.world import LONG_AGO_MS

Found = dict[str, list[bytes]]
Bases = dict[str, list[Record]]


class Aliases(Mapping[str, tuple[str, ...]]):
    """The present aliases of a server. A reload changes them."""

    def __init__(self, broker: Broker) -> None:
        self._queues = broker.queues

    def __getitem__(self, name: str) -> tuple[str, ...]:
        return self._queues.aliases[name].targets

    def __iter__(self) -> Iterator[str]:
        return iter(self._queues.aliases)

    def __len__(self) -> int:
        return len(self._queues.aliases)


class QueueRun(History):
    """A seed of a profile that has queues."""

    def __init__(self, seed_plan: SeedPlan) -> None:
        super().__init__(seed_plan)
        self.workload = Workload(self.rng, self.profile)
        self.config = self.workload.config(self.rng)
        self.models: dict[str, QueueModel] = {}
        self.puts: dict[bytes, Put] = {}
        self.pasts: StatedPasts = {}

    def begin_life(self) -> None:
        self.checker = Checker(self.models, self.puts)
        self.checker.pasts = self.pasts
        self.checker.counts_deliveries = self.profile.deliveries
        self.clock(self.now_ms)  # the power may be cut before the server is there

    def watch(self, broker: Broker) -> None:
        watch(broker, self.checker)
        if self.profile.few_files:
            broker.group.open_files.allow(self.rng.choice(self.profile.few_files))
        for operation in broker.operations.running.values():
            self.checker.goes_on(operation.queue_name, operation.target)
        self.checker.aliases = Aliases(broker)
        self.clock(self.now_ms)

    def make_request(self) -> None:
        rng = self.rng
        few = len(self.actors_there) < self.profile.clients
        if not self.actors_there or (few and rng.random() < 0.4):
            self._connect()
        actor = rng.choice(self.actors_there)
        wall_ms = self.world.now_ms if self.clocks is None else self.clocks.wall_ms
        requests = self.workload.next_requests(rng, actor.is_text, wall_ms)
        if any(request.line.startswith(b"reload") for request in requests):
            self.config = self.workload.config(rng)
            self.world.config = self.workload.absurd(rng) + self.config
        at_work = self._in_installation() if self.profile.half_packs else []
        if at_work and rng.random() < 0.5:
            name = rng.choice(at_work)
            end = b"\n" if actor.is_text else b"\r\n"
            requests = [Request(Want.DELETE, name, b"delete %b%b" % (name.encode(), end))]
        actor.send_requests(requests)

    def _in_installation(self) -> list[str]:
        """Return the queues whose packs a thread puts in place now, or has just put in place."""
        is_at_work = self.world.broker.maintenance.packs.is_at_work
        logs = [queue.journal for queue in self.world.broker.queues if isinstance(queue.journal, Log)]
        return [log.name for log in logs if is_at_work(log)]

    def _connect(self) -> None:
        is_text = self.rng.random() < 0.2
        self.actors += 1
        protocol = protocols.text(Dialect.MEMCACHED) if is_text else protocols.memcache(Dialect.MEMCACHED)
        name = f"{'t' if is_text else 'c'}{self.actors}"
        actor = QueueActor(self.world, protocol, self.checker, name, is_text)
        self.enter(actor)
        self.checker.clients.append(actor)

    def gone(self, actor: Any) -> None:
        self.checker.clients.remove(actor)

    def clock(self, now_ms: int) -> None:
        self.checker.clocks = self.clocks
        self.checker.now_ms = now_ms if self.clocks is None else self.clocks.passed_ms

    def wall_stepped(self) -> None:
        """Adapt dates to a step of the wall clock: they become earlier, or later."""
        assert self.clocks is not None
        for model in self.models.values():
            for record in model.records():
                if record.date_ms:
                    record.is_doubtful |= record.expires_ms < self.clocks.passed_ms
                    record.expires_ms = record.date_ms - self.clocks.wall_ms + self.clocks.passed_ms

    def settled(self) -> None:
        self.checker.check_turn()
        for model in self.models.values():
            committed(model, self.world.now_ms)

    def synced(self, began_ms: int) -> None:
        for model in self.models.values():
            synced(model, began_ms)

    def promise_all(self) -> None:
        for model in self.models.values():
            model.promised_after_kill = model.promised_after_power_loss = len(model.facts)

    def end_life(self) -> tuple[list[tuple[str, str, str]], int, int]:
        return self.checker.transcript, self.checker.facts, self.checker.answers

    def content_of(self, disk: Disk) -> Found:
        try:
            families = self.profile.families if self.profile.mixed else ()
            # Earlier than any expiry, even one before the epoch.
            return self.contents.of(
                disk,
                self.workload.memory_queues,
                families,
                0 if self.profile.ranges or self.profile.wall_steps else LONG_AGO_MS,
            )
        except (*UNABLE, AssertionError) as failure:
            raise Violation(Kind.NO_START, f"a server on a copy of the disk: {failure!r}") from failure

    def look_at_harmed(self, disk: Disk) -> None:
        """Check a disk on which some of the newest files of each queue are empty, as a file system may leave them, and
        no sidecar shows that.
        """
        for name, _ in disk.list("s/.staniel/segments") if ("segments", False) in disk.list("s/.staniel") else []:
            disk.remove(f"s/.staniel/segments/{name}")
        for names in kestrel_files.sort_out(disk.list("s"))[0].values():
            newest = [*names.archives_in_order(), *([names.queue] if names.current else [])]
            for name in newest[max(1, len(newest) - self.rng.randrange(1, 9)) :]:
                disk.truncate(f"s/{name}", 0)
        for queue, items in self.content_of(disk).items():
            for data in items:
                if data != SWEPT and data not in self.puts:
                    raise Violation(Kind.INVENTED, f"{queue} has {shown(data)} when its newest files are lost")

    def judge(self, content: Found, accident: Accident) -> Bases:
        return check(self.models, content, accident, sync_failed=self.sync_failed, now_ms=self.checker.now_ms)

    def go_on_from(self, judged: Bases) -> None:
        for name, records in judged.items():
            before = self.models[name].records() if name in self.models else []
            ends = {record.data: record.expires_ms for record in before if record.expires_ms}
            for record in records:
                # It may also be the copy that came back from a queue with max_age.
                record.is_doubtful |= ends.get(record.data, record.expires_ms) != record.expires_ms
        self.models = {name: QueueModel(name, records) for name, records in judged.items()}
        for records in judged.values():
            for record in records:
                record.moved_to = None
