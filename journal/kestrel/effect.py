"""The effect of a part of a queue's journal on any queue: a small value, and a function that merges two of them.

`merge` is associative, so the effects of a queue's segments can be computed anywhere, in any order, and folded in a
tree. pipeline/formats/kestrel/effect_scan.py computes them from records. Source: bicyclic monoid of a queue; symbolic
execution of a fold as in SYMPLE (SOSP 2015).
"""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct, field

from staniel.journal.interval_set import IntervalSet
from staniel.queues.item import ID_SHIFT

ID_FLOOR_MIN = -(1 << 80)  # below every id that an add time of 64 bits can make
Span = tuple[int, int]


class EffectMismatch(Exception):
    """The error for two effects of which the second assumes something that contradicts the first. Scan the second's
    file again from the known state.
    """


class Origin(IntEnum):
    """The source of an item in an effect."""

    LINE = 0  # the number counts along the incoming line followed by the items that the segment added
    OPEN = 1  # the number is the item's xid; it was open when the segment began
    LISTED = 2  # the number counts the items in lists of opcode 8, which never stood in the line


class Symbol(Struct, frozen=True, gc=False, array_like=True):
    """An item without its bytes. `deliveries` counts how often it was opened within the segment."""

    origin: Origin
    number: int
    deliveries: int = 0


class SegmentEffect(Struct, frozen=True, array_like=True):
    """The effect of a segment. Its size grows with the open and returned items, never with the records.

    `taken` items of (incoming line + added items) left the line. `front` stands before the rest of them, head first.
    `opens`: reads open at the end, by xid. `closed`: xids that were open at the beginning and are not open any more, or
    were never open. `added`, `added_bytes`, `added_expiring`: the items added, their payload, how many have an expiry.
    `id_floor`: the largest (add time << 16) - n over the n-th added item. `listed`: how many items opcode 8 brought.
    `counter`: the last xid given at the end; None: the segment did not touch it.

    The assumptions: `entered`: the counter at the beginning (None: any). `need`: at least so many items in the incoming
    line. `line`: exactly so many (None: any number). `absent`: spans of xids not open at the beginning. `numbered`: no
    reserve without an xid met an incoming item that has its own. `present`: xids that were open at the beginning.
    `named`: the xids of added items that have their own.
    """

    taken: int = 0
    front: list[Symbol] = field(default_factory=list)
    opens: dict[int, Symbol] = field(default_factory=dict)
    closed: frozenset[int] = frozenset()
    added: int = 0
    added_bytes: int = 0
    added_expiring: int = 0
    id_floor: int = ID_FLOOR_MIN
    listed: int = 0
    counter: int | None = None
    entered: int | None = None
    need: int = 0
    line: int | None = None
    absent: list[Span] = field(default_factory=list)
    numbered: bool = False
    named: dict[int, int] = field(default_factory=dict)
    present: frozenset[int] = frozenset()

    @property
    def net_items(self) -> int:
        """The number of items by which the line is longer at the end."""
        return len(self.front) + self.added - self.taken


NOTHING = SegmentEffect()


class State(Struct, frozen=True):
    """A queue after an effect that began with an empty one. Items are numbers, in the order of adding, from 0.

    The line, head first: `front`, then the items `taken` to `added` - 1. The last id given is not included, because it
    depends on the add times of the items before `taken`.
    """

    front: list[Symbol]
    opens: dict[int, Symbol]
    taken: int
    added: int
    listed: int
    counter: int
    named: dict[int, int]

    @property
    def items(self) -> int:
        """The number of items in the line."""
        return len(self.front) + self.added - self.taken


def merge(first: SegmentEffect, second: SegmentEffect) -> SegmentEffect:
    """Return the effect of two neighbouring segments together. Raises EffectMismatch if `second` assumes what `first`
    contradicts.
    """
    _agree(first, second)
    front = first.front
    used = min(second.taken, len(front))
    opens = {xid: symbol for xid, symbol in first.opens.items() if xid not in second.closed}
    opens.update((xid, _through(first, symbol)) for xid, symbol in second.opens.items())
    need = second.need - first.net_items
    return SegmentEffect(
        taken=first.taken + second.taken - used,
        front=[_through(first, symbol) for symbol in second.front] + front[used:],
        opens=opens,
        closed=first.closed | (second.closed - first.opens.keys()),
        added=first.added + second.added,
        added_bytes=first.added_bytes + second.added_bytes,
        added_expiring=first.added_expiring + second.added_expiring,
        id_floor=max(first.id_floor, second.id_floor - first.added),
        listed=first.listed + second.listed,
        counter=first.counter if second.counter is None else second.counter,
        entered=second.entered if first.entered is None and first.counter is None else first.entered,
        need=max(first.need, need),
        line=second.line - first.net_items if first.line is None and second.line is not None else first.line,
        absent=_absent(first, second),
        numbered=first.numbered or second.numbered,
        present=first.present | (second.present - first.opens.keys()),
        named=first.named | {first.added + number: xid for number, xid in second.named.items()},
    )


def apply(effect: SegmentEffect) -> State:
    """Return a new queue after the segment. Raises EffectMismatch if the segment needs more than an empty queue."""
    if effect.need > 0 or effect.line:
        raise EffectMismatch(f"the first segment takes {effect.need or effect.line} items that were never added")
    if effect.entered:
        raise EffectMismatch(f"the first segment goes on from the transaction id {effect.entered}")
    if effect.present:
        raise EffectMismatch(f"the first segment gives back the open reads {sorted(effect.present)}")
    for symbol in [*effect.front, *effect.opens.values()]:
        if symbol.origin is Origin.OPEN:
            raise EffectMismatch(f"the first segment knows of an open read {symbol.number}")
    return State(
        front=effect.front,
        opens=effect.opens,
        taken=effect.taken,
        added=effect.added,
        listed=effect.listed,
        counter=effect.counter or 0,
        named={number: xid for number, xid in effect.named.items() if number >= effect.taken},
    )


def id_floor_of(added_ms: int, number: int) -> int:
    """Return what the `number`-th added item contributes to an id floor."""
    return (added_ms << ID_SHIFT) - number


def _absent(first: SegmentEffect, second: SegmentEffect) -> list[Span]:
    """Return the transaction ids that were not open when the two segments began."""
    absent = IntervalSet.from_intervals(second.absent)
    for xid in first.closed:
        absent.discard(xid)
    for low, high in first.absent:
        absent.add_interval(low, high)
    return absent.intervals()


def _through(first: SegmentEffect, symbol: Symbol) -> Symbol:
    """Return a symbol of the segment after `first`, in terms of the state before `first`."""
    if symbol.origin is Origin.LISTED:
        return Symbol(Origin.LISTED, first.listed + symbol.number, symbol.deliveries)
    if symbol.origin is Origin.OPEN:
        base = first.opens.get(symbol.number)
        if base is None:
            return symbol
    elif symbol.number < len(first.front):
        base = first.front[symbol.number]
    else:
        return Symbol(Origin.LINE, first.taken + symbol.number - len(first.front), symbol.deliveries)
    return Symbol(base.origin, base.number, base.deliveries + symbol.deliveries)


def _agree(first: SegmentEffect, second: SegmentEffect) -> None:
    if second.entered is not None:
        given = first.counter if first.counter is not None else first.entered
        if given is not None and given != second.entered:
            raise EffectMismatch(f"transaction ids go on from {second.entered}, the segment before ends with {given}")
    if first.line is not None:
        length = first.line + first.net_items
        if second.need > length or second.line not in (None, length):
            raise EffectMismatch(f"{second.need or second.line} items are expected in the line, {length} are there")
    elif second.line is not None and second.line < first.net_items:
        raise EffectMismatch(f"{second.line} items are expected in the line, at least {first.net_items} are there")
    if first.named and second.numbered:
        raise EffectMismatch("reserves that are numbered meet items that have their own transaction id")
    absent = IntervalSet.from_intervals(second.absent)
    for xid in first.opens:
        if xid in absent:
            raise EffectMismatch(f"transaction id {xid} is given while it is open")
    absent = IntervalSet.from_intervals(first.absent)
    for xid in second.present - first.opens.keys():
        if xid in first.closed or xid in absent:
            raise EffectMismatch(f"open read {xid} is given back, and was not there")
    for symbol in [*second.front, *second.opens.values()]:
        if symbol.origin is Origin.OPEN and symbol.number in first.closed and symbol.number not in first.opens:
            raise EffectMismatch(f"open read {symbol.number} was ended before")
