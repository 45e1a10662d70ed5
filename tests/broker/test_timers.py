"""Deadlines beside a sorted list: never early, at most one slot late, in the order of the moments."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from staniel.broker.timers import NEVER_MS, SLOT_MS, WORK_PER_TURN, Timers

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

    def on_timer(self, now_ms: int) -> None:
        self.rung.append(now_ms)


@given(STEPS)
@settings(max_examples=300, deadline=None)
def test_nobody_is_told_early_late_twice_or_after_dropping_out(steps: list[tuple[str, int, int]]) -> None:
    timers, owners = Timers(), [Owner() for _ in range(6)]
    moments: dict[int, int] = {}
    now_ms = 1000
    for verb, who, ms in steps:
        if verb == "set":
            timers.set(owners[who], now_ms + ms)
            moments[who] = now_ms + ms
        elif verb == "drop":
            timers.drop(owners[who])
            moments.pop(who, None)
        else:
            now_ms += ms
            counts = [len(owner.rung) for owner in owners]
            timers.fire(now_ms)
            rung = [who for who, owner in enumerate(owners) if len(owner.rung) > counts[who]]
            assert all(len(owners[who].rung) == counts[who] + 1 for who in rung)
            assert all(moments[who] <= now_ms for who in rung)
            for each in rung:
                del moments[each]
            assert all(moment > now_ms - SLOT_MS for moment in moments.values())
        assert len(timers) == len(moments)
        first = min(moments.values(), default=None)
        if first is None:
            assert timers.next_ms() == NEVER_MS
        else:
            assert first < timers.next_ms() <= first + SLOT_MS


@given(st.lists(st.integers(0, 500), min_size=1, max_size=40))
def test_they_are_told_in_the_order_of_their_moments(moments: list[int]) -> None:
    timers, told = Timers(), []

    class Named:
        def __init__(self, moment: int) -> None:
            self.moment = moment

        def on_timer(self, now_ms: int) -> None:
            told.append(self.moment // SLOT_MS)

    for moment in moments:
        timers.set(Named(moment), moment)
    timers.fire(1000)
    assert told == sorted(moment // SLOT_MS for moment in moments)


def test_one_that_is_told_may_drop_the_others_of_its_slot_or_set_itself_again() -> None:
    timers = Timers()
    late = Owner()

    class Again(Owner):
        def on_timer(self, now_ms: int) -> None:
            super().on_timer(now_ms)
            timers.set(self, now_ms + 100)

    again = Again()
    timers.set(again, 16)
    timers.set(late, 1000)
    timers.fire(24)
    assert again.rung == [24] and late.rung == [] and len(timers) == 2
    timers.fire(24)
    assert again.rung == [24]
    timers.fire(200)
    assert again.rung == [24, 200]


def test_one_that_drops_a_neighbour_of_its_slot_while_it_is_told_is_obeyed() -> None:
    timers, neighbour = Timers(), Owner()

    class Dropping(Owner):
        def on_timer(self, now_ms: int) -> None:
            timers.drop(neighbour)

    timers.set(Dropping(), 16)
    timers.set(neighbour, 16)
    timers.fire(24)
    assert neighbour.rung == [] and len(timers) == 0


def test_a_slot_that_everybody_has_left_wakes_nobody() -> None:
    timers, owner = Timers(), Owner()
    for moment in range(0, 10_000, 50):
        timers.set(owner, moment)
    assert len(timers) == 1 and timers.next_ms() > 9_950
    timers.drop(owner)
    timers.drop(owner)
    assert timers.next_ms() == NEVER_MS


def test_what_dropped_waits_leave_behind_a_long_one_is_bounded() -> None:
    timers, long = Timers(), Owner()
    timers.set(long, 3_600_000)
    for moment in range(0, 4_000_000, SLOT_MS):
        owner = Owner()
        timers.set(owner, 4_000_000 + moment)
        timers.drop(owner)
    assert len(timers._heap) < 100
    timers.fire(3_700_000)
    assert len(long.rung) == 1 and len(timers) == 0 and timers.next_ms() == NEVER_MS


def test_a_slot_that_is_emptied_and_filled_again_still_rings_once() -> None:
    timers, first, again = Timers(), Owner(), Owner()
    timers.set(first, 1000)
    for moment in range(10_000, 20_000, SLOT_MS):
        owner = Owner()
        timers.set(owner, moment)
        timers.drop(owner)
        timers.set(again, 10_000)
        timers.drop(again)
    timers.set(again, 10_000)
    timers.fire(9_999)
    assert len(first.rung) == 1 and again.rung == []
    timers.fire(30_000)
    assert again.rung == [30_000] and timers.next_ms() == NEVER_MS


def test_behind_a_turns_work_the_others_are_told_in_the_next_turn_and_nobody_before_them() -> None:
    timers, rung = Timers(), list[str]()

    class Worker:
        def __init__(self, name: str) -> None:
            self.name = name

        def on_timer(self, now_ms: int) -> int:
            rung.append(self.name)
            if self.name.isupper():
                timers.set(self, now_ms)
                return WORK_PER_TURN
            return 0

    owners = [Worker(name) for name in "AbCd"]
    for at_ms, owner in enumerate(owners):
        timers.set(owner, 1000 + at_ms // 2 * SLOT_MS)
    seen = []
    for now_ms in (2000, 2001, 2002):
        timers.fire(now_ms)
        seen.append("".join(rung))
        assert (timers.next_ms() <= now_ms) is (now_ms < 2002)
    assert seen == ["A", "AbC", "AbCd"]
    timers.fire(2000 + 2 * SLOT_MS)
    assert "".join(rung) == "AbCdA"


def test_those_who_ask_for_every_turn_leave_the_others_theirs() -> None:
    timers, other, turns = Timers(), Owner(), list[int]()

    class Eager:
        def on_timer(self, now_ms: int) -> int:
            timers.soon(self)
            turns.append(now_ms)
            return WORK_PER_TURN // 4

    for _ in range(8):
        timers.soon(Eager())
    timers.set(other, 16)
    timers.fire(24)
    assert other.rung == [24] and turns == [24, 24]
    for now_ms in range(32, 56, 8):
        timers.fire(now_ms)
    assert len(turns) == 8


def test_a_turns_work_in_one_step_leaves_the_others_one_of_theirs() -> None:
    timers, others = Timers(), [Owner(), Owner()]

    class Large:
        def on_timer(self, now_ms: int) -> int:
            timers.soon(self)
            return 3 * WORK_PER_TURN

    timers.soon(Large())
    for other in others:
        timers.set(other, 16)
    timers.fire(24)
    assert [other.rung for other in others] == [[24], []]
    timers.fire(32)
    assert [other.rung for other in others] == [[24], [32]]
