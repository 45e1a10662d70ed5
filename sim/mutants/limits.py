"""Broken limits: of connections, addresses, open reads and waits."""

from __future__ import annotations

from collections import deque
from typing import Any

from staniel.queues.config import UNLIMITED_ITEMS, QueueConfig
from staniel.queues.item import is_remnant
from staniel.queues.line import Line
from staniel.queues.queue import Queue
from staniel.queues.sweeping import Sweep
from staniel.server.connection_limits import ConnectionLimits, Reserve
from staniel.sim.mutants.queues import MUTANTS, mutant, replaced


@mutant("clients take the connections that are kept for operators", "hub-limits")
def reserve_taken() -> Any:
    return replaced(ConnectionLimits, "has_room", lambda right: lambda self, reserve: right(self, Reserve.OPERATORS))


@mutant("nothing is kept for operators", "hub-limits")
def no_reserve() -> Any:
    return replaced(ConnectionLimits, "has_room", lambda right: lambda self, reserve: right(self, Reserve.NONE))


@mutant("an address may have any number of clients", "hub-limits")
def any_address() -> Any:
    return replaced(ConnectionLimits, "is_address_full", lambda right: lambda self, client, reserve: False)


@mutant("a client that has gone counts for its address", "hub-limits")
def never_forgotten() -> Any:
    def make(right: Any) -> Any:
        def remove(self: ConnectionLimits, client: str, now_ms: int) -> None:
            self._count -= 1
            self.on_room(now_ms)

        return remove

    return replaced(ConnectionLimits, "remove", make)


@mutant("expired items behind a live head cost room", "full-queues")
def expired_cost_room() -> Any:
    return replaced(Sweep, "may_help", lambda right: lambda self, line, now_ms: False)


@mutant("a sweep takes items whose life has not ended", "full-queues")
def sweep_takes_living() -> Any:
    return replaced(Line, "sweep", lambda right: lambda self, is_over, *rest: right(self, lambda item: True, *rest))


@mutant("a sweep leaves no place in the line", "full-queues")
def sweep_leaves_no_place() -> Any:
    def make(right: Any) -> Any:
        def sweep(self: Line, *args: Any) -> Any:
            count = right(self, *args)
            here = deque(item for item in self.in_memory if not is_remnant(item))
            gone, self.in_memory = len(self.in_memory) - len(here), here
            self.remnants, self.expiring = self.remnants - gone, self.expiring - gone
            return count

        return sweep

    return replaced(Line, "sweep", make)


@mutant("any number of items may be open", "hub-limits")
def any_reads() -> Any:
    def make(right: Any) -> Any:
        def configure(self: Queue, config: QueueConfig) -> None:
            right(self, config)
            self.max_open_reads = UNLIMITED_ITEMS

        return configure

    return replaced(Queue, "configure", make)


@mutant("any number of clients may wait", "hub-limits")
def any_waiters() -> Any:
    return replaced(Queue, "count_waiters", lambda right: lambda self: 0)


__all__ = ["MUTANTS"]
