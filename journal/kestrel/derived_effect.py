"""The summary of a segment from what the queue held at its two ends, and back: from one end and a summary to the other.

Knows marks and summaries. Refuses to know bytes and files: nothing is read for this, so sealing a file costs no more
than what is open or was handed back. effect_scan.py says the same by reading; property tests compare the two.
"""

from __future__ import annotations

from itertools import chain

from msgspec import structs

from staniel.journal.kestrel.effect import Entangled, Origin, Summary, Symbol, apply, merge
from staniel.journal.kestrel.segments import Place, Segment, Snapshot, note_places
from staniel.queues.checkpoint import Known, Mark
from staniel.queues.item import Item, Taken

NO_TIDE = 0  # ids of items are kept as they are, so nobody has to compute them from add times


def effect_of(segment: Segment) -> Summary | None:
    """What a sealed segment does to its queue. None: the marks do not tell (see Mark.is_plain)."""
    mark, entry = segment.mark, segment.entry
    if mark is None or segment.is_damaged or not (mark.is_plain and entry.is_plain):
        return None
    between = derive(entry, mark, segment.entered, segment.counter)
    return between if segment.snapshot is None else merge(segment.snapshot.effect, between)


def derive(entry: Mark, mark: Mark, entered: int, counter: int) -> Summary:
    """What happened between two marks of a queue. `entered`, `counter`: the last transaction id at each."""
    origins = {seq: (Symbol(Origin.LINE, at), known) for at, (seq, known) in enumerate(_heads(entry))}
    opened = {xid: (seq, known) for xid, seq, known in _open(entry)}
    origins |= {seq: (Symbol(Origin.OPEN, xid), known) for xid, (seq, known) in opened.items()}
    ahead = len(entry.heads) - entry.left

    def symbol(seq: int, known: Known) -> Symbol:
        base, (_, before) = origins.get(seq, (Symbol(Origin.LINE, ahead + seq), (0, 0)))
        return Symbol(base.origin, base.number, max(0, known[1] - before))

    heads, kept = list(_heads(mark)), _untouched(entry, mark)
    opens = {xid: (seq, known) for xid, seq, known in _open(mark)}
    return Summary(
        taken=len(entry.heads) - kept + mark.left - entry.left,
        front=[symbol(seq, known) for seq, known in heads[: len(heads) - kept]],
        opens={xid: symbol(*item) for xid, item in opens.items() if opened.get(xid) != item},
        closed=frozenset(xid for xid, item in opened.items() if opens.get(xid) != item),
        added=mark.end - entry.end,
        added_bytes=mark.came_bytes - entry.came_bytes,
        added_mortal=mark.came_mortal - entry.came_mortal,
        tide=NO_TIDE,
        counter=counter,
        entered=entered,
        line=entry.length,
    )


def snapshot_of(mark: Mark, opened: list[Item], heads: list[Item], counter: int) -> Snapshot:
    """How a file begins that holds the state at `mark`: `opened` in the order of their xids, then `heads`, then the
    fresh items, whose payload is not counted yet. `counter`: the last transaction id as a reader then knows it.
    """
    lead = [*opened, *heads]
    lead_bytes = sum([len(item.data) for item in lead])
    lead_mortal = sum([item.expires_ms != 0 for item in lead])
    effect = Summary(
        taken=len(lead),
        front=[Symbol(Origin.LINE, len(opened) + at) for at in range(len(heads))],
        opens={xid: Symbol(Origin.LINE, at, 1) for at, xid in enumerate(sorted(xid for xid, _ in mark.open))},
        added=len(lead) + mark.end - mark.left,
        added_bytes=lead_bytes,
        added_mortal=lead_mortal,
        tide=NO_TIDE,
        counter=counter,
        line=0,
    )
    return Snapshot(effect, len(lead), lead_bytes, lead_mortal)


def with_rest(snapshot: Snapshot, rest: tuple[int, int]) -> Snapshot:
    """The same, with the payload of the fresh items added: (bytes, how many have an expiry)."""
    effect = snapshot.effect
    effect = structs.replace(
        effect, added_bytes=effect.added_bytes + rest[0], added_mortal=effect.added_mortal + rest[1]
    )
    return structs.replace(snapshot, effect=effect)


def rewritten(
    name: str, mark: Mark, counter: int, open_reads: dict[int, Taken], items: list[Item], records: list[bytes]
) -> Segment:
    """A file that holds the state at `mark` and nothing else, in `records`. `items`: the whole line."""
    heads, fresh = items[: len(mark.heads)], items[len(mark.heads) :]
    rest = sum([len(item.data) for item in fresh]), sum([item.expires_ms != 0 for item in fresh])
    snapshot = snapshot_of(mark, [open_reads[xid].item for xid in sorted(open_reads)], heads, counter)
    behind = records[len(records) - len(fresh) :]
    size = sum(map(len, records))
    came = mark.came_bytes, mark.came_mortal
    origin = Place(size - sum(map(len, behind)), mark.left, came[0] - rest[0], came[1] - rest[1])
    segment = Segment(name, 0, origin, size, entry=mark, entered=counter, mark=mark, counter=counter)
    segment.snapshot = with_rest(snapshot, rest)
    note_places(segment, behind, Place(size, mark.end, *came))
    return segment


def follow(
    mark: Mark, counter: int, effect: Summary, last_id: int, opens: dict[int, Known], heads: list[Known]
) -> Mark:
    """What the queue holds after `effect`, if it held `mark` before and `counter` was the last transaction id.

    `last_id`, `opens` (by xid) and `heads`: what is known afterwards. Raises Entangled where that cannot be.
    """
    if effect.line not in (None, mark.length) or effect.need > mark.length:
        raise Entangled(f"{effect.line} items are expected in the line, {mark.length} are there")
    if effect.entered not in (None, counter):
        raise Entangled(f"transaction ids go on from {effect.entered}, not from {counter}")
    if not mark.is_plain or effect.listed or effect.named:
        raise Entangled("items with a transaction id of their own")
    before = dict(mark.open)
    front, left = _front(mark, before, effect, len(heads))
    end = mark.end + effect.added
    opened = {xid: seq for xid, seq in before.items() if xid not in effect.closed}
    opened |= {xid: _seq(mark, before, symbol) for xid, symbol in effect.opens.items()}
    known = all(0 <= seq < end for seq in chain(front, opened.values()))
    if left > end or not known or len(front) != len(heads) or opened.keys() != opens.keys():
        raise Entangled("what is known afterwards does not fit")
    return Mark(
        left,
        end,
        tuple(opened.items()),
        tuple(front),
        last_id,
        mark.came_bytes + effect.added_bytes,
        mark.came_mortal + effect.added_mortal,
        tuple(chain((opens[xid] for xid in opened), heads)),
    )


def mark_of(whole: Summary) -> Mark:
    """What a queue holds after `whole`, which began with an empty one. What is `known` of items is not among it. Raises
    Entangled.
    """
    state = apply(whole)
    outside = [*state.opens.values(), *state.front]
    return Mark(
        state.taken,
        state.added,
        tuple((xid, symbol.number) for xid, symbol in state.opens.items()),
        tuple(symbol.number for symbol in state.front),
        came_bytes=whole.added_bytes,
        came_mortal=whole.added_mortal,
        is_plain=not state.named and all(symbol.origin is Origin.LINE for symbol in outside),
    )


def whole_at(mark: Mark, counter: int, listed: int = 0) -> Summary:
    """The summary that makes a new, empty queue what it is at `mark`. Its tide is the least that gives the next item an
    id above `mark.last_id`, and deliveries count from the beginning. `listed`: as in a Summary.
    """
    return Summary(
        taken=mark.left,
        front=[Symbol(Origin.LINE, seq, deliveries) for seq, (_, deliveries) in _heads(mark)],
        opens={xid: Symbol(Origin.LINE, seq, deliveries) for xid, seq, (_, deliveries) in _open(mark)},
        added=mark.end,
        added_bytes=mark.came_bytes,
        added_mortal=mark.came_mortal,
        tide=mark.last_id - mark.left + 1,
        listed=listed,
        counter=counter,
        line=0,
    )


def _front(mark: Mark, opened: dict[int, int], effect: Summary, count: int) -> tuple[list[int], int]:
    """The seqs before the fresh items afterwards, and the first fresh seq. `count`: how many there must be: a reader
    of a rewritten file counts as fresh what had been handed back before.
    """
    heads = len(mark.heads)
    front = [_seq(mark, opened, symbol) for symbol in effect.front] + list(mark.heads[effect.taken :])
    left = mark.left + max(0, effect.taken - heads)
    more = max(0, count - len(front))
    return front + list(range(left, left + more)), left + more


def _seq(mark: Mark, opened: dict[int, int], symbol: Symbol) -> int:
    if symbol.origin is Origin.OPEN:
        if symbol.number not in opened:
            raise Entangled(f"open read {symbol.number} is not there")
        return opened[symbol.number]
    if symbol.number < len(mark.heads):
        return mark.heads[symbol.number]
    return mark.left + symbol.number - len(mark.heads)


def _open(mark: Mark) -> list[tuple[int, int, Known]]:
    return [(xid, seq, known) for (xid, seq), known in zip(mark.open, mark.known, strict=False)]


def _heads(mark: Mark) -> list[tuple[int, Known]]:
    return list(zip(mark.heads, mark.known[len(mark.open) :], strict=True))


def _untouched(entry: Mark, mark: Mark) -> int:
    """How many of the heads have not been touched in between: the last ones, and only if nothing behind them left."""
    count = 0
    if mark.left == entry.left:
        before, after = _heads(entry), _heads(mark)
        while count < min(len(before), len(after)) and before[-1 - count] == after[-1 - count]:
            count += 1
    return count
