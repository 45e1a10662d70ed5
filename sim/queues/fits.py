"""Which states of its history a queue may be left in by an accident, and which of them is the one that was found.

A queue with a journal of its own has one line of facts, so what a crash leaves must be the state after some first part
of them, no shorter than promised. A queue that reads a shared journal has two files: the items, whose first part is
left, and its own, which says what it is done with. Each of the two may be further than promised, and the other not.
Knows facts and how many of them are promised. Refuses to know what was promised and when.
"""

from __future__ import annotations

from msgspec import Struct

from staniel.sim.queues.model import Move, QueueModel, Record, State, Verb


class Fit(Struct, eq=False):
    """A number of facts whose state is what was found, and what recovery has taken out of it: items whose copy is
    elsewhere.
    """

    count: int
    stayed: list[tuple[Record, Move]]
    left: list[tuple[Record, Move]]
    records: list[Record]


def matched(state: State, found: list[bytes], count: int) -> Fit | None:
    """Whether `found` is this state, but for items whose copy may have arrived elsewhere."""
    records = state.recovered()
    if len(records) < len(found):
        return None
    at = 0
    fit = Fit(count, [], [], [])
    for record in records:
        if at < len(found) and record.data == found[at]:
            at += 1
            fit.records.append(record)
            if record.moved_to is not None:
                fit.stayed.append((record, record.moved_to))
        elif record.moved_to is not None:
            fit.left.append((record, record.moved_to))
        else:
            return None
    return fit if at == len(found) else None


class Entry(Struct, eq=False):
    """An item of a reader's, by the facts that brought it and took it away: their numbers, from 1 on. `came` 0: it was
    there when the history began; `went` 0: it is still there.
    """

    record: Record
    came: int
    went: int = 0

    def must_be_there(self, promised: int) -> bool:
        """One whose copy is elsewhere may have been taken out by recovery."""
        return not self.went and self.came <= promised and self.record.moved_to is None

    def must_be_gone(self, promised: int) -> bool:
        return 0 < self.went <= promised


def reader_fits(model: QueueModel, found: list[bytes], promised: int, *, may_have_holes: bool) -> list[Fit]:
    """What was found as a state of a reader's: with as many facts as there may be, and with as few; nothing if it is
    none. Items stand in the order in which they came, also those that were open or handed back.

    `may_have_holes`: the end of a segment may be lost, and the beginning of the next there.
    """
    entries = _entries(model)
    fits: list[Fit] = []
    for chosen in _choices(entries, found, promised, may_have_holes):
        came = [] if may_have_holes else [entry.came for entry in chosen]
        fewest = max([promised, *came])
        stayed, left = _moved(entries, chosen, fewest)
        records = [entry.record for entry in chosen]
        fits += [Fit(count, stayed, left, records) for count in (len(model.facts), fewest)]
    return fits


Moved = list[tuple[Record, Move]]


def _moved(entries: list[Entry], chosen: list[Entry], fewest: int) -> tuple[Moved, Moved]:
    """Of the items with a copy in another queue those that are still here, and those that are not."""
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
    there = {id(entry.record): entry for entry in entries}
    state = State(list(model.base), {})
    for number, fact in enumerate(model.facts, 1):
        record = state.apply(fact)
        if fact.verb is Verb.ADD or fact.verb is Verb.PASS:
            assert record is not None
            entry = Entry(record, number, number if fact.verb is Verb.PASS else 0)
            entries.append(entry)
            there[id(record)] = entry
        elif fact.verb is Verb.REMOVE or fact.verb is Verb.CONFIRM:
            there[id(record)].went = number
        elif fact.verb is Verb.END:
            for entry in entries:
                entry.went = entry.went or number
    return entries


def _choices(entries: list[Entry], found: list[bytes], promised: int, may_have_holes: bool) -> list[list[Entry]]:
    """Those that make up `found`, in their order. There can be several: an item may have left and come back."""
    # By how much of `found` is explained, and whether an item is missing behind which nothing may be there.
    ways: dict[tuple[int, bool], list[Entry]] = {(0, False): []}
    for entry in entries:
        further: dict[tuple[int, bool], list[Entry]] = {}
        for (at, is_cut), chosen in ways.items():
            fits = at < len(found) and not is_cut and entry.record.data == found[at]
            if fits and not entry.must_be_gone(promised):
                further[at + 1, False] = [*chosen, entry]
            if not entry.must_be_there(promised):
                further.setdefault((at, is_cut or not (entry.went or entry.record.moved_to or may_have_holes)), chosen)
        ways = further
    return [chosen for (at, _), chosen in ways.items() if at == len(found)]
