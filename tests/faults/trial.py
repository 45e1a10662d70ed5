"""One broker on the fake disk under a seeded load, until the disk fails it or the load ends; then the power is cut.

The judge is `bench/soak/ledger.py`. Everything is there that writes or syncs: puts, closes, aborts, fan-out, expiry
into another queue, dead letters, rotation, rewriting, a queue that is deleted.
"""

from __future__ import annotations

import re
from collections import deque
from random import Random

from staniel.bench.soak.ledger import Ledger, item_for
from staniel.journal.group_commit import JournalFailure
from staniel.journal.spool import SpoolError
from staniel.sim.disk.disk import Disk
from staniel.sim.disk.durable import Choose, Crash
from tests.support.world import Client, World

CONFIG = """
server.expiration_timer_frequency = "5ms"
default.max_memory_size = 600
default.default_journal_size = 300
default.max_journal_size = 2000
default.min_journal_compact_delay = "5ms"
queues.q.max_deliveries = 3
queues.q.dead_letter_queue = "dead"
queues.lax.sync_journal = "50ms"
queues.e.max_age = "15ms"
queues.e.expire_to_queue = "late"
"""
FAMILIES = (("q", "dead"), ("lax",), ("e", "late"), ("f",), ("f+c",))
PUT_INTO = {"q": ("q",), "lax": ("lax",), "e": ("e",), "f": ("f", "f+c")}
LAX = ("lax",)  # may lose its last 50 ms with the power
STEPS = 120
HEARD = re.compile(r"VALUE \S+ 0 \d+ (?P<item>\S+ \d+ [a-z]*) END|(?P<word>STORED|END|SERVER_ERROR)")


class Trial:
    """`failure` is what ended the broker, if something did. `refused` counts puts that a full disk turned away."""

    def __init__(self, seed: int, disk: Disk, config: str = CONFIG) -> None:
        self.random = Random(seed)
        self.config = config
        self.disk = disk
        self.ledgers = {family[0]: Ledger(*family) for family in FAMILIES}
        self.failure: Exception | None = None
        self.refused = 0
        self._number = 0
        self._sent: dict[str, deque[bytes]] = {queue: deque() for queue in PUT_INTO}
        self._held: dict[str, bytes] = {}
        try:
            self.world = World(config, disk)
            self._clients: dict[str, Client] = {}
            self._make_child()
            for _ in range(STEPS):
                self._step()
        except (JournalFailure, SpoolError, OSError) as error:
            self.failure = error

    def _make_child(self) -> None:
        """A fan-out's child gets a copy of all that comes once it is there."""
        client = self.world.client().says("get f+c")
        while client.hears() != "END":
            self.world.sync()
            client.says("get f+c")

    def _step(self) -> None:
        queue = self.random.choice(list(PUT_INTO))
        choice = self.random.randrange(6)
        if choice < 3:
            self._put(queue)
        elif choice < 5:
            self._read(self.random.choice(("f+c", queue)))
        elif not self.random.randrange(6):
            self._client("deleter").puts("x", "gone").says("delete gone")
        self.world.turn(self.random.randrange(4))
        if self.random.randrange(3):
            self.world.sync()
        self._hear()

    def _client(self, name: str) -> Client:
        if name not in self._clients:
            self._clients[name] = self.world.client()
        return self._clients[name]

    def _put(self, queue: str) -> None:
        key = b"%b-%d" % (queue.encode(), self._number)
        self._number += 1
        for name in PUT_INTO[queue]:
            self.ledgers[name].sent(key)
        self._sent[queue].append(key)
        self._client(f"put {queue}").puts(item_for(key, self.random.randrange(60)).decode(), queue)

    def _read(self, queue: str) -> None:
        """Open, or close or abort what is open: one request in flight at a time."""
        name = f"get {queue}"
        client = self._client(name)
        if getattr(client, "asked", ""):
            return
        held = self._held.get(queue)
        word = "open" if held is None else self.random.choice(("close", "close", "abort"))
        if held is not None:
            self.ledgers[queue].closing(held) if word == "close" else self.ledgers[queue].released(held)
        client.asked = word  # type: ignore[attr-defined]
        client.says(f"get {queue}/{word}")

    def _hear(self) -> None:
        for name, client in self._clients.items():
            kind, _, queue = name.partition(" ")
            for found in HEARD.finditer(client.hears()):
                if kind == "put":
                    self._answered(queue, found["word"])
                elif kind == "get":
                    self._told(client, queue, found["item"])

    def _answered(self, queue: str, word: str) -> None:
        key = self._sent[queue].popleft()
        assert word in ("STORED", "SERVER_ERROR"), word
        self.refused += word != "STORED"
        for name in PUT_INTO[queue]:
            self.ledgers[name].stored(key) if word == "STORED" else self.ledgers[name].refused(key)

    def _told(self, client: Client, queue: str, item: str | None) -> None:
        word, client.asked = client.asked, ""  # type: ignore[attr-defined]
        if item is not None:
            self._held[queue] = self.ledgers[queue].delivered(item.encode(), {}, client)
        elif word != "open":
            held = self._held.pop(queue)
            if word == "close":
                self.ledgers[queue].closed(held)

    def wrong_after(self, how: Crash | Choose | None) -> list[str]:
        """What is wrong with the server that is started after a power cut, or after a kill: None, which comes last."""
        again = World(self.config, self.disk.kill() if how is None else self.disk.crash(how))
        again.turn()  # reads that the crash left open are ended in the turns behind the start
        found = {queue: [*map(str.encode, _text(again, queue))] for family in FAMILIES for queue in family}
        checked = [ledger for name, ledger in self.ledgers.items() if how is None or name not in LAX]
        wrong = [line for ledger in checked for line in ledger.wrong + ledger.check(found)]
        litter = [name for name, _ in again.disk.list("s") if "~~" in name]
        return [*wrong, *(f"left over: {name}" for name in litter)]


def _text(world: World, queue: str) -> list[str]:
    return [data.decode() for data in world.items(queue)]
