"""State that a member has in every role: its disk, the key as it last knew it, its question to etcd, its effects."""

from __future__ import annotations

from collections import deque
from enum import Enum

from msgspec import Struct

from staniel.cluster.durable import Copied, Cut, Entries, Fitness, Fixed, Kept, Marked, Promised, Seen, Unsynced
from staniel.cluster.effects import Close, Closing, Effect, Persist, ReadKey, Send, Sync, Transact
from staniel.cluster.key import MISSING_REVISION, Key
from staniel.cluster.messages import Bodies, Message


class Policy(Enum):
    """Condition under which a leader's own disk has a record. A follower always syncs before it acknowledges."""

    ALWAYS = "always"  # it is synced
    LAZY = "lazy"  # it is in the page cache: the policy of some queue is a duration, or "os"


class MemberConfig(Struct, frozen=True):
    """Settings of a member. `address`: where clients reach it."""

    address: str
    min_in_sync: int = 1
    policy: Policy = Policy.ALWAYS


class AskKind(Enum):
    """Purpose of a question to etcd."""

    READ = "read"
    INIT = "init"
    STAND = "stand"
    CHANGE = "change"  # of the set, or of nothing but the revision
    HAND_OVER = "hand over"


class Ask(Struct, frozen=True):
    """A question to etcd. `revision`: the highest one seen when it was asked. `key`: what it writes, if it does."""

    number: int
    kind: AskKind
    revision: int
    key: Key | None = None


class Core:
    """Part of a member that its roles use. Syncs have numbers: `synced` is the newest that has ended. `durable`:
    records up to this number are synced here.
    """

    def __init__(self, config: MemberConfig, kept: Kept, has_items: bool, boot_id: bytes) -> None:
        self.config = config
        self.kept = kept
        self.has_items = has_items
        self.boot_id = boot_id
        self.synced = 0
        self.durable = 0
        self.key: Key | None = None
        self.revision = kept.revision
        self.asking: Ask | None = None
        self.effects: list[Effect] = []
        self._asks = 0
        self._syncs = 0
        self._unsynced: deque[tuple[int, int]] = (
            deque()
        )  # of each sync that matters: its number, the last record by then

    @property
    def id(self) -> bytes:
        return self.kept.member_id

    @property
    def last(self) -> int:
        return self.kept.stream.last.number

    def emit(self, effect: Effect) -> None:
        """Leave an effect for the driver."""
        self.effects.append(effect)

    def persist(self, *entries: Entries) -> None:
        """Take entries in and have them written."""
        for entry in entries:
            is_consistent = self.kept.apply(entry)
            assert is_consistent, f"{entry} contradicts what is kept"
        if any(isinstance(entry, Cut | Copied) for entry in entries):
            self._unsynced = deque(sync for sync in self._unsynced if sync[1] <= self.last)
            self.durable = min(self.durable, self.last)
        self.emit(Persist(entries))

    def sync(self) -> int:
        """Have everything synced that was written before. Return the number of the sync."""
        self._syncs += 1
        self._unsynced.append((self._syncs, self.last))
        self.emit(Sync(self._syncs))
        return self._syncs

    def note_synced(self, number: int) -> None:
        """Note that a sync has ended, and with it the earlier ones."""
        self.synced = max(self.synced, number)
        while self._unsynced and self._unsynced[0][0] <= self.synced:
            self.durable = max(self.durable, self._unsynced.popleft()[1])

    def promise(self, epoch: int) -> None:
        """Promise an epoch. The caller waits for the sync before it acts on it."""
        assert epoch > self.kept.promised
        self.persist(Promised(epoch))

    def fix(self, number: int) -> None:
        """Note that records up to this number get into files, whether they are answered or not."""
        if number != self.kept.fixed:
            self.persist(Fixed(number))

    def note_unsynced(self) -> None:
        """Note for a start after a power cut that replies do not wait for this leader's disk. None may leave before
        this is synced.
        """
        if self.kept.unsynced != self.boot_id:
            self.persist(Unsynced(self.boot_id))

    def mark(self, fitness: Fitness) -> None:
        """Set or remove the mark `unfit`."""
        if self.kept.fitness is not fitness:
            self.persist(Marked(fitness))

    def note_key(self, key: Key, revision: int) -> None:
        """Note what the key is."""
        self.key = key
        if revision > self.revision:
            self.revision = revision
            if self.kept.cluster_id:
                self.persist(Seen(revision))

    def read_key(self) -> None:
        """Ask etcd for the key, unless a question is open."""
        if self.asking is None:
            self._asks += 1
            self.asking = Ask(self._asks, AskKind.READ, self.revision)
            self.emit(ReadKey(self._asks))

    def transact(self, kind: AskKind, key: Key) -> None:
        """Ask etcd to write the key if it is as this member knows it."""
        assert self.asking is None
        self._asks += 1
        self.asking = Ask(self._asks, kind, self.revision, key)
        self.emit(Transact(self._asks, self.revision if self.key else MISSING_REVISION, key))

    def take_ask(self, number: int) -> Ask | None:
        """Return the question that this answers and close it, or None for an answer that comes too late."""
        ask = self.asking
        if ask is None or ask.number != number:
            return None
        self.asking = None
        return ask

    def send(self, connection: int, body: Bodies) -> None:
        """Send a message with the promised epoch."""
        self.emit(Send(connection, Message(self.kept.cluster_id, self.id, self.kept.promised, body)))

    def close(self, connection: int, why: Closing) -> None:
        """Close a connection."""
        self.emit(Close(connection, why))
