"""Two clocks. *Server time* passes evenly and never steps: it is `now_ms` everywhere. The *wall clock* may be set at
any moment; journals have its times, because other programs and later starts read them.

An `Era` is a stretch of time in which the wall clock was not set. The end of a lifetime ("an hour from now", max_age)
is written as the wall clock of its era shows it. It stands for a span of time, even if the wall clock is set later,
because the calendar reads it by its era. An end that a client gave as a date means that date, by the present wall
clock.

A journal has one number for either. A date is a whole second. The end of a lifetime is up to MARKS milliseconds later
than asked for, so that its remainder by MARKS, never 0, identifies its era: after the wall clock was set back, two eras
show the same times. The nanoseconds of a job's creation have room for more: their remainder by JOB_MARKS identifies one
of 63 eras.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from staniel.queues.item import Item

MARKS = 8  # divides 1000; distinguishes seven eras of the same times
JOB_MARKS = 64
MARKS_MAX = JOB_MARKS - 1  # a multiple of seven, so that both numberings start over together
ERAS_MAX = 64  # the newest ones; items of older eras are read by the oldest of these
LONG_AGO_MS = -(2**62)
FOREVER_MS = 2**62
NS_A_MS = 1_000_000


class Era(Struct, frozen=True):
    """A stretch of time in which the wall clock was not set. `mark`: from 1 to MARKS_MAX, one more than that of the era
    before. `ahead_ms`: how far the wall clock was ahead of server time. `since_ms`, `until_ms`: the wall clock's times
    at its beginning and its end.
    """

    mark: int
    ahead_ms: int
    since_ms: int = LONG_AGO_MS
    until_ms: int = FOREVER_MS


FIRST_ERA = Era(1, 0)


class Calendar:
    """The eras of a spool; the last one has not ended. All queues of a server share one calendar, which only the
    broker's wall clock changes.
    """

    __slots__ = ("_eras", "ahead_ms", "is_even", "mark")

    def __init__(self, eras: Sequence[Era] = (FIRST_ERA,)) -> None:
        self.set_eras(eras)

    def set_eras(self, eras: Sequence[Era]) -> None:
        """Replace the eras; `eras` has the oldest first."""
        self._eras = tuple(eras[-ERAS_MAX:])
        self.ahead_ms, self.mark = self._eras[-1].ahead_ms, item_mark(self._eras[-1].mark)
        self.is_even = len(self._eras) == 1  # then comparing with the wall clock's time is enough

    @property
    def eras(self) -> tuple[Era, ...]:
        return self._eras

    def wall_ms(self, now_ms: int) -> int:
        """Return the wall clock's time at `now_ms`."""
        return now_ms + self.ahead_ms

    def end_of_life(self, now_ms: int, life_ms: int) -> int:
        """Return the expiry of an item that lives for `life_ms` from `now_ms` on; `life_ms` may be negative."""
        ends_ms = now_ms + self.ahead_ms + life_ms
        if life_ms <= 0:
            ends_ms -= (ends_ms - self.mark) % MARKS
            return ends_ms if ends_ms > 0 else self.mark
        return marked(ends_ms, self.mark)

    def ends_ms(self, item: Item, now_ms: int) -> int:
        """Return the server time at which `item`, which has an expiry, expires."""
        return self.ends_at_ms(item.added_ms, item.expires_ms, now_ms)

    def ends_at_ms(self, added_ms: int, ends_ms: int, now_ms: int) -> int:
        """Return the server time of the end `ends_ms` of something written at `added_ms`."""
        if self.is_even or ends_ms <= 0 or is_date(ends_ms):
            return ends_ms - self.ahead_ms
        return ends_ms - self._era(added_ms, ends_ms % MARKS, now_ms).ahead_ms

    def added_ms(self, item: Item, now_ms: int) -> int:
        """Return the server time at which `item` was put."""
        if self.is_even:
            return item.added_ms - self.ahead_ms
        return item.added_ms - self._era_of(item, now_ms).ahead_ms

    def is_over(self, item: Item, now_ms: int) -> bool:
        """Tell whether the item's own lifetime has ended, or its date has come."""
        if self.is_even:
            return 0 != item.expires_ms < now_ms + self.ahead_ms
        return item.expires_ms != 0 and self.ends_ms(item, now_ms) < now_ms

    def judge(self, now_ms: int) -> Callable[[Item], bool]:
        """Return `is_over` as a function for many items at one moment."""
        if not self.is_even:
            return lambda item: self.is_over(item, now_ms)
        wall_ms = now_ms + self.ahead_ms
        return lambda item: 0 != item.expires_ms < wall_ms

    def renewed_ms(self, item: Item, now_ms: int) -> int:
        """Return the expiry for a copy of `item` that is added at `now_ms`: the copy expires at the same moment."""
        ends_ms = item.expires_ms
        if self.is_even or ends_ms <= 0 or is_date(ends_ms):
            return ends_ms
        return self.end_of_life(now_ms, self.ends_ms(item, now_ms) - now_ms)

    def shortened_ms(self, item: Item, now_ms: int, life_ms: int) -> int:
        """Return the expiry of `item` if it may live for at most `life_ms` from `now_ms` on. The expiry is read by the
        era of the item's put, which is the present one unless the item was put back.
        """
        ends_ms = item.expires_ms
        if self.is_even or item.added_ms >= now_ms + self.ahead_ms:
            latest_ms = self.end_of_life(now_ms, life_ms)
            return min(ends_ms, latest_ms) if ends_ms else latest_ms
        if ends_ms and self.ends_ms(item, now_ms) <= now_ms + life_ms:
            return ends_ms
        era = self._era_of(item, now_ms)
        return marked(now_ms + era.ahead_ms + life_ms, item_mark(era.mark))

    def moment_ms(self, wall_ms: int, now_ms: int) -> int:
        """Return the server time at which the wall clock showed `wall_ms`; if there are several, the latest."""
        return wall_ms - (self.ahead_ms if self.is_even else self._era(wall_ms, 0, now_ms).ahead_ms)

    def shown_ms(self, then_ms: int) -> int:
        """Return the time that the wall clock showed at `then_ms`, or will show if it is not set."""
        for era in reversed(self._eras):
            if then_ms >= era.since_ms - era.ahead_ms:
                return then_ms + era.ahead_ms
        return then_ms + self._eras[0].ahead_ms

    # Jobs: their times are nanoseconds; the mark of a creation's era is its remainder by JOB_MARKS, plus one.

    def created_ns(self, wall_ns: int, now_ms: int) -> int:
        """Return the server time at which a job was created whose log has `wall_ns`."""
        return wall_ns - self._era_of_job(wall_ns, now_ms).ahead_ms * NS_A_MS

    def comes_ns(self, date_ns: int, wall_ns: int, now_ms: int) -> int:
        """Return the first moment, in server time, at which the wall clock shows that job's date or a later one; if the
        wall clock was set past the date, the moment of that step. If the date was past when the job was created, return
        it as it is.
        """
        first = self._era_of_job(wall_ns, now_ms)
        comes_ns = date_ns - first.ahead_ms * NS_A_MS
        if date_ns <= wall_ns:
            return comes_ns
        for era in self._eras[self._eras.index(first) :]:
            comes_ns = date_ns - era.ahead_ms * NS_A_MS
            if era is not first:
                comes_ns = max(comes_ns, (era.since_ms - era.ahead_ms) * NS_A_MS)
            if comes_ns < (era.until_ms - era.ahead_ms) * NS_A_MS:
                break
        return comes_ns

    def _era_of(self, item: Item, now_ms: int) -> Era:
        """Return the era of the item's put. The remainder of a date is 0, which is no mark."""
        ends_ms = item.expires_ms
        return self._era(item.added_ms, ends_ms % MARKS if ends_ms > 0 else 0, now_ms)

    def _era_of_job(self, wall_ns: int, now_ms: int) -> Era:
        if self.is_even:
            return self._eras[-1]
        return self._era(wall_ns // NS_A_MS, wall_ns % JOB_MARKS + 1, now_ms, MARKS_MAX)

    def _era(self, added_ms: int, mark: int, now_ms: int, marks: int = MARKS - 1) -> Era:
        """Return the latest era in which the wall clock showed `added_ms`: one with the mark `mark`, of `marks`, if
        there is one. With `mark` 0 any era counts.
        """
        marked = within = None
        until_ms = now_ms + self.ahead_ms  # the wall clock has shown no later time in the last era
        for era in reversed(self._eras):
            shows = era.since_ms <= added_ms <= min(era.until_ms, until_ms)
            until_ms = FOREVER_MS
            is_marked = (era.mark - mark) % marks == 0
            if shows and (is_marked or not mark):
                return era
            if shows and within is None:
                within = era
            if is_marked and marked is None:
                marked = era  # written between a step and its note, or in the gap of a step forward
        return within or marked or self._eras[-1 if added_ms > self._eras[-1].since_ms else 0]


def is_date(expires_ms: int) -> bool:
    """Tell whether an expiry was given as a date. Dates are whole seconds, and ends of lifetimes never are."""
    return expires_ms % 1000 == 0


def marked(ends_ms: int, mark: int) -> int:
    """Return the first moment from `ends_ms` on whose remainder by MARKS is `mark`."""
    return ends_ms + (mark - ends_ms) % MARKS


def next_mark(mark: int) -> int:
    """Return the mark of the era that follows one with the mark `mark`."""
    return mark % MARKS_MAX + 1


def item_mark(mark: int) -> int:
    """Return the remainder by MARKS of an end of a lifetime that is written in an era with that mark."""
    return (mark - 1) % (MARKS - 1) + 1


EVEN = Calendar()
"""The calendar of a queue without a server. Its wall clock is never set."""
