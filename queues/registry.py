"""All queues of a server by name: created on demand, found, removed; also fan-out children, aliases, and names that are
not served. A factory makes the journals of new queues.

Each kind of caller has its own method to get a queue: `make_for_client` for a put of a client, `to_read` for a read,
`find` for an operator, `known` for recovery and reload, which also need queues that an alias hides, and `make` for the
server itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from msgspec import Struct

from staniel.queues.calendar import EVEN, Calendar
from staniel.queues.config import UNLIMITED_ITEMS, QueueConfig
from staniel.queues.interfaces import Journal, NoJournal, Timer, TransferSink
from staniel.queues.names import name_error, parent_of
from staniel.queues.placeholder import PlaceholderQueue, WaitersByName
from staniel.queues.queue import Queue
from staniel.queues.stream.queue import StreamQueue, queue_of
from staniel.queues.time_outs import EndedReads

ABSENT_MAX = 1000


class QueueRefused(Exception):
    """The error for a queue that cannot be created or served. `client`: True if the mistake is the client's. The text
    is for the client.
    """

    def __init__(self, why: str, client: bool) -> None:
        super().__init__(why)
        self.why = why
        self.client = client


class TryNextTurn(Exception):
    """The refusal to create another queue in this turn, because clients have created as many as one turn has time for.
    Try again in the next turn.
    """


class TryLater(TryNextTurn):
    """The refusal to create a queue while the deletion of its predecessor ends, which waits for the disk or a timer.
    Try again in some milliseconds: not in each turn, which would keep the processor busy until then.
    """


class Alias(Struct, gc=False):
    """A name whose items go to other queues. `targets` may be aliases; the configuration has no cycles."""

    targets: tuple[str, ...]
    put_items: int = 0
    put_bytes: int = 0


class Target(Struct, frozen=True):
    """A queue that an item goes to. `counts`: its result is the client's (a fan-out child's is not, in Kestrel).
    `stores`: False if it only feeds its fan-out children, and accepts any item that is not too large.
    """

    queue: Queue
    counts: bool
    stores: bool = True


class Queues:
    """Queues by name. `config_of` resolves settings, `journal_of` makes a new queue's journal and may raise OSError or
    QueueRefused.
    """

    def __init__(
        self, config_of: Callable[[str], QueueConfig], journal_of: Callable[[str, QueueConfig, int], Journal]
    ) -> None:
        self.config_of = config_of
        self._journal_of = journal_of
        self.by_name: dict[str, Queue] = {}
        self.aliases: dict[str, Alias] = {}
        self.blocked: dict[str, str] = {}
        self.unreadable: set[str] = set()  # of the blocked ones, those whose files a reload tries to read again
        self.transfer_sink: TransferSink[Queue] | None = None  # of every queue created from now on
        self.timer: Timer | None = None
        self.calendar: Calendar = EVEN  # of every queue
        self.on_adopt: Callable[[Queue], None] = lambda queue: None  # called for every queue before it gets items
        self.on_read_error: Callable[[Queue], None] = lambda queue: None  # called for one whose journal cannot be read
        self.on_timed_out: Callable[[Queue, EndedReads, int], None] = lambda queue, reads, now_ms: None
        # Called with a limit's name, and the name of the queue that was not created because of it.
        self.on_limit: Callable[[str, str, int], None] = lambda limit, name, now_ms: None
        self.created = 0
        self.deleted = 0
        self.expired = 0
        self.hidden_by_alias: dict[str, Queue] = {}
        self.erased: dict[str, int] = {}
        """Deleted queues, and the batch until which a power cut may bring them back."""
        self._children: dict[str, dict[str, Queue]] = {}
        self.waiters_by_name = WaitersByName()
        # Of a name that a deleted queue had: whether that deletion is ending, and why no other queue may have it yet.
        self.is_ending: Callable[[str], bool] = lambda name: False
        self.end_deletions: Callable[[str], str] = lambda name: ""
        self._absent: dict[int, PlaceholderQueue] = {}  # by the id of their settings
        self.max_queues = self.max_children = UNLIMITED_ITEMS  # that clients may create: in all, and of one parent
        self.allowance = UNLIMITED_ITEMS  # how many clients may still create in this turn

    def __len__(self) -> int:
        return len(self.by_name)

    def __iter__(self) -> Iterator[Queue]:
        return iter(self.by_name.values())

    def all(self) -> list[Queue]:
        """Return all queues, including those that an alias hides."""
        return [*self.by_name.values(), *self.hidden_by_alias.values()]

    def find(self, name: str) -> Queue | None:
        """Return the queue, if there is one of that name and no alias hides it."""
        return self.by_name.get(name)

    def known(self, name: str) -> Queue | None:
        """Return the queue of that name, even if an alias hides it."""
        return self.by_name.get(name) or self.hidden_by_alias.get(name)

    def make(self, name: str, now_ms: int) -> Queue:
        """Return the queue; create it if there is none. Raises QueueRefused."""
        queue = self.by_name.get(name)
        if queue is None:
            self._check_name(name)
            queue = self._create(name, now_ms)
        return queue

    def make_to_take(self, name: str, now_ms: int) -> Queue:
        """Return the queue as `make` does, ready to take items itself even if it only feeds its children. Raises
        QueueRefused.
        """
        queue = self.make(name, now_ms)
        self.begin_to_take(queue, now_ms)
        return queue

    def make_for_client(self, name: str, now_ms: int) -> Queue:
        """Return the queue as `make` does, within the limits for clients. Raises QueueRefused and TryNextTurn; nothing
        has been done then.
        """
        queue = self.by_name.get(name)
        if queue is not None:
            return queue
        self._check_name(name)
        if self.is_ending(name):
            raise TryLater
        if self.allowance <= 0:
            raise TryNextTurn
        if len(self.by_name) >= self.max_queues:
            self.on_limit("max_queues", name, now_ms)
            raise QueueRefused(f"there are {len(self.by_name)} queues, no more can be made (max_queues)", client=False)
        parent = parent_of(name)
        count = len(self._children.get(parent, ())) if parent else 0
        if count >= self.max_children:
            self.on_limit("max_fanout_children", name, now_ms)
            why = f"{parent} has {count} fan-out children, no more can be made (max_fanout_children)"
            raise QueueRefused(why, client=False)
        self.allowance -= 1
        return self._create(name, now_ms)

    def to_read(self, name: str, now_ms: int, *, creates: bool) -> Queue:
        """Return the queue to read from. A queue that does not exist reads as an empty one. But a fan-out child is
        created, because it gets its parent's items from then on, and with `creates` so is any queue. Raises
        QueueRefused and TryNextTurn.
        """
        queue = self.by_name.get(name)
        if queue is not None:
            return queue
        if creates or parent_of(name):
            return self.make_for_client(name, now_ms)
        self._check_name(name)
        return self._absent_queue(name)

    def _absent_queue(self, name: str) -> PlaceholderQueue:
        config = self.config_of(name)
        absent = self._absent.get(id(config))
        if absent is None or absent.config is not config:
            if len(self._absent) >= ABSENT_MAX:
                self._absent.clear()  # a reload has made other settings
            absent = self._absent[id(config)] = PlaceholderQueue(config, self.waiters_by_name)
        absent.name = name
        absent.journal.batch = self.erased.get(name, 0)  # type: ignore[misc]
        return absent

    def adopt(self, name: str, journal: Journal, now_ms: int) -> Queue:
        """Register a queue from the spool before its items are loaded."""
        return self._enter(queue_of(name, self.config_of(name), journal, now_ms))

    def block(self, name: str, why: str) -> None:
        """Refuse to serve `name` from now on. Its files cannot be read, and writing to them would make their contents
        unusable.
        """
        self.blocked[name] = why
        self.waiters_by_name.dismiss(name)

    def why_blocked(self, name: str) -> str:
        """Return why queue `name` is not served although it has files; "" if it is served, or does not exist."""
        if name not in self.blocked or name in self.aliases:
            return ""
        return f"queue {name} is not available: {self.blocked[name]}"

    def withdraw(self, queue: Queue, why: str) -> None:
        """Stop serving `queue`, and serve no other queue under its name. Its files stay."""
        self.remove(queue)
        self.deleted -= 1
        self.block(queue.name, why)

    def remove(self, queue: Queue) -> None:
        """Stop serving a queue, even if an alias hides it, and forget it. The caller erases its journal."""
        queue.close()
        for queues in (self.by_name, self.hidden_by_alias, self._children.get(parent_of(queue.name), {})):
            if queues.get(queue.name) is queue:
                del queues[queue.name]
        for name in (queue.name, parent_of(queue.name)):
            # A parent and its children find each other through these entries, which stay while one of them exists.
            if name in self._children and not self._children[name] and self.known(name) is None:
                del self._children[name]
        parent = self.by_name.get(parent_of(queue.name))
        if isinstance(parent, StreamQueue):
            parent.regroup()
        self.deleted += 1

    def set_aliases(self, aliases: dict[str, tuple[str, ...]]) -> None:
        """Replace all aliases by these. An alias hides a queue of its name; the queue keeps its items."""
        for name, queue in self.hidden_by_alias.items():
            if name not in aliases:
                self.by_name[name] = queue
                self._feed(queue)
                queue.hide(False)
        self.hidden_by_alias = {name: queue for name, queue in self.hidden_by_alias.items() if name in aliases}
        for name in aliases:
            self.waiters_by_name.dismiss(name)
            if name in self.by_name:
                self.hidden_by_alias[name] = queue = self.by_name.pop(name)
                self._children.get(parent_of(name), {}).pop(name, None)
                queue.hide(True)
        kept = self.aliases
        self.aliases = {name: kept.get(name, Alias(targets)) for name, targets in aliases.items()}
        for name, targets in aliases.items():
            self.aliases[name].targets = targets

    def targets(self, name: str, now_ms: int) -> list[Target]:
        """Return every queue that an item put to `name` goes to, fan-out children before their parent. A queue that an
        alias reaches in several ways gets one copy. Raises QueueRefused and TryNextTurn.
        """
        if name not in self.aliases:
            return self._targets_of_queue(name, now_ms)
        targets: dict[Queue, Target] = {}
        for reached in self.reached(name)[1]:
            for target in self._targets_of_queue(reached, now_ms):
                known = targets.setdefault(target.queue, target)
                if known != target:
                    targets[target.queue] = Target(
                        target.queue, known.counts or target.counts, known.stores or target.stores
                    )
        parents = {target.queue.name for target in targets.values() if isinstance(target.queue, StreamQueue)}
        # An item that is put once for all followers of a stream reaches its readers already.
        return [
            target
            for target in targets.values()
            if not (isinstance(target.queue, StreamQueue) and parent_of(target.queue.name) in parents)
        ]

    def reached(self, name: str) -> tuple[list[str], list[str]]:
        """Return the aliases that an item put to alias `name` passes, and the queues that it goes to, each once."""
        through, queues = {name: None}, dict[str, None]()
        ahead = [*reversed(self.aliases[name].targets)]
        while ahead:
            target = ahead.pop()
            if target not in self.aliases:
                queues[target] = None
            elif target not in through:
                through[target] = None
                ahead += reversed(self.aliases[target].targets)
        return list(through), list(queues)

    def _targets_of_queue(self, name: str, now_ms: int) -> list[Target]:
        queue = self.make_for_client(name, now_ms)
        if isinstance(queue, StreamQueue) and queue.is_parent:
            if queue.must_begin_to_take:
                self.begin_to_take(queue, now_ms)
            # The item is put once for all takers, which do not include children without a journal.
            others = [Target(child, counts=False) for child in queue.children.values() if child not in queue.followers]
            return [*others, Target(queue, counts=True)]
        targets = [Target(child, counts=False) for child in queue.children.values()]
        return [*targets, Target(queue, counts=True, stores=not queue.config.fanout_only or "+" in name)]

    def begin_to_take(self, queue: Queue, now_ms: int) -> None:
        """Get a file for a queue that needs one before it can take items. Raises QueueRefused."""
        if isinstance(queue, StreamQueue):
            try:
                queue.begin_to_take(now_ms)
            except OSError as error:
                raise _journal_refused(queue.name, error) from error

    def _check_name(self, name: str) -> None:
        """Check that a client may use `name`. Raises QueueRefused."""
        if why := name_error(name):
            raise QueueRefused(why, client=True)
        if name in self.aliases:
            raise QueueRefused(f"{name} is an alias, name a queue", client=True)
        if why := self.why_blocked(name):
            raise QueueRefused(why, client=False)

    def _create(self, name: str, now_ms: int) -> Queue:
        """Create the queue `name`, which has been checked. Raises QueueRefused."""
        if why := self.end_deletions(name):
            raise QueueRefused(f"cannot create queue {name}: {why}", client=False)
        config = self.config_of(name)
        try:
            journal = self._journal_of(name, config, now_ms) if config.keep_journal else NoJournal()
        except OSError as error:
            raise _journal_refused(name, error) from error
        self.created += 1
        queue = self._enter(queue_of(name, config, journal, now_ms))
        self.create_expiry_target(queue, now_ms)
        return queue

    def create_expiry_target(self, queue: Queue, now_ms: int) -> None:
        """Create the queue for expired items of `queue`, if it does not exist. If that is refused, each expired item
        will report the refusal.
        """
        target = queue.config.expire_to_queue
        if target:
            with suppress(QueueRefused):
                self.make(target, now_ms)

    def _enter(self, queue: Queue) -> Queue:
        self.by_name[queue.name] = queue
        queue.transfer_sink, queue.timer, queue.on_read_error = self.transfer_sink, self.timer, self.on_read_error
        queue.on_timed_out, queue.calendar = self.on_timed_out, self.calendar
        self.on_adopt(queue)
        queue.children = self._children.setdefault(queue.name, {})
        self._feed(queue)
        if queue.children:
            queue.had_children = True
        self.waiters_by_name.move_to(queue)
        return queue

    def _feed(self, queue: Queue) -> None:
        """Give a fan-out child the items that are put to its parent from now on, or a parent its children."""
        parent: Queue | None = queue
        if name := parent_of(queue.name):
            self._children.setdefault(name, {})[queue.name] = queue
            parent = self.by_name.get(name)
            if parent is not None:
                parent.had_children = True
        if isinstance(parent, StreamQueue):
            parent.regroup()


def _journal_refused(name: str, error: OSError) -> QueueRefused:
    return QueueRefused(f"cannot create the journal of queue {name}: {error.strerror}", client=False)
