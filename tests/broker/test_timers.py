"""Deadlines beside a sorted list: never early, at most one slot late, in the order of the moments."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from staniel.broker.timers import NEVER_MS, SLOT_MS, WORK_A_RING, Deadlines

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 5), st.integers(0, 60)),
        st.tuples(st.just("drop"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("pass"), st.just(0), st.integers(0, 30)),
    ),
    max_size=60,
)


class Owner:
    def __init__(self) -> None:
        self.rung: list[int] = []

    def due(self, now_ms: int) -> None:
        self.rung.append(now_ms)


@given(STEPS)
@settings(max_examples=300, deadline=None)
def test_nobody_is_told_early_late_twice_or_after_dropping_out(steps: list[tuple[str, int, int]]) -> None:
    deadlines, owners = Deadlines(), [Owner() for _ in range(6)]
    moments: dict[int, int] = {}
    now_ms = 1000
    for verb, who, ms in steps:
        if verb == "set":
            deadlines.set(owners[who], now_ms + ms)
            moments[who] = now_ms + ms
        elif verb == "drop":
            deadlines.drop(owners[who])
            moments.pop(who, None)
        else:
            now_ms += ms
            counts = [len(owner.rung) for owner in owners]
            deadlines.ring(now_ms)
            rung = [who for who, owner in enumerate(owners) if len(owner.rung) > counts[who]]
            assert all(len(owners[who].rung) == counts[who] + 1 for who in rung)
            assert all(moments[who] <= now_ms for who in rung)
            for each in rung:
                del moments[each]
            assert all(moment > now_ms - SLOT_MS for moment in moments.values())
        assert len(deadlines) == len(moments)
        first = min(moments.values(), default=None)
        if first is None:
            assert deadlines.next_ms() == NEVER_MS
        else:
            assert first < deadlines.next_ms() <= first + SLOT_MS


@given(st.lists(st.integers(0, 500), min_size=1, max_size=40))
def test_they_are_told_in_the_order_of_their_moments(moments: list[int]) -> None:
    deadlines, told = Deadlines(), []

    class Named:
        def __init__(self, moment: int) -> None:
            self.moment = moment

        def due(self, now_ms: int) -> None:
            told.append(self.moment // SLOT_MS)

    for moment in moments:
        deadlines.set(Named(moment), moment)
    deadlines.ring(1000)
    assert told == sorted(moment // SLOT_MS for moment in moments)


def test_one_that_is_told_may_drop_the_others_of_its_slot_or_set_itself_again() -> None:
    deadlines = Deadlines()
    late = Owner()

    class Again(Owner):
        def due(self, now_ms: int) -> None:
            super().due(now_ms)
            deadlines.set(self, now_ms + 100)

    again = Again()
    deadlines.set(again, 16)
    deadlines.set(late, 1000)
    deadlines.ring(24)
    assert again.rung == [24] and late.rung == [] and len(deadlines) == 2
    deadlines.ring(24)
    assert again.rung == [24]
    deadlines.ring(200)
    assert again.rung == [24, 200]


def test_one_that_drops_a_neighbour_of_its_slot_while_it_is_told_is_obeyed() -> None:
    deadlines, neighbour = Deadlines(), Owner()

    class Dropping(Owner):
        def due(self, now_ms: int) -> None:
            deadlines.drop(neighbour)

    deadlines.set(Dropping(), 16)
    deadlines.set(neighbour, 16)
    deadlines.ring(24)
    assert neighbour.rung == [] and len(deadlines) == 0


def test_a_slot_that_everybody_has_left_wakes_nobody() -> None:
    deadlines, owner = Deadlines(), Owner()
    for moment in range(0, 10_000, 50):
        deadlines.set(owner, moment)
    assert len(deadlines) == 1 and deadlines.next_ms() > 9_950
    deadlines.drop(owner)
    deadlines.drop(owner)
    assert deadlines.next_ms() == NEVER_MS


def test_what_dropped_waits_leave_behind_a_long_one_is_bounded() -> None:
    deadlines, long = Deadlines(), Owner()
    deadlines.set(long, 3_600_000)
    for moment in range(0, 4_000_000, SLOT_MS):
        owner = Owner()
        deadlines.set(owner, 4_000_000 + moment)
        deadlines.drop(owner)
    assert deadlines.slots < 100
    deadlines.ring(3_700_000)
    assert len(long.rung) == 1 and len(deadlines) == 0 and deadlines.next_ms() == NEVER_MS


def test_a_slot_that_is_emptied_and_filled_again_still_rings_once() -> None:
    deadlines, first, again = Deadlines(), Owner(), Owner()
    deadlines.set(first, 1000)
    for moment in range(10_000, 20_000, SLOT_MS):
        owner = Owner()
        deadlines.set(owner, moment)
        deadlines.drop(owner)
        deadlines.set(again, 10_000)
        deadlines.drop(again)
    deadlines.set(again, 10_000)
    deadlines.ring(9_999)
    assert len(first.rung) == 1 and again.rung == []
    deadlines.ring(30_000)
    assert again.rung == [30_000] and deadlines.next_ms() == NEVER_MS


def test_behind_a_turns_work_the_others_are_told_in_the_next_turn_and_nobody_before_them() -> None:
    deadlines, rung = Deadlines(), list[str]()

    class Worker:
        def __init__(self, name: str) -> None:
            self.name = name

        def due(self, now_ms: int) -> int:
            rung.append(self.name)
            if self.name.isupper():
                deadlines.set(self, now_ms)
                return WORK_A_RING
            return 0

    owners = [Worker(name) for name in "AbCd"]
    for at_ms, owner in enumerate(owners):
        deadlines.set(owner, 1000 + at_ms // 2 * SLOT_MS)
    seen = []
    for now_ms in (2000, 2001, 2002):
        deadlines.ring(now_ms)
        seen.append("".join(rung))
        assert (deadlines.next_ms() <= now_ms) is (now_ms < 2002)
    assert seen == ["A", "AbC", "AbCd"]
    deadlines.ring(2000 + 2 * SLOT_MS)
    assert "".join(rung) == "AbCdA"


def test_those_who_ask_for_every_turn_leave_the_others_theirs() -> None:
    deadlines, other, turns = Deadlines(), Owner(), list[int]()

    class Eager:
        def due(self, now_ms: int) -> int:
            deadlines.soon(self)
            turns.append(now_ms)
            return WORK_A_RING // 4

    for _ in range(8):
        deadlines.soon(Eager())
    deadlines.set(other, 16)
    deadlines.ring(24)
    assert other.rung == [24] and turns == [24, 24]
    for now_ms in range(32, 56, 8):
        deadlines.ring(now_ms)
    assert len(turns) == 8
