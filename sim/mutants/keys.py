"""Broken rules of puts with idempotency keys."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import Any

from staniel.broker.commands import keyed_puts
from staniel.broker.put_keys import PutKeys
from staniel.journal.journals import append_log
from staniel.journal.put_key_log import PutKeyLog, PutsVoid
from staniel.sim.mutants.queues import MUTANTS, mutant, replaced, silent_during

__all__ = ["MUTANTS"]


@mutant("a key is not synced before its item", "hub-keys")
def key_unsynced() -> Any:
    return silent_during(PutKeyLog, "write_and_sync", "sync_inode")


@mutant("a start takes puts whose keys are not finished for void", "hub-keys")
def keys_not_searched() -> Any:
    def make(right: Any) -> Any:
        return lambda self, unfinished, now_ms: [(put.queue, PutsVoid([put.put])) for put in unfinished]

    return replaced(PutKeys, "_search_items", make)


@mutant("a journal is rewritten under the puts that are not finished", "hub-keys")
@contextmanager
def not_pinned() -> Any:
    def make_add(right: Any) -> Any:
        def add_unpinned(self: PutKeys, queue: Any, *args: Any) -> None:
            log = append_log(queue.journal)
            before = 0 if log is None else log.open_transfers
            right(self, queue, *args)
            if log is not None:
                log.open_transfers = before

        return add_unpinned

    def make_end(right: Any) -> Any:
        def end_unpinned(self: PutKeys, log: Any, now_ms: int) -> None:
            log.open_transfers += 1
            right(self, log, now_ms)

        return end_unpinned

    with ExitStack() as stack:
        stack.enter_context(replaced(PutKeys, "add", make_add))
        stack.enter_context(replaced(PutKeys, "_end", make_end))
        yield


@mutant("a repeated put is answered before the first one is durable", "hub-keys")
def answered_at_once() -> Any:
    def make(right: Any) -> Any:
        def reply_at_once(session: Any, queue: Any) -> Any:
            batch = session.batch
            result = right(session, queue)
            session.batch = batch
            return result

        return reply_at_once

    return replaced(keyed_puts, "_already_stored", make)


@mutant("a second put does not wait for the first one with its key", "hub-keys")
def second_stored() -> Any:
    def make(right: Any) -> Any:
        def is_known(self: PutKeys, queue: str, key: str, now_ms: int) -> bool:
            known = self._known.get(f"{queue}/{key}")
            return known is not None and known.number not in self._unfinished and bool(right(self, queue, key, now_ms))

        return is_known

    return replaced(PutKeys, "is_known", make)


@mutant("a key is forgotten with the server", "hub-keys")
def forgotten_at_the_end() -> Any:
    return replaced(PutKeys, "_remember_since", lambda right: lambda self, put, now_ms: None)
