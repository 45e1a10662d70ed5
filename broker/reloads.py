"""The changes that a reload makes to queues, a share of a turn at a time. The server's own settings have changed
before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import structs

from staniel.broker.config.toml import joined
from staniel.broker.maintenance.memory import MemoryBudget
from staniel.broker.share import Share
from staniel.broker.timers import Timers
from staniel.journal.kestrel.log import Log
from staniel.journal.libkestrel.reader import ReaderLog
from staniel.queues.config import QueueConfig
from staniel.queues.queue import Queue

KEYS_SHOWN_MAX = 20
STEP_WORK = 5_000  # of a turn's share, as timers count it


class RunningReload:
    """A running reload. It gives queues the settings of the newest configuration, even if another reload comes
    meanwhile, and continues if its client disconnects. `later`: once it `is_done`, the keys that need a restart, as a
    text; `later_keys` are those known before. When all queues have their settings, `finish` is called with `later`,
    before the waiting client gets its reply.
    """

    def __init__(
        self, memory: MemoryBudget, timers: Timers, later_keys: list[str], finish: Callable[[str, int], None]
    ) -> None:
        self.is_done = False
        self.later = ""
        self.on_end: Callable[[str], None] | None = None  # passes `later` to the client that waits
        self._memory, self._queues, self._timers = memory, memory.queues, timers
        self._later_keys, self._finish = later_keys, finish
        self._pieces = self._apply()

    def on_timer(self, now_ms: int) -> int:
        """Do a turn's share. Return the work, as timers count it."""
        share = Share(self._timers.clock)
        for _ in self._pieces:
            if share.is_spent:
                self._timers.soon(self)
                return STEP_WORK
        self._end(now_ms)
        return STEP_WORK

    def _apply(self) -> Iterator[None]:
        for queue, config in self._reconfigured():
            if config is not None and not configure(queue, config):
                self._later_keys.append(joined(joined("queues", queue.name), "keep_journal"))
            yield
        yield from self._memory.bound_each()

    def _reconfigured(self) -> Iterator[tuple[Queue, QueueConfig | None]]:
        """Yield each queue, and its settings if they have changed. Thousands of queues may share their settings, which
        are compared once.
        """
        known: dict[tuple[int, int], tuple[QueueConfig, QueueConfig, bool]] = {}  # kept, so that no id is reused
        for queue in self._queues.all():
            if self._queues.known(queue.name) is not queue:
                continue  # deleted meanwhile
            before, after = queue.config, self._queues.config_of(queue.name)
            both = id(before), id(after)
            if both not in known:
                known[both] = before, after, before == after
            yield queue, None if known[both][2] else after

    def _end(self, now_ms: int) -> None:
        self.later = shorten(self._later_keys)
        self.is_done = True
        self._finish(self.later, now_ms)
        if self.on_end is not None:
            self.on_end(self.later)


def configure(queue: Queue, config: QueueConfig) -> bool:
    """Apply `config` to `queue`. Return whether all of it is applied."""
    is_all = config.keep_journal == queue.config.keep_journal
    if not is_all:
        config = structs.replace(config, keep_journal=queue.config.keep_journal)
    listed = config.client_id_for_dequeue
    if listed not in ("", queue.config.client_id_for_dequeue):
        queue.dismiss_waiters()  # sessions that may still wait park again
    queue.configure(config)
    if isinstance(queue.journal, Log | ReaderLog):
        queue.journal.configure(config)
    return is_all


def shorten(keys: list[str]) -> str:
    """Return the first keys and how many more there are, for one line of the log."""
    more = f" and {len(keys) - KEYS_SHOWN_MAX} more" if len(keys) > KEYS_SHOWN_MAX else ""
    return ", ".join(keys[:KEYS_SHOWN_MAX]) + more
