"""Broken rules of puts with a delay."""

from __future__ import annotations

from typing import Any

from staniel.journal.kestrel.encoder import Encoder
from staniel.journal.kestrel.log import Log
from staniel.queues.contents import QueueContents
from staniel.queues.delays import delay_of
from staniel.queues.interfaces import NoJournal
from staniel.queues.item import Item
from staniel.queues.queue import Queue
from staniel.queues.time_outs import QueueReads
from staniel.sim.mutants.queues import MUTANTS, mutant, replaced

__all__ = ["MUTANTS"]


def _undelayed(item: Item) -> Item:
    return item if delay_of(item) is None else Item(item.data, item.added_ms, item.expires_ms, item.flags)


@mutant("a put writes no delay", "hub-delays")
def delay_unwritten() -> Any:
    def make(right: Any) -> Any:
        def record_added(self: Log, item: Item) -> None:
            right(self, _undelayed(item))

        return record_added

    return replaced(Log, "record_added", make)


@mutant("a rewritten journal has no delays", "hub-delays")
def delays_forgotten_by_rewrites() -> Any:
    def make(right: Any) -> Any:
        def snapshot(self: Encoder, counter: int, open_reads: Any, items: list[Item]) -> Any:
            for delivery in open_reads.values():
                delivery.item = _undelayed(delivery.item)
            return right(self, counter, open_reads, [_undelayed(item) for item in items])

        return snapshot

    return replaced(Encoder, "snapshot", make)


@mutant("a client that waits is not woken when an item is due", "hub-delays")
def nobody_woken() -> Any:
    return replaced(Queue, "time_out", lambda right: QueueReads.time_out)


@mutant("an item behind a delayed head is handed out before it is due", "hub-delays")
def second_head_is_early() -> Any:
    def make(right: Any) -> Any:
        return lambda self, item, now_ms: 0 if self.resting else right(self, item, now_ms)

    return replaced(Queue, "_rests_until_ms", make)


@mutant("a rest is not recorded", "hub-delays")
def rest_unrecorded() -> Any:
    def make(right: Any) -> Any:
        def rest_head(self: QueueContents, until_ms: int) -> Any:
            journal, self.journal = self.journal, NoJournal()
            try:
                return right(self, until_ms)
            finally:
                self.journal = journal

        return rest_head

    return replaced(QueueContents, "rest_head", make)
