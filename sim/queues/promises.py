"""What must still be there after an accident, by the policy of each queue, and whether it is.

Knows what was heard, written and synced, and when; and that an item that moves is in one of two queues. Refuses to know
files. Which states a queue may be left in: fits.py. Source: docs/durability.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sized
from enum import Enum
from typing import Protocol

from msgspec import Struct

from staniel.queues.config import SYNC_ALWAYS
from staniel.queues.names import parent_of
from staniel.sim.queues.fits import Fit, matched, reader_fits
from staniel.sim.queues.model import QueueModel, Record, Verb, Written
from staniel.sim.violations import Kind, Violation, listed, shown


class Accident(Enum):
    """What can happen to a server, the mildest first."""

    STOP = "clean stop"
    KILL = "kill"
    POWER = "power loss"


class Kept(Protocol):
    """A history of facts, and how many of them were promised to survive what."""

    kept_after_kill: int
    kept_after_power_loss: int

    @property
    def facts(self) -> Sized: ...


class Mark(Struct, frozen=True):
    """An answer rests on the first `facts` of a queue; `always`: and on their being synced."""

    model: QueueModel
    facts: int
    always: bool


def mark_of(model: QueueModel) -> Mark:
    """What an answer about this queue promises now. What a reader has just dropped because it had expired is written
    by itself: an answer about what stood before it does not wait for that.
    """
    count = len(model.facts)
    while model.is_reader and count in model.expired:
        count -= 1
    is_always = model.queue is None or model.queue.config.sync_ms == SYNC_ALWAYS
    return Mark(model, count, is_always and model.is_always and count > model.always_since)


def heard(mark: Mark) -> None:
    """The answer has reached its client."""
    model = mark.model
    model.kept_after_kill = max(model.kept_after_kill, mark.facts)
    if mark.always:
        model.kept_after_power_loss = max(model.kept_after_power_loss, mark.facts)


def committed(model: QueueModel, now_ms: int) -> None:
    """A tick has written what was recorded."""
    model.note_settings()
    count = len(model.facts)
    if count > model.journaled_facts and model.queue is not None:
        model.journaled_facts = count
        model.written.append(Written(now_ms, count, model.queue.config.sync_ms))


def synced(model: QueueModel, began_ms: int) -> None:
    """A sync that began at `began_ms`, or none was due then: durations that were over are kept."""
    for written in model.written:
        if 0 < written.sync_ms <= began_ms - written.at_ms:
            model.kept_after_power_loss = max(model.kept_after_power_loss, written.facts)


def check(
    models: dict[str, QueueModel], found: dict[str, list[bytes]], accident: Accident, *, sync_failed: bool = False
) -> dict[str, list[Record]]:
    """What each queue holds now, as records. `sync_failed`: that ended the process. Raises Violation."""
    for name in found:
        if name not in models:
            raise Violation(Kind.INVENTED, f"queue {name} holds {listed(found[name])}, and nobody ever put to it")
    for model in models.values():
        model.note_settings()  # a reload may have come in the tick that was not committed
    fits = {
        name: _fits(model, found.get(name, []), accident, sync_failed or _was_lax(models, name))
        for name, model in models.items()
    }
    return {name: _consistent(models, fits, name).records for name in models}


def _was_lax(models: dict[str, QueueModel], name: str) -> bool:
    """Whether something of this queue was left to another policy than "always": a child's items are its parent's."""
    parent = models.get(parent_of(name))
    return models[name].was_lax or (parent is not None and parent.was_lax)


def _consistent(models: dict[str, QueueModel], fits: dict[str, list[Fit]], name: str) -> Fit:
    """A fit of one queue that agrees with those that it was sending items to. Raises Violation if there is none."""
    why: Violation | None = None
    for fit in fits[name]:
        found = _disagreement(models, fits, name, fit)
        if found is None:
            return fit
        why = why or found
    assert why is not None
    raise why


def _disagreement(models: dict[str, QueueModel], fits: dict[str, list[Fit]], name: str, fit: Fit) -> Violation | None:
    for record, move in fit.left:
        target = models[move.target]
        if target.is_journaled and not any(each.count > move.at for each in fits[move.target]):
            return Violation(Kind.LOST, f"{shown(record.data)} left {name} for {move.target}, and has not arrived")
    for record, move in fit.stayed:
        target = models[move.target]
        if not target.is_journaled or not models[name].is_journaled:
            continue
        deleted = any(fact.verb is Verb.END for fact in target.facts[move.at :])
        if not deleted and all(each.count > move.at for each in fits[move.target]):
            why = f"{shown(record.data)} has arrived in {move.target}, and is still in {name}"
            return Violation(Kind.DUPLICATED, why)
    return None


def least(model: Kept, accident: Accident) -> int:
    """How many facts must have survived."""
    if accident is Accident.STOP:
        return len(model.facts)
    if accident is Accident.KILL:
        return max(model.kept_after_kill, model.kept_after_power_loss)
    return model.kept_after_power_loss


def _fits(model: QueueModel, found: list[bytes], accident: Accident, may_have_holes: bool) -> list[Fit]:
    if not model.is_journaled:
        if found:
            raise Violation(Kind.INVENTED, f"{model.name} keeps no journal, and holds {listed(found)} after a restart")
        return [Fit(len(model.facts), [], [], [])]
    since = least(model, accident)
    if model.is_reader:
        # A sync that fails in the one thread can make the next one in the other say "done" of what is lost.
        fits = reader_fits(model, found, since, may_have_holes=may_have_holes and accident is Accident.POWER)
    else:
        fits = [fit for count, state in model.states(since) if (fit := matched(state, found, count)) is not None]
    if not fits:
        raise _explained(model, found, since, accident)
    return fits


def _explained(model: QueueModel, found: list[bytes], since: int, accident: Accident) -> Violation:
    """Nothing of the history fits: say what is wrong in the client's terms."""
    ever = Counter(record.data for record in model.base)
    ever.update(fact.record.data for fact in model.facts if fact.record is not None)
    _, promised = next(model.states(since))
    expected = [record.data for record in promised.recovered()]
    gone_later = _taken_since(model, since)
    story = f"{model.name} after a {accident.value}: found {listed(found)}, promised {listed(expected)}"
    story += f" (fact {since} of {len(model.facts)})" if since < len(model.facts) else ""
    have = Counter(found)
    if strange := have - ever:
        kind = Kind.INVENTED if any(data not in ever for data in strange) else Kind.DUPLICATED
        return Violation(kind, f"{story}; too much: {listed(sorted(strange))}")
    if missing := Counter(expected) - have - gone_later:
        return Violation(Kind.LOST, f"{story}; missing: {listed(sorted(missing))}")
    later = Counter(fact.record.data for fact in model.facts[since:] if fact.record is not None)
    if back := have - Counter(expected) - later:
        return Violation(Kind.REDELIVERED, f"{story}; gone for good before: {listed(sorted(back))}")
    same = any(
        Counter(found) == Counter(record.data for record in state.recovered()) for _, state in model.states(since)
    )
    return Violation(Kind.ORDER if same else Kind.NO_PREFIX, story)


def _taken_since(model: QueueModel, since: int) -> Counter[bytes]:
    """What has left the queue, or may have, after fact `since`."""
    _, before = next(model.states(since))
    after = {id(record) for record in model.now.recovered()}
    gone = Counter(record.data for record in before.recovered() if id(record) not in after)
    gone.update(record.data for record in before.recovered() if record.moved_to is not None)
    return gone
