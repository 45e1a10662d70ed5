"""Broken rules of transfers between queues, of their intents, and of copies that look alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from staniel.broker.commands.text import HANDLERS
from staniel.broker.session import Session
from staniel.broker.transfer_recovery import TransferRecovery
from staniel.broker.transfers import Transfers
from staniel.journal.kestrel import item_reader
from staniel.journal.kestrel.encoder import Encoder
from staniel.journal.libkestrel.writer import StreamWriter
from staniel.journal.transfer_log import TransferLog
from staniel.protocol.text.replies import TextReplies
from staniel.protocol.text.requests import TextPut
from staniel.queues.item import Item
from staniel.queues.transfer_recovery import set_aside_found
from staniel.sim.mutants.queues import MUTANTS, mutant, replaced, unlisted

TRANSFER_FIELDS = ("source", "taken", "reason", "target", "left_ms", "destination")


@mutant("a transfer is finished with any equal item", "crc-collisions")
def twin_taken() -> Any:
    def make(right: Any) -> Any:
        return lambda self, source, intent, last: set_aside_found(source, 0, intent.matches)

    return replaced(TransferRecovery, "_find", make)


@mutant("an intent is ended when the copy has landed", "crc-collisions")
def intent_ended_early() -> Any:
    def make(right: Any) -> Any:
        def landed(self: Transfers, source: Any, taken: Any, own: Any, log: Any, number: int, now_ms: int) -> None:
            self.transfer_log.end_intent(number)
            right(self, source, taken, own, log, number, now_ms)

        return landed

    return replaced(Transfers, "_copy_synced", make)


@mutant("the first equal item is a copy, wherever it lies", "crc-collisions")
def copy_anywhere() -> Any:
    def make(right: Any) -> Any:
        def begin_anywhere(
            self: TransferLog, source: str, taken: Any, target: str, next_write_position: Any, copy: Any
        ) -> int:
            number: int = right(self, source, taken, target, (0, 0), copy)
            return number

        return begin_anywhere

    return replaced(TransferLog, "log_intent", make)


@mutant("a copy is looked for behind the highest number, also if no segment has it", "syncs")
@unlisted
def behind_no_segment() -> Any:
    def make(right: Any) -> Any:
        return lambda self: (self.newest_number, right(self)[1])

    return replaced(StreamWriter, "next_item", make)


@mutant("an equal item that the same turn put before may be the copy", "full-queues")
def copy_of_the_turn() -> Any:
    def make(right: Any) -> Any:
        return lambda self: (right(self)[0], self._entered_id + 1)

    return replaced(StreamWriter, "next_item", make)


@mutant("a number behind the last one becomes the last one", "crc-collisions")
def not_restored() -> Any:
    return replaced(Encoder, "restored", lambda right: lambda self: b"")


@mutant("a copy has the past of the copy before it", "transfers")
def stale_past() -> Any:
    def make(right: Any) -> Any:
        def transfer(self: Transfers, delivery: Any, now_ms: int) -> None:
            before = getattr(self, "before", b"")
            self.before = delivery.past  # type: ignore[attr-defined]
            if before and delivery.past:
                delivery = SimpleNamespace(**{name: getattr(delivery, name) for name in TRANSFER_FIELDS}, past=before)
            right(self, delivery, now_ms)

        return transfer

    return replaced(Transfers, "_transfer", make)


@mutant("an item that only the journal holds has lost its past", "transfers")
def past_forgotten_behind() -> Any:
    return replaced(item_reader, "fact_in", lambda right: lambda ids, added_ms, data: b"")


@mutant("a rewritten journal has no pasts", "transfers")
def past_not_rewritten() -> Any:
    def make(right: Any) -> Any:
        def snapshot(self: Encoder, counter: int, opened: Any, items: Any) -> Any:
            bare = [Item(item.data, item.added_ms, item.expires_ms, item.flags) for item in items]
            return right(self, counter, opened, bare)

        return snapshot

    return replaced(Encoder, "snapshot", make)


@mutant("a text put that is refused midway says that nothing is stored", "full-disk")
@contextmanager
def refused_midway() -> Iterator[None]:
    right = HANDLERS[TextPut]

    def put(session: Session, request: TextPut, now_ms: int) -> None:
        right(session, request, now_ms)
        said = session.out[-1]
        if said.startswith(b"+") and 0 < int(said) < len(request.items):
            session.out[-1] = TextReplies.not_available("setItem")

    HANDLERS[TextPut] = put
    try:
        yield
    finally:
        HANDLERS[TextPut] = right


__all__ = ["MUTANTS"]
