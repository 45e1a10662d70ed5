"""The content that each queue may have after an accident, according to its policy, and the comparison with what was
found. Source: docs/durability.md.

A queue with a journal of its own has one sequence of changes, so a crash must leave the state after some first part of
them, no shorter than promised. A queue that reads a shared journal has two files: the items, of which a first part is
left, and its own, with the ids that it has confirmed. Each of the two may contain more than promised while the other
does not. An item that moves is in one of two queues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sized
from enum import Enum
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from staniel.queues.config import SYNC_ALWAYS
from staniel.queues.item import REMNANT_MS
from staniel.queues.names import parent_of
from staniel.sim.queues.model import SWEPT, Move, QueueModel, Record, State, Verb, Written
from staniel.sim.violations import Kind, Violation, listed, shown


class Accident(Enum):
    """The accidents that can happen to a server, the mildest first."""

    STOP = "clean stop"
    KILL = "kill"
    POWER = "power loss"


class Promised(Protocol):
    """A sequence of changes, and how many of them must survive a kill or a power loss."""

    promised_after_kill: int
    promised_after_power_loss: int

    @property
    def facts(self) -> Sized: ...


class Acknowledgement(Struct, frozen=True):
    """The changes that a reply depends on: the first `facts` of a queue. `always`: it depends on their sync, too."""

    model: QueueModel
    facts: int
    always: bool


def acknowledgement_of(model: QueueModel) -> Acknowledgement:
    """Return what a reply about this queue promises now. The drop of an expired item is written separately: a reply
    about an earlier change does not wait for it.
    """
    count = len(model.facts)
    while model.is_reader and count in model.expired:
        count -= 1
    is_always = model.queue is None or model.queue.config.sync_ms == SYNC_ALWAYS
    return Acknowledgement(model, count, is_always and model.is_always and count > model.always_since)


def acknowledged(mark: Acknowledgement) -> None:
    """Note that the reply has reached its client."""
    model = mark.model
    model.promised_after_kill = max(model.promised_after_kill, mark.facts)
    if mark.always:
        model.promised_after_power_loss = max(model.promised_after_power_loss, mark.facts)


def committed(model: QueueModel, now_ms: int) -> None:
    """Note that a tick has written all recorded changes."""
    model.note_settings()
    count = len(model.facts)
    if count > model.journaled_facts and model.queue is not None:
        model.journaled_facts = count
        model.written.append(Written(now_ms, count, model.queue.config.sync_ms))


def synced(model: QueueModel, began_ms: int) -> None:
    """Note a sync that began at `began_ms`, or that none was due then. Commits whose sync interval had passed by then
    are durable.
    """
    for written in model.written:
        if 0 < written.sync_ms <= began_ms - written.at_ms:
            model.promised_after_power_loss = max(model.promised_after_power_loss, written.facts)


def check(
    models: dict[str, QueueModel],
    content: dict[str, list[bytes]],
    accident: Accident,
    *,
    sync_failed: bool = False,
    now_ms: int = 0,
) -> dict[str, list[Record]]:
    """Check what was found, and return what each queue has now, as records. `sync_failed`: a failed sync ended the
    process, at `now_ms`. Raises Violation.
    """
    for name in content:
        if name not in models:
            raise Violation(
                Kind.INVENTED, f"queue {name} holds {listed(content[name])}, and nothing was ever put to it"
            )
    for model in models.values():
        model.note_settings()  # a reload may have come in the uncommitted tick
    fits = {
        name: _fits(model, content.get(name, []), accident, sync_failed or _was_lax(models, name), now_ms)
        for name, model in models.items()
    }
    chosen = {name: _consistent(models, fits, name) for name in models}
    for name, fit in chosen.items():
        models[name].count_deliveries(fit.count)
    return {name: fit.records for name, fit in chosen.items()}


def _was_lax(models: dict[str, QueueModel], name: str) -> bool:
    """Tell whether some of this queue's changes happened under another policy than "always". A child's items are its
    parent's.
    """
    parent = models.get(parent_of(name))
    return models[name].was_lax or (parent is not None and parent.was_lax)


def _consistent(models: dict[str, QueueModel], fits: dict[str, list[Fit]], name: str) -> Fit:
    """Return a fit of one queue that agrees with the queues that it was sending items to. Raises Violation if there is
    none.
    """
    why: Violation | None = None
    for fit in fits[name]:
        disagreement = _disagreement(models, fits, name, fit)
        if disagreement is None:
            return fit
        why = why or disagreement
    assert why is not None
    raise why


Moved = list[tuple[Record, Move]]


def _in_order(fit: Fit) -> tuple[Moved, Moved]:
    """Return the moved items of `fit` that left and that stayed. It cannot be told which of equal items on their way to
    one queue a copy is of: those that left are of the first ones.
    """
    moves: dict[tuple[bytes, str], list[Move]] = {}
    for record, move in [*fit.left, *fit.stayed]:
        moves.setdefault((record.data, move.target), []).append(move)
    for equal in moves.values():
        equal.sort(key=lambda move: move.at, reverse=True)
    left = [(record, moves[record.data, move.target].pop()) for record, move in fit.left]
    return left, [(record, moves[record.data, move.target].pop()) for record, move in fit.stayed]


def _disagreement(models: dict[str, QueueModel], fits: dict[str, list[Fit]], name: str, fit: Fit) -> Violation | None:
    left, stayed = _in_order(fit)
    for record, move in left:
        target = models[move.target]
        if target.is_journaled and not any(other.count > move.at for other in fits[move.target]):
            return Violation(Kind.LOST, f"{shown(record.data)} left {name} for {move.target}, and has not arrived")
    for record, move in stayed:
        target = models[move.target]
        if not target.is_journaled or not models[name].is_journaled:
            continue
        deleted = target.is_being_removed or any(fact.verb is Verb.END for fact in target.facts[move.at :])
        if not deleted and all(other.count > move.at for other in fits[move.target]):
            why = f"{shown(record.data)} has arrived in {move.target}, and is still in {name}"
            return Violation(Kind.DUPLICATED, why)
    return None


def least(model: Promised, accident: Accident) -> int:
    """Return how many changes must have survived."""
    if accident is Accident.STOP:
        return len(model.facts)
    if accident is Accident.KILL:
        return max(model.promised_after_kill, model.promised_after_power_loss)
    return model.promised_after_power_loss


def _fits(model: QueueModel, items: list[bytes], accident: Accident, may_have_holes: bool, now_ms: int) -> list[Fit]:
    if not model.is_journaled:
        if items:
            raise Violation(Kind.INVENTED, f"{model.name} keeps no journal, and holds {listed(items)} after a restart")
        return [Fit(len(model.facts), [], [], [])]
    since = least(model, accident)
    if model.is_reader:
        # A failed sync in one thread can let the next one, in the other thread, succeed without the lost bytes.
        is_power_loss = accident is Accident.POWER
        may_have_holes = may_have_holes and is_power_loss
        fits = reader_fits(model, items, since, may_have_holes=may_have_holes, may_have_others=is_power_loss)
    else:
        fits = [fit for count, state in model.states(since) for fit in matches(state, items, count, now_ms)]
    if model.is_being_removed and not items:
        fits.append(Fit(len(model.facts), [], [], []))
    if not fits:
        raise _explained(model, items, since, accident)
    return fits


def _explained(model: QueueModel, items: list[bytes], since: int, accident: Accident) -> Violation:
    """Return the violation, in the client's terms, if no part of the history fits."""
    ever = Counter(record.data for record in model.base)
    ever.update(fact.record.data for fact in model.facts if fact.record is not None)
    _, promised = next(model.states(since))
    expected = [record.data for record in promised.recovered()]
    gone_later = _taken_since(model, since)
    story = f"{model.name} after a {accident.value}: found {listed(items)}, promised {listed(expected)}"
    story += f" (fact {since} of {len(model.facts)})" if since < len(model.facts) else ""
    have = Counter(items)
    if strange := have - ever:
        kind = Kind.INVENTED if any(data not in ever for data in strange) else Kind.DUPLICATED
        return Violation(kind, f"{story}; too much: {listed(sorted(strange))}")
    if missing := Counter(expected) - have - gone_later:
        return Violation(Kind.LOST, f"{story}; missing: {listed(sorted(missing))}")
    later = Counter(fact.record.data for fact in model.facts[since:] if fact.record is not None)
    if back := have - Counter(expected) - later:
        return Violation(Kind.REDELIVERED, f"{story}; gone for good before: {listed(sorted(back))}")
    same = any(
        Counter(items) == Counter(record.data for record in state.recovered()) for _, state in model.states(since)
    )
    return Violation(Kind.ORDER if same else Kind.NO_PREFIX, story)


def _taken_since(model: QueueModel, since: int) -> Counter[bytes]:
    """Return the items that have left the queue, or may have, after change `since`."""
    _, before = next(model.states(since))
    after = {id(record) for record in model.now.recovered()}
    gone = Counter(record.data for record in before.recovered() if id(record) not in after)
    gone.update(record.data for record in before.recovered() if record.moved_to is not None)
    return gone


# The states that an accident may leave.


class Fit(Struct, eq=False):
    """A number of changes after which the state is what was found, and the items that recovery has removed from it
    because their copies are elsewhere. An item with only its place left has expired for good, although the clock may be
    set back.
    """

    count: int
    stayed: list[tuple[Record, Move]]
    left: list[tuple[Record, Move]]
    records: list[Record]


def matches(state: State, items: list[bytes], count: int, now_ms: int = 0) -> list[Fit]:
    """Return the ways in which `items` is this state, except for items whose copy may have arrived elsewhere, and for
    expired ones: a rewrite may have kept only their places, and a running undo may have removed these.

    There can be several ways: of equal items any may be the one that has left.
    """
    records = state.recovered()
    # By how much of `items` is explained, and which items with a copy elsewhere are in that part.
    ways: dict[tuple[int, tuple[int, ...]], Fit] = {(0, ()): Fit(count, [], [], [])}
    for number, record in enumerate(records):
        fewest = len(items) - (len(records) - number - 1)
        further: dict[tuple[int, tuple[int, ...]], Fit] = {}
        for (at, stayed), fit in ways.items():
            if at < len(items) and (record.data == items[at] or (items[at] == SWEPT and record.is_over(now_ms))):
                here = stayed if record.moved_to is None else (*stayed, number)
                further.setdefault((at + 1, here), _with_item(fit, record, is_swept=items[at] == SWEPT))
            if at >= fewest and (record.moved_to is not None or record.is_over(now_ms)):
                further.setdefault((at, stayed), _without_item(fit, record))
        ways = further
    return [fit for (at, _), fit in ways.items() if at == len(items)]


def _with_item(fit: Fit, record: Record, *, is_swept: bool) -> Fit:
    remnant = replace(record, expires_ms=REMNANT_MS, date_ms=0) if is_swept else record
    stayed = fit.stayed if record.moved_to is None else [*fit.stayed, (record, record.moved_to)]
    return Fit(fit.count, stayed, fit.left, [*fit.records, remnant])


def _without_item(fit: Fit, record: Record) -> Fit:
    left = fit.left if record.moved_to is None else [*fit.left, (record, record.moved_to)]
    return Fit(fit.count, fit.stayed, left, fit.records)


class Entry(Struct, eq=False):
    """An item of a reader, with the numbers, from 1 on, of the changes that added and removed it. `came` 0: it was
    there when the history began. `went` 0: it is still there.
    """

    record: Record
    came: int
    went: int = 0
    is_left_out: bool = False  # not meant for this reader

    def must_be_there(self, promised: int) -> bool:
        """Tell whether the item must be there. Recovery may have removed an item whose copy is elsewhere."""
        return not self.went and self.came <= promised and self.record.moved_to is None

    def must_be_gone(self, promised: int) -> bool:
        return 0 < self.went <= promised


def reader_fits(
    model: QueueModel, items: list[bytes], promised: int, *, may_have_holes: bool, may_have_others: bool
) -> list[Fit]:
    """Return the ways in which `items` is a state of a reader: with the most changes possible, and with the fewest; []
    if it is none. Items are in the order in which they came, including those that were open or returned.

    `may_have_holes`: the end of a segment may be lost although the beginning of the next is there. `may_have_others`:
    items that are not meant for this reader may be there although its file does not say so.
    """
    entries = [entry for entry in _entries(model) if may_have_others or not entry.is_left_out]
    fits: list[Fit] = []
    for chosen in _choices(entries, items, promised, may_have_holes):
        came = [] if may_have_holes else [entry.came for entry in chosen]
        fewest = max([promised, *came])
        stayed, left = _moved(entries, chosen, fewest)
        records = [entry.record for entry in chosen]
        fits += [Fit(count, stayed, left, records) for count in (len(model.facts), fewest)]
    return fits


def _moved(entries: list[Entry], chosen: list[Entry], fewest: int) -> tuple[Moved, Moved]:
    """Return the items with a copy in another queue: those that are still in this one, and those that are not."""
    here = {id(entry) for entry in chosen}
    stayed, left = [], []
    for entry in entries:
        record = entry.record
        if record.moved_to is not None and id(entry) in here:
            stayed.append((record, record.moved_to))
        elif record.moved_to is not None and entry.came <= fewest and not entry.went:
            left.append((record, record.moved_to))
    return stayed, left


def _entries(model: QueueModel) -> list[Entry]:
    entries = [Entry(record, 0) for record in model.base]
    by_record = {id(entry.record): entry for entry in entries}
    state = model.first_state()
    for number, fact in enumerate(model.facts, 1):
        record = state.apply(fact)
        if fact.verb is Verb.ADD or fact.verb is Verb.PASS:
            assert record is not None
            is_left_out = fact.verb is Verb.PASS
            entry = Entry(record, number, number if is_left_out else 0, is_left_out)
            entries.append(entry)
            by_record[id(record)] = entry
        elif fact.verb is Verb.REMOVE or fact.verb is Verb.CONFIRM:
            by_record[id(record)].went = number
        elif fact.verb is Verb.END:
            for entry in entries:
                entry.went = entry.went or number
    return entries


def _choices(entries: list[Entry], items: list[bytes], promised: int, may_have_holes: bool) -> list[list[Entry]]:
    """Return the entries that make up `items`, in their order. There can be several ways, because an item may have left
    and returned.
    """
    # By how much of `items` is explained, and whether an item is missing after which no other may be there.
    ways: dict[tuple[int, bool], list[Entry]] = {(0, False): []}
    for entry in entries:
        further: dict[tuple[int, bool], list[Entry]] = {}
        for (at, is_cut), chosen in ways.items():
            fits = at < len(items) and not is_cut and entry.record.data == items[at]
            if fits and not entry.must_be_gone(promised):
                further[at + 1, False] = [*chosen, entry]
            if not entry.must_be_there(promised):
                further.setdefault((at, is_cut or not (entry.went or entry.record.moved_to or may_have_holes)), chosen)
        ways = further
    return [chosen for (at, _), chosen in ways.items() if at == len(items)]
