"""Broken rules of reads that are ended by the ids of their items."""

from __future__ import annotations

from typing import Any

from staniel.broker.commands.by_id import ReadSearch
from staniel.sim.mutants.queues import MUTANTS, mutant, replaced

__all__ = ["MUTANTS"]


@mutant("an end by id is that of the oldest read", "hub-ids")
def ends_oldest() -> Any:
    def make(right: Any) -> Any:
        def begin_oldest(self: ReadSearch, now_ms: int) -> None:
            self._found = [0] if self._session.reads.get(self._request.queue) else []
            self._end_found(now_ms)

        return begin_oldest

    return replaced(ReadSearch, "begin_search", make)


@mutant("an id ends the read of any connection", "hub-ids")
def ends_anothers() -> Any:
    def make(right: Any) -> Any:
        def end_any_read(self: ReadSearch, now_ms: int) -> None:
            if not self._is_anothers:
                right(self, now_ms)
                return
            queue = self._session.broker.queues.by_name[self._request.queue]
            for taken in [read for read in queue.open_reads.values() if read.id == self._request.id]:
                self._act(queue, taken, now_ms)
            self._session.out.append(self._done_reply)

        return end_any_read

    return replaced(ReadSearch, "_end_found", make)


@mutant("the answer to an end by id does not wait for its sync", "hub-ids")
def answered_at_once() -> Any:
    def make(right: Any) -> Any:
        def reply_at_once(self: ReadSearch, now_ms: int) -> None:
            batch = self._session.batch
            right(self, now_ms)
            self._session.batch = batch

        return reply_at_once

    return replaced(ReadSearch, "_end_found", make)
