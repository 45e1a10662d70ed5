"""A broker on the fake disk with a clock that is stepped and clients without sockets: `says` what they send, `hears`
what has reached them.

A turn is the hub's: execute, tick, settle, commit, hand out what may leave. Syncs run only when a test says so.
"""

from __future__ import annotations

from collections import deque

from broker import wires
from broker.broker import Broker
from broker.config import parse
from broker.report import Level
from broker.session import SessionState
from journal.group import Sync
from protocol.dialect import Dialect
from protocol.limits import Limits
from sim.disk import Disk
from sim.nodes import Choose, Crash

START_MS = 1_700_000_000_000


class World:
    """One spool, `s`. `config` is TOML without the spool."""

    def __init__(self, config: str = "", disk: Disk | None = None, now_ms: int = START_MS) -> None:
        if disk is None:
            disk = Disk()
            disk.make_folder("s")
            disk.sync_folder("")
        self.config = config
        self.disk = disk
        self.now_ms = now_ms
        self.events: list[str] = []
        self.clients: list[Client] = []
        self.broker = Broker(parse(f'server.spool = "s"\n{config}'.encode(), ""), disk, self._report)
        self.summary = self.broker.recover(now_ms)

    def client(self, dialect: Dialect = Dialect.MEMCACHED) -> Client:
        client = Client(self, dialect)
        self.clients.append(client)
        return client

    def turn(self, ms: int = 0) -> None:
        """What the hub does between two polls, `ms` after the one before."""
        self.now_ms += ms
        broker = self.broker
        for client in self.clients:
            if client.session.wants_turn:
                client.session.go_on(self.now_ms)
        broker.tick(self.now_ms)
        broker.settle(self.now_ms)
        broker.commit(self.now_ms)
        self.collect()

    def collect(self) -> None:
        for client in self.clients:
            client.collect(self.broker.group.durable)

    def start_sync(self) -> Sync | None:
        return self.broker.start_sync(self.now_ms)

    def finish_sync(self, sync: Sync) -> None:
        self.broker.finish_sync(sync, self.now_ms)
        self.collect()

    def sync(self) -> bool:
        """Run a sync; whether one was due."""
        sync = self.start_sync()
        if sync is not None:
            sync.run()
            self.finish_sync(sync)
        return sync is not None

    def crash(self, how: Crash | Choose) -> World:
        """The server started again after power loss."""
        return World(self.config, self.disk.crash(how), self.now_ms + 1000)

    def items(self, name: str = "q") -> list[bytes]:
        queue = self.broker.queues.find(name)
        return [item.data for item in queue.line.items()] if queue is not None else []

    def _report(self, level: Level, event: str, /, **fields: object) -> None:
        self.events.append(event)


class Client:
    """One connection."""

    def __init__(self, world: World, dialect: Dialect = Dialect.MEMCACHED) -> None:
        self.world = world
        wire = wires.memcache(dialect)
        self.session = world.broker.connect(wire)
        self.parser = wire.parser(Limits())
        self._held: deque[tuple[int, bytes]] = deque()
        self._heard = b""

    def says(self, *lines: str) -> Client:
        """Send lines, and let the server have a turn."""
        self.session.execute(self.parser.feed("".join(f"{line}\r\n" for line in lines).encode()), self.world.now_ms)
        self.world.turn()
        return self

    def puts(self, data: str, queue: str = "q") -> Client:
        return self.says(f"set {queue} 0 0 {len(data)}", data)

    def hears(self) -> str:
        """What has arrived since the last time, with line ends as spaces."""
        heard, self._heard = self._heard, b""
        return heard.decode().replace("\r\n", " ").strip()

    def hangs_up(self) -> None:
        self.session.close(self.world.now_ms)
        self.world.turn()

    @property
    def is_cut_off(self) -> bool:
        return self.session.state is SessionState.CLOSING

    def collect(self, durable: int) -> None:
        if self.session.out:
            self._held.append((self.session.batch, b"".join(self.session.out)))
            self.session.fetched()
        while self._held and self._held[0][0] <= durable:
            self._heard += self._held.popleft()[1]
