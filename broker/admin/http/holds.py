"""Retention holds: what `journal/holds.py` describes, for operators and for the programs that hold files."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct, field

from staniel.broker.admin.http.exchange import Exchange
from staniel.broker.operations.holds import HoldRefused


class HoldBody(Struct, forbid_unknown_fields=True):
    """A hold to create. `queues`: patterns of queue names; the command log of jobs is `.cmdlog`. `max_bytes`: the hold
    is dropped when the files that are kept for it have more bytes; 0: never.
    """

    name: str
    queues: list[str] = field(default_factory=lambda: ["*"])
    max_bytes: int = 0


class HoldMoveBody(Struct, forbid_unknown_fields=True):
    """A move. `passed`: by queue, the name of the last sealed file that the holder has wholly read."""

    passed: dict[str, str]


class HoldDropped(Struct, frozen=True):
    """The result of a drop."""

    dropped: str


def holds(exchange: Exchange, now_ms: int) -> None:
    exchange.json(exchange.broker.file_holds.views(now_ms))


def create(exchange: Exchange, now_ms: int) -> None:
    body = exchange.body(HoldBody)
    answer = _answer(exchange, body.name, lambda now_ms: _show(exchange, body.name, now_ms))
    exchange.broker.file_holds.create(body.name, body.queues, body.max_bytes, now_ms, answer)


def move(exchange: Exchange, now_ms: int) -> None:
    name, passed = exchange.names[0], exchange.body(HoldMoveBody).passed
    answer = _answer(exchange, "", lambda now_ms: _show(exchange, name, now_ms))
    exchange.broker.file_holds.move(name, passed, now_ms, answer)


def drop(exchange: Exchange, now_ms: int) -> None:
    name = exchange.names[0]
    exchange.broker.file_holds.drop(name, _answer(exchange, name, lambda now_ms: exchange.json(HoldDropped(name))))


def _answer(exchange: Exchange, audited: str, then: Callable[[int], None]) -> Callable[[HoldRefused | None, int], None]:
    """Wait until a change is durable. Return the function that takes its result. `then` replies unless the change is
    refused. `audited`: the hold, if the change is for the audit log, even if the client has disconnected.
    """
    audit, operation = exchange.broker.audit, exchange.operation
    by = audit.requester(exchange.session)

    def end(refused: HoldRefused | None, now_ms: int) -> None:
        if refused is not None:
            exchange.error(refused.status, refused.why)
        else:
            then(now_ms)

    deliver = exchange.session.suspend_until_told(exchange.guarded(end))

    def tell(refused: HoldRefused | None, now_ms: int) -> None:
        if refused is None and audited:
            audit.record_operation(by, operation, now_ms, target=audited)
        deliver(refused)

    return tell


def _show(exchange: Exchange, name: str, now_ms: int) -> None:
    view = next((view for view in exchange.broker.file_holds.views(now_ms) if view.name == name), None)
    if view is not None:
        exchange.json(view)
    else:  # dropped meanwhile
        exchange.error(404, f"there is no hold {name}")
