"""A broker without a server: recovered from a spool on the real disk, asked by requests, stopped, in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from staniel.broker import protocols
from staniel.broker.broker import Broker
from staniel.broker.config.load import parse
from staniel.broker.events import Level
from staniel.journal.disk.os_fs import OsFs
from staniel.protocol.limits import Limits
from staniel.protocol.memcache.requests import Dialect
from tests.conformance.server import toml

NOW_MS = 1_800_000_000_000  # 2027: between the cases' past (2001) and their future (2033)
DISK_BYTES = 1 << 20


class Damage(NamedTuple):
    """What the broker said of one file: readable up to `at`; what was cut off lies in `saved_as`, if that is a path."""

    file: str
    at: int
    saved_as: str


class Disk(OsFs):
    """The real disk, said to be small, so that the ballast takes no time."""

    def free_bytes(self, folder: str) -> tuple[int, int]:
        return DISK_BYTES, DISK_BYTES


class Recovered:
    """A spool in service."""

    def __init__(self, spool: Path, config: Mapping[str, Any], now_ms: int) -> None:
        self.now_ms = now_ms
        self.damages: list[Damage] = []
        self.foreign: list[str] = []
        self.disk = Disk()
        self.broker = Broker(parse(toml(config, str(spool)).encode(), "/"), self.disk, self._hear)
        self.broker.recover(now_ms)
        wire = protocols.memcache(Dialect.KESTREL)
        self._session = self.broker.connect(wire)
        self._parser = wire.parser(Limits(1 << 14, 1 << 30))

    def asks(self, line: str) -> bytes:
        """Everything that one client hears in answer, once it is committed."""
        self._session.execute(self._parser.feed(line.encode("latin-1") + b"\r\n"), self.now_ms)
        while self._session.wants_turn:
            self._session.run_backlog(self.now_ms)
        self.broker.resume_woken(self.now_ms)
        self.broker.commit(self.now_ms)
        reply = b"".join(self._session.out)
        self._session.clear_out()
        return reply

    def drain(self, queue: str) -> list[str]:
        """What GETs deliver until the queue is empty, as latin-1."""
        return list(iter(lambda: item_of(self.asks(f"get {queue}")), None))

    def queues(self) -> list[str]:
        """The names that `stats` tells."""
        lines = self.asks("stats").decode("latin-1").splitlines()
        names = [line.split()[1] for line in lines if line.startswith("STAT queue_")]
        return sorted(name.removeprefix("queue_").removesuffix("_items") for name in names if _is_a_queues_first(name))

    def in_memory(self, queue: str) -> tuple[list[str], int]:
        """(every item that is ready, expired ones too; how many reads are open)."""
        found = self.broker.queues.find(queue)
        if found is None:
            return [], 0
        return [item.data.decode("latin-1") for item in found.line.items()], len(found.open_reads)

    def stop(self) -> None:
        self.broker.shutdown(self.now_ms)
        self.disk.close()

    def _hear(self, level: Level, event: str, /, **fields: object) -> None:
        if event in ("journal.damaged", "journal.torn"):
            at = fields["at"]
            assert isinstance(at, int)
            self.damages.append(Damage(str(fields["file"]), at, str(fields["saved_as"])))
        elif event == "spool.foreign":
            self.foreign.append(str(fields["file"]))


@contextmanager
def recovered(spool: Path, config: Mapping[str, Any], now_ms: int = NOW_MS) -> Iterator[Recovered]:
    found = Recovered(spool, config, now_ms)
    try:
        yield found
    finally:
        found.stop()


def item_of(reply: bytes) -> str | None:
    """The data of a get's reply, None for a miss."""
    if reply == b"END\r\n":
        return None
    head, _, rest = reply.partition(b"\r\n")
    length = int(head.split()[3])
    assert head.startswith(b"VALUE ") and rest[length:] == b"\r\nEND\r\n", reply
    return rest[:length].decode("latin-1")


def _is_a_queues_first(name: str) -> bool:
    others = ("total_items", "expired_items", "mem_items", "delayed_items")
    return name.endswith("_items") and not name.endswith(tuple(f"_{other}" for other in others))
