"""Lives last as long as they were to last, and dates come when the wall shows them, however the wall is set."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from staniel.queues.calendar import ERAS_MAX, MARKS, MARKS_MAX, Calendar, Era, is_date, item_mark, next_mark
from staniel.queues.item import Item

NOW_MS = 1_700_000_000_123
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class Machine:
    """A wall that is set, and servers that are started again; time passes evenly. `passed_ms` is the truth."""

    def __init__(self) -> None:
        self.calendar = Calendar()
        self.server_ms = NOW_MS
        self.passed_ms = 0

    def pass_time(self, ms: int) -> None:
        self.server_ms += ms
        self.passed_ms += ms

    def set_wall(self, by_ms: int) -> None:
        last = self.calendar.eras[-1]
        here_ms = self.calendar.wall_ms(self.server_ms)
        ended = structs.replace(last, until_ms=here_ms)
        new = Era(next_mark(last.mark), last.ahead_ms + by_ms, here_ms + by_ms)
        self.calendar.set_eras([*self.calendar.eras[:-1], ended, new])

    def restart(self) -> None:
        """Server time begins with the wall."""
        ahead_ms = self.calendar.ahead_ms
        self.server_ms += ahead_ms
        eras = [structs.replace(era, ahead_ms=era.ahead_ms - ahead_ms) for era in self.calendar.eras]
        self.calendar = Calendar(eras)

    def put(self, life_ms: int) -> Item:
        wall_ms = self.calendar.wall_ms(self.server_ms)
        return Item(b"x", wall_ms, self.calendar.end_of_life(self.server_ms, life_ms))

    def put_until(self, date_ms: int) -> Item:
        return Item(b"x", self.calendar.wall_ms(self.server_ms), date_ms)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("step_ms", [8 * HOUR_MS, -8 * HOUR_MS, 400 * DAY_MS, -400 * DAY_MS, 1000, -1000])
def test_a_life_lasts_as_long_as_was_asked_for_and_a_few_milliseconds(step_ms: int, restarts: bool) -> None:
    machine = Machine()
    item = machine.put(HOUR_MS)
    machine.pass_time(HOUR_MS // 2)
    machine.set_wall(step_ms)
    if restarts:
        machine.restart()
    machine.pass_time(HOUR_MS // 2)
    assert not machine.calendar.is_over(item, machine.server_ms)
    machine.pass_time(MARKS + 1)
    assert machine.calendar.is_over(item, machine.server_ms)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("step_ms", [8 * HOUR_MS, -8 * HOUR_MS])
def test_a_date_comes_when_the_wall_shows_it(step_ms: int, restarts: bool) -> None:
    machine = Machine()
    date_ms = (NOW_MS // 1000 + 9 * 3600) * 1000
    item = machine.put_until(date_ms)
    machine.set_wall(step_ms)
    if restarts:
        machine.restart()
    machine.pass_time(date_ms - machine.calendar.wall_ms(machine.server_ms))
    assert not machine.calendar.is_over(item, machine.server_ms)
    machine.pass_time(1)
    assert machine.calendar.is_over(item, machine.server_ms)


@given(st.integers(-(10**15), 10**15), st.integers(1, MARKS_MAX), st.integers(0, 10**13))
def test_an_end_of_life_is_no_date_and_bears_its_mark(life_ms: int, mark: int, now_ms: int) -> None:
    ends_ms = Calendar([Era(mark, 0)]).end_of_life(now_ms, life_ms)
    assert ends_ms > 0 and not is_date(ends_ms) and ends_ms % MARKS == item_mark(mark)
    if life_ms > 0:
        assert 0 <= ends_ms - now_ms - life_ms < MARKS
    elif now_ms + life_ms > MARKS:
        assert -MARKS < ends_ms - now_ms - life_ms <= 0


STEPS = st.sampled_from([1000, -1000, HOUR_MS, -HOUR_MS, 8 * HOUR_MS, -8 * HOUR_MS, 400 * DAY_MS, -400 * DAY_MS])
DEEDS = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.integers(0, 3 * HOUR_MS)),
        st.tuples(st.just("set"), STEPS),
        st.tuples(st.just("restart"), st.just(0)),
        st.tuples(st.just("put"), st.integers(1, 6 * HOUR_MS)),
    ),
    max_size=25,
).filter(lambda deeds: sum(verb == "set" for verb, _ in deeds) < MARKS - 1)


@given(DEEDS)
def test_whatever_the_wall_does_each_item_lives_as_long_as_it_was_to(deeds: list[tuple[str, int]]) -> None:
    """With as many steps as there are marks, times that were shown twice can still be told apart."""
    machine = Machine()
    items: list[tuple[Item, int]] = []
    for verb, number in deeds:
        if verb == "pass":
            machine.pass_time(number)
        elif verb == "set":
            machine.set_wall(number)
        elif verb == "restart":
            machine.restart()
        else:
            items.append((machine.put(number), machine.passed_ms + number))
        for item, ends_ms in items:
            left_ms = machine.calendar.ends_ms(item, machine.server_ms) - machine.server_ms
            assert 0 <= left_ms - (ends_ms - machine.passed_ms) < MARKS
            assert machine.calendar.is_over(item, machine.server_ms) is (left_ms < 0)


def test_a_copy_ends_with_what_it_was_copied_from() -> None:
    machine = Machine()
    item = machine.put(HOUR_MS)
    machine.set_wall(-8 * HOUR_MS)
    machine.pass_time(1000)
    calendar, now_ms = machine.calendar, machine.server_ms
    copy = Item(b"x", calendar.wall_ms(now_ms), calendar.renewed_ms(item, now_ms))
    assert 0 <= calendar.ends_ms(copy, now_ms) - calendar.ends_ms(item, now_ms) < MARKS


def test_an_item_of_another_program_is_taken_for_one_of_the_latest_era_that_showed_its_time() -> None:
    machine = Machine()
    item = Item(b"x", NOW_MS, NOW_MS + 8 * 1001)  # no mark, no date
    machine.pass_time(1)
    machine.set_wall(HOUR_MS)
    assert machine.calendar.ends_ms(item, machine.server_ms) == NOW_MS + 8 * 1001


def test_only_the_newest_eras_are_kept() -> None:
    machine = Machine()
    for _ in range(2 * ERAS_MAX):
        machine.set_wall(1000)
    assert len(machine.calendar.eras) == ERAS_MAX


def test_the_marks_of_items_and_of_jobs_go_round() -> None:
    mark, of_items, of_jobs = 1, [], []
    for _ in range(3 * MARKS_MAX):
        of_items.append(item_mark(mark))
        of_jobs.append(mark - 1)
        mark = next_mark(mark)
    assert of_items == [at % (MARKS - 1) + 1 for at in range(3 * MARKS_MAX)]
    assert of_jobs == [at % MARKS_MAX for at in range(3 * MARKS_MAX)]
