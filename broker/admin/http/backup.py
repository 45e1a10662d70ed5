"""The files of a backup, which are held as long as the connection that asked for them lasts."""

from __future__ import annotations

from typing import Any

from staniel.broker.admin.http.exchange import BadBody, Exchange
from staniel.broker.admin.last_backup import BackupMade
from staniel.broker.operations.backup import HOLDS_MAX, BackupHold
from staniel.broker.session import PULSE

CONTENT_TYPE = "application/x-ndjson"
PULSE_MS = 3_000  # tells the copier that the server is up, and makes the server notice a broken connection
WHERE_CHARS_MAX = 1000
END = b'{"end":true}\n'


def hold(exchange: Exchange, now_ms: int) -> None:
    """Hold the files of a consistent copy, and list them; then send empty lines as long as the connection lasts."""
    session, broker = exchange.session, exchange.broker
    if len(broker.holds) >= HOLDS_MAX:
        exchange.error(409, f"{len(broker.holds)} backups are being copied: wait for one of them")
        return
    held = broker.new_backup(session)
    held.prepare(lambda now_ms: session.deliver(True))
    session.suspend(exchange.guarded(lambda _, now_ms: _answer(exchange, held, now_ms)))


def note_made(exchange: Exchange, now_ms: int) -> None:
    """Note that the copier has made a complete copy."""
    made = exchange.body(BackupMade)
    if made.made_at_ms < 0:
        raise BadBody("made_at_ms is a number from 0 on")
    broker = exchange.broker
    made = BackupMade(min(made.made_at_ms, broker.calendar.wall_ms(now_ms)), made.where[:WHERE_CHARS_MAX])
    try:
        broker.last_backup.store_backup(made, now_ms)
    except OSError as error:
        exchange.error(503, f"the backup could not be noted: {error.strerror}")
        return
    broker.audit.record_operation(exchange.session, "backup", now_ms, target=made.where)
    exchange.json({"noted": True})


def _answer(exchange: Exchange, held: BackupHold, now_ms: int) -> None:
    session = exchange.session
    if held.why or held.summary is None:
        exchange.error(503, held.why)
        return
    session.log_event("backup.held", now_ms, files=held.summary.files, bytes=held.summary.bytes)
    pieces = held.pieces()

    def step(now_ms: int) -> None:
        piece = next(pieces, None)
        exchange.add(END if piece is None else piece)
        if piece is not None:
            session.yield_turn(exchange.guarded(step))
            return
        exchange.flush()
        wait(now_ms)

    def wait(now_ms: int) -> None:
        session.park(PULSE, now_ms + PULSE_MS, go_on, opens=False, peeks=True)

    def go_on(_: Any, now_ms: int) -> None:
        if exchange.broker.status.is_stopping:
            held.release()
            exchange.end()
            return
        if exchange.broker.has_sent_all(session):
            exchange.add(b"\n")
            exchange.flush()
        wait(now_ms)

    exchange.begin_pieces(CONTENT_TYPE)
    session.yield_turn(exchange.guarded(step))
