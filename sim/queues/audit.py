"""Answers that the model can give by itself, when nothing else has happened in between: a miss, a peek, statistics.

Knows the model's idea of a queue at the end of one request. Refuses to know causes and crashes.
"""

from __future__ import annotations

from staniel.sim.queues.conversation import Heard, Want
from staniel.sim.queues.model import QueueModel, Record
from staniel.sim.violations import Kind, Violation, shown

MISSES = frozenset((Want.GET, Want.OPEN, Want.CLOSE_OPEN, Want.PEEK))


def audit(model: QueueModel, heard: Heard, now_ms: int) -> None:
    """Check the whole answer to a request that ran alone and did not wait. Raises Violation."""
    want = heard.ask.want
    queue = model.queue
    if queue is None or queue.gets_paused or queue.config.expire_to_queue or not heard.end:
        return  # what has expired there may have left the line, and not yet the journal
    if want in MISSES and heard.end == "END" and not heard.items:
        alive = _alive(model, now_ms)
        if alive:
            raise Violation(Kind.LOST, f"{model.name} has nothing to give, and holds {shown(alive[0].data)}")
    elif want is Want.PEEK and len(heard.items) == 1 and heard.end == "END":
        alive = _alive(model, now_ms)
        data = heard.items[0][1]
        if not alive or alive[0].data != data:
            head = shown(alive[0].data) if alive else "nothing"
            raise Violation(Kind.ORDER, f"{model.name} shows {shown(data)}, its head is {head}")


def audit_stats(models: dict[str, QueueModel], heard: Heard) -> None:
    """Compare the statistics of every queue that sends nothing elsewhere. Raises Violation."""
    said = dict(line.partition(" ")[::2] for line in heard.lines)
    for name, model in models.items():
        if model.queue is None or f"queue_{name}_items" not in said:
            continue
        if model.begun_after_facts > heard.ask.after_facts:
            continue  # the one that is shown may be the one before
        for key, number in _expected(model):
            told = said.get(f"queue_{name}_{key}")
            if told != str(number):
                raise Violation(Kind.STATISTICS, f"{key} of {name} is {told}, the model says {number}")


def _expected(model: QueueModel) -> list[tuple[str, int]]:
    assert model.queue is not None
    counts = [("total_items", model.total_items)]
    model.note_settings()
    if model.targets:
        return counts
    ready = model.now.ready
    counts += [("items", len(ready)), ("bytes", sum(len(record.data) for record in ready))]
    if not model.had_delay:
        counts += [
            ("open_transactions", len(model.now.open)),
            ("transactions", model.opened),
            ("canceled_transactions", model.aborted),
        ]
    return counts


def _alive(model: QueueModel, now_ms: int) -> list[Record]:
    """What may be handed out."""
    assert model.queue is not None
    max_age_ms = model.queue.config.max_age_ms
    return [
        record
        for record in model.waiting()
        if not (record.expires_ms and record.expires_ms < now_ms)
        and not (max_age_ms and record.added_ms + max_age_ms < now_ms)
    ]
