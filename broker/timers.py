"""Timers: one moment for each owner. A timer may fire a few milliseconds late, but never early.

Thousands of waits begin and end every second and few ever time out, so setting and dropping a timer costs one
dictionary entry; a heap alone would keep every dropped timer until its time. Slots without an owner are removed once
they outnumber the owners, so that memory follows the number of owners.

An owner with much to do takes a share of the turn by `clock`, and asks for the next turn with `soon`.
"""

from __future__ import annotations

import heapq

from staniel.broker.share import StepClock
from staniel.queues.interfaces import TimerOwner

SLOT_MS = 8  # the moments within one slot come due together, at its end
NEVER_MS = 2**63 - 1
WORK_PER_TURN = 20_000  # in dropped items, 0.2 us each; the other owners that are due are called in the next turn
SOON_WORK_PER_TURN = WORK_PER_TURN // 2  # owners that call `soon` every turn leave the others their share
TIMER_COST = 5  # the same as several dropped entries: an owner that does little may return no figure
SLOTS_SPARE = 64  # beyond two an owner; if there are more, slots without an owner are removed


class Timers:
    """The timers of all owners, one moment for each."""

    def __init__(self) -> None:
        self.clock = StepClock()
        self._slots: dict[int, dict[TimerOwner, None]] = {}
        self._heap: list[int] = []
        self._slot_of: dict[TimerOwner, int] = {}
        self._soon: dict[TimerOwner, None] = {}
        self.due_ms = NEVER_MS  # `fire` has nothing to do before

    def __len__(self) -> int:
        return len(self._slot_of)

    def set(self, owner: TimerOwner, at_ms: int) -> None:
        """Call `owner.on_timer` at `at_ms`, instead of at any moment set before."""
        slot = at_ms // SLOT_MS + 1
        before = self._slot_of.get(owner)
        if before is not None:
            del self._slots[before][owner]
        self._slot_of[owner] = slot
        owners = self._slots.get(slot)
        if owners is None:
            self._slots[slot] = {owner: None}
            heapq.heappush(self._heap, slot)
            if slot * SLOT_MS < self.due_ms:
                self.due_ms = slot * SLOT_MS
            if len(self._heap) > 2 * len(self._slot_of) + SLOTS_SPARE:
                self._clear_away()
        else:
            owners[owner] = None

    def soon(self, owner: TimerOwner) -> None:
        """Call `owner.on_timer` once, in this turn or the next, in addition to the moment that is set."""
        self._soon[owner] = None
        self.due_ms = 0

    def drop(self, owner: TimerOwner) -> None:
        """Cancel the timer of `owner`, if it has one."""
        slot = self._slot_of.pop(owner, None)
        if slot is not None:
            del self._slots[slot][owner]

    def _clear_away(self) -> None:
        """Remove the slots without an owner. When this is called, at least half have none."""
        self._slots = {slot: owners for slot, owners in self._slots.items() if owners}
        self._heap = list(self._slots)
        heapq.heapify(self._heap)

    def is_behind(self, now_ms: int) -> bool:
        """Tell whether there are due owners that have not been called."""
        return self._next_slot_ms() <= now_ms

    def next_ms(self) -> int:
        """Return when `fire` has something to do; NEVER_MS: never, unless a timer is set."""
        return 0 if self._soon else self._next_slot_ms()

    def _next_slot_ms(self) -> int:
        heap = self._heap
        while heap:
            if self._slots[heap[0]]:
                return heap[0] * SLOT_MS
            del self._slots[heapq.heappop(heap)]
        return NEVER_MS

    def fire(self, now_ms: int) -> None:
        """Call the due owners in the order of their moments, until a turn's work is done."""
        work = self._fire_soon(now_ms) if self._soon else 0
        may_go_on = True  # at least one owner is called, however much work the owners of `soon` have done
        while may_go_on and self._next_slot_ms() <= now_ms:
            owners = self._slots[self._heap[0]]
            for owner in list(owners):
                if owner in owners:  # a called owner may drop another
                    self.drop(owner)
                    work += owner.on_timer(now_ms) or TIMER_COST
                    if work >= WORK_PER_TURN:
                        may_go_on = False
                        break
        self.due_ms = self.next_ms()

    def _fire_soon(self, now_ms: int) -> int:
        """Call the owners of `soon`. Those that call `soon` again meanwhile come after the others."""
        work = 0
        for owner in list(self._soon):
            del self._soon[owner]
            work += owner.on_timer(now_ms) or TIMER_COST
            if work >= SOON_WORK_PER_TURN:
                break
        return work
