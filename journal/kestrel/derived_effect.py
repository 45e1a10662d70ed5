"""The effect of a segment, from the queue's checkpoints at its two ends; or one checkpoint from the other and the
effect.

Nothing is read for this, so sealing a file costs no more than what is open or was handed back. The pipeline's scan
(pipeline/formats/kestrel/effect_scan.py) finds the same by reading; property tests compare the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from msgspec import structs

from staniel.journal.kestrel.effect import EffectMismatch, Origin, SegmentEffect, Symbol, apply, merge
from staniel.journal.kestrel.segments import IndexEntry, LogSegment, SegmentHead, index_records
from staniel.journal.slices import Slices, sliced
from staniel.queues.checkpoint import Checkpoint, Known
from staniel.queues.item import Delivery, Item

NO_ID_FLOOR = 0  # ids of items are kept as they are, so they are not computed from add times


def effect_of(segment: LogSegment) -> Slices[SegmentEffect | None]:
    """Find the effect of a sealed segment on its queue; None if the checkpoints do not show it (see
    Checkpoint.is_plain).
    """
    checkpoint, entry = segment.checkpoint, segment.entry
    if checkpoint is None or segment.is_damaged or not (checkpoint.is_plain and entry.is_plain):
        return None
    between = yield from derive(entry, checkpoint, segment.entered, segment.counter)
    return between if segment.head is None else merge(segment.head.effect, between)


def derive(entry: Checkpoint, checkpoint: Checkpoint, entered: int, counter: int) -> Slices[SegmentEffect]:
    """Find the effect between two checkpoints of a queue. `entered`, `counter`: the last transaction id at each."""
    changed, closed = yield from _changes(entry, checkpoint)
    origins: dict[int, tuple[Symbol, Known]] = {}
    for heads_of_slice in sliced(enumerate(_heads(entry))):
        origins |= {seq: (Symbol(Origin.LINE, at), known) for at, (seq, known) in heads_of_slice}
        yield len(heads_of_slice)
    for closed_of_slice in sliced(closed.items()):
        origins |= {seq: (Symbol(Origin.OPEN, xid), known) for xid, (seq, known) in closed_of_slice}
        yield len(closed_of_slice)
    ahead = len(entry.heads) - entry.left

    def symbol(seq: int, known: Known) -> Symbol:
        base, (_, before) = origins.get(seq, (Symbol(Origin.LINE, ahead + seq), (0, 0)))
        return Symbol(base.origin, base.number, max(0, known[1] - before))

    heads, kept = _heads(checkpoint), _untouched(entry, checkpoint)
    front: list[Symbol] = []
    for new_heads in sliced(heads[: len(heads) - kept]):
        front += [symbol(seq, known) for seq, known in new_heads]
        yield len(new_heads)
    opens: dict[int, Symbol] = {}
    for changed_of_slice in sliced(changed):
        opens |= {xid: symbol(seq, known) for xid, seq, known in changed_of_slice}
        yield len(changed_of_slice)
    return SegmentEffect(
        taken=len(entry.heads) - kept + checkpoint.left - entry.left,
        front=front,
        opens=opens,
        closed=frozenset(closed),
        added=checkpoint.end - entry.end,
        added_bytes=checkpoint.added_bytes - entry.added_bytes,
        added_expiring=checkpoint.added_expiring - entry.added_expiring,
        id_floor=NO_ID_FLOOR,
        counter=counter,
        entered=entered,
        line=entry.length,
    )


def _changes(
    entry: Checkpoint, checkpoint: Checkpoint
) -> Slices[tuple[list[tuple[int, int, Known]], dict[int, tuple[int, Known]]]]:
    """Find the open reads of `checkpoint` that `entry` does not have, as (xid, seq, known), and by xid those of `entry`
    that `checkpoint` does not have. An item that is open at both under one xid, and was delivered in between, is in
    both results.
    """
    closed: dict[int, tuple[int, Known]] = {}
    for rows in sliced(_open(entry)):
        closed |= {xid: (seq, known) for xid, seq, known in rows}
        yield len(rows)
    changed: list[tuple[int, int, Known]] = []
    for rows in sliced(_open(checkpoint)):
        for row in rows:
            if closed.get(row[0]) == row[1:]:
                del closed[row[0]]
            else:
                changed.append(row)
        yield len(rows)
    return changed, closed


def head_of(checkpoint: Checkpoint, opened: list[Item], heads: list[Item], counter: int) -> SegmentHead:
    """Return the head of a file with the state at `checkpoint`: `opened` in the order of their xids, then `heads`, then
    the fresh items, whose payload is not counted yet. `counter`: the last transaction id that a reader then knows.
    """
    lead = [*opened, *heads]
    lead_bytes = sum([len(item.data) for item in lead])
    lead_expiring = sum([item.expires_ms != 0 for item in lead])
    effect = SegmentEffect(
        taken=len(lead),
        front=[Symbol(Origin.LINE, len(opened) + at) for at in range(len(heads))],
        opens={xid: Symbol(Origin.LINE, at, 1) for at, xid in enumerate(sorted(checkpoint.xids))},
        added=len(lead) + checkpoint.end - checkpoint.left,
        added_bytes=lead_bytes,
        added_expiring=lead_expiring,
        id_floor=NO_ID_FLOOR,
        counter=counter,
        line=0,
    )
    return SegmentHead(effect, len(lead), lead_bytes, lead_expiring)


def with_rest(head: SegmentHead, tail: tuple[int, int]) -> SegmentHead:
    """Return `head` with the payload of the fresh items added: (bytes, how many have an expiry)."""
    effect = head.effect
    effect = structs.replace(
        effect, added_bytes=effect.added_bytes + tail[0], added_expiring=effect.added_expiring + tail[1]
    )
    return structs.replace(head, effect=effect)


def segment_of_rewrite(
    name: str,
    checkpoint: Checkpoint,
    counter: int,
    open_reads: dict[int, Delivery],
    items: list[Item],
    records: list[bytes],
) -> LogSegment:
    """Return the segment of a file that contains only the state at `checkpoint`, in `records`. `items`: the
    whole line.
    """
    heads, fresh = items[: len(checkpoint.heads)], items[len(checkpoint.heads) :]
    tail = sum([len(item.data) for item in fresh]), sum([item.expires_ms != 0 for item in fresh])
    head = head_of(checkpoint, [open_reads[xid].item for xid in sorted(open_reads)], heads, counter)
    behind = records[len(records) - len(fresh) :]
    size = sum(map(len, records))
    totals = checkpoint.added_bytes, checkpoint.added_expiring
    origin = IndexEntry(size - sum(map(len, behind)), checkpoint.left, totals[0] - tail[0], totals[1] - tail[1])
    segment = LogSegment(
        name, 0, origin, size, entry=checkpoint, entered=counter, checkpoint=checkpoint, counter=counter
    )
    segment.head = with_rest(head, tail)
    index_records(segment, behind, IndexEntry(size, checkpoint.end, *totals))
    return segment


def follow(
    checkpoint: Checkpoint,
    counter: int,
    effect: SegmentEffect,
    last_id: int,
    opens: dict[int, Known],
    heads: list[Known],
) -> Checkpoint:
    """Return the checkpoint of the queue after `effect`, if it had `checkpoint` before and `counter` was the last
    transaction id. `last_id`, `opens` (by xid) and `heads`: what is known about the state after it. Raises
    EffectMismatch if these contradict each other.
    """
    if effect.line not in (None, checkpoint.length) or effect.need > checkpoint.length:
        raise EffectMismatch(f"{effect.line} items are expected in the line, {checkpoint.length} are there")
    if effect.entered not in (None, counter):
        raise EffectMismatch(f"transaction ids go on from {effect.entered}, not from {counter}")
    if not checkpoint.is_plain or effect.listed or effect.named:
        raise EffectMismatch("items with a transaction id of their own")
    before = checkpoint.open
    front, left = _front(checkpoint, before, effect, len(heads))
    end = checkpoint.end + effect.added
    opened = {xid: seq for xid, seq in before.items() if xid not in effect.closed}
    opened |= {xid: _seq(checkpoint, before, symbol) for xid, symbol in effect.opens.items()}
    known = all(0 <= seq < end for seq in chain(front, opened.values()))
    if left > end or not known or len(front) != len(heads) or opened.keys() != opens.keys():
        raise EffectMismatch("what is known afterwards does not fit")
    after = [*[opens[xid] for xid in opened], *heads]
    return Checkpoint(
        left,
        end,
        tuple(opened),
        tuple(opened.values()),
        tuple(front),
        last_id,
        checkpoint.added_bytes + effect.added_bytes,
        checkpoint.added_expiring + effect.added_expiring,
        tuple([known[0] for known in after]),
        tuple([known[1] for known in after]),
    )


def checkpoint_of(whole: SegmentEffect) -> Checkpoint:
    """Return the checkpoint of a queue after `whole`, which began with an empty queue. It does not include what is
    `known` of items. Raises EffectMismatch.
    """
    state = apply(whole)
    outside = [*state.opens.values(), *state.front]
    return Checkpoint(
        state.taken,
        state.added,
        tuple(state.opens),
        tuple([symbol.number for symbol in state.opens.values()]),
        tuple(symbol.number for symbol in state.front),
        added_bytes=whole.added_bytes,
        added_expiring=whole.added_expiring,
        is_plain=not state.named and all(symbol.origin is Origin.LINE for symbol in outside),
    )


def effect_of_state(checkpoint: Checkpoint, counter: int, listed: int = 0) -> SegmentEffect:
    """Return the effect that turns a new, empty queue into the one at `checkpoint`. Its id floor is the least that
    gives the next item an id above `checkpoint.last_id`, and deliveries count from the beginning. `listed`: as in a
    SegmentEffect.
    """
    return SegmentEffect(
        taken=checkpoint.left,
        front=[Symbol(Origin.LINE, seq, deliveries) for seq, (_, deliveries) in _heads(checkpoint)],
        opens={xid: Symbol(Origin.LINE, seq, deliveries) for xid, seq, (_, deliveries) in _open(checkpoint)},
        added=checkpoint.end,
        added_bytes=checkpoint.added_bytes,
        added_expiring=checkpoint.added_expiring,
        id_floor=checkpoint.last_id - checkpoint.left + 1,
        listed=listed,
        counter=counter,
        line=0,
    )


def _front(checkpoint: Checkpoint, opened: dict[int, int], effect: SegmentEffect, count: int) -> tuple[list[int], int]:
    """Return the seqs of the items before the fresh ones after `effect`, and the first fresh seq. `count`: how many
    items there must be before the fresh ones; a reader of a rewritten file counts items as fresh that had been returned
    before.
    """
    heads = len(checkpoint.heads)
    front = [_seq(checkpoint, opened, symbol) for symbol in effect.front] + list(checkpoint.heads[effect.taken :])
    left = checkpoint.left + max(0, effect.taken - heads)
    more = max(0, count - len(front))
    return front + list(range(left, left + more)), left + more


def _seq(checkpoint: Checkpoint, opened: dict[int, int], symbol: Symbol) -> int:
    if symbol.origin is Origin.OPEN:
        if symbol.number not in opened:
            raise EffectMismatch(f"open read {symbol.number} is not there")
        return opened[symbol.number]
    if symbol.number < len(checkpoint.heads):
        return checkpoint.heads[symbol.number]
    return checkpoint.left + symbol.number - len(checkpoint.heads)


def _open(checkpoint: Checkpoint) -> Iterator[tuple[int, int, Known]]:
    known = zip(checkpoint.ids, checkpoint.deliveries, strict=True)
    return zip(checkpoint.xids, checkpoint.open_seqs, known, strict=False)


def _heads(checkpoint: Checkpoint) -> list[tuple[int, Known]]:
    count = len(checkpoint.xids)
    known = zip(checkpoint.ids[count:], checkpoint.deliveries[count:], strict=True)
    return list(zip(checkpoint.heads, known, strict=True))


def _untouched(entry: Checkpoint, checkpoint: Checkpoint) -> int:
    """Return how many of the heads are the same at both checkpoints. These are the last ones. If an item after them
    left the line, there are none.
    """
    count = 0
    if checkpoint.left == entry.left:
        before, after = _heads(entry), _heads(checkpoint)
        while count < min(len(before), len(after)) and before[-1 - count] == after[-1 - count]:
            count += 1
    return count
