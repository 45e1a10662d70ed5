"""Two clocks. *Server time* passes evenly and never steps: `now_ms` everywhere. The *wall* may be set at any moment;
what is written down is the wall's, because other programs and later starts read it.

An `Era` is a stretch in which the wall was not set. The end of a life ("an hour from now", max_age) is written as the
wall of its era shows it, and means so much time, whatever becomes of the wall: it is read by the calendar of its era.
The end that a client gave as a date means that date, by the wall as it is now.

Both are one number in a journal. A date is a whole second. The end of a life is up to MARKS milliseconds later than
asked for, so that the remainder by MARKS, never 0, tells its era: when the wall is set back, two eras show the same
times. The nanoseconds of a job's creation have room for more: their remainder by JOB_MARKS tells one of 63 eras.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from staniel.queues.item import Item

MARKS = 8  # divides 1000; seven eras of the same times can be told apart
JOB_MARKS = 64
MARKS_MAX = JOB_MARKS - 1  # a multiple of seven, so that both go on from the last to the first
ERAS_MAX = 64  # the newest; items of older ones are taken for those of the oldest
LONG_AGO_MS = -(2**62)
FOREVER_MS = 2**62
NS_A_MS = 1_000_000


class Era(Struct, frozen=True):
    """`mark`: from 1 to MARKS_MAX, one more than that of the era before. `ahead_ms`: how much the wall was ahead of
    server time. `since_ms`, `until_ms`: what the wall showed at its beginning and its end.
    """

    mark: int
    ahead_ms: int
    since_ms: int = LONG_AGO_MS
    until_ms: int = FOREVER_MS


FIRST_ERA = Era(1, 0)


class Calendar:
    """The eras of a spool, the last of which goes on. One for all queues of a server; the broker's wall clock alone
    changes it.
    """

    __slots__ = ("_eras", "ahead_ms", "is_even", "mark")

    def __init__(self, eras: Sequence[Era] = (FIRST_ERA,)) -> None:
        self.set_eras(eras)

    def set_eras(self, eras: Sequence[Era]) -> None:
        """Replace the eras; `eras` has the oldest first."""
        self._eras = tuple(eras[-ERAS_MAX:])
        self.ahead_ms, self.mark = self._eras[-1].ahead_ms, item_mark(self._eras[-1].mark)
        self.is_even = len(self._eras) == 1  # then a comparison with the wall is all that is needed

    @property
    def eras(self) -> tuple[Era, ...]:
        return self._eras

    def wall_ms(self, now_ms: int) -> int:
        """Return the time that the wall shows at `now_ms`."""
        return now_ms + self.ahead_ms

    def end_of_life(self, now_ms: int, life_ms: int) -> int:
        """Return the expiry of an item that lives for `life_ms` from `now_ms` on; `life_ms` may be negative."""
        ends_ms = now_ms + self.ahead_ms + life_ms
        if life_ms <= 0:
            ends_ms -= (ends_ms - self.mark) % MARKS
            return ends_ms if ends_ms > 0 else self.mark
        return marked(ends_ms, self.mark)

    def ends_ms(self, item: Item, now_ms: int) -> int:
        """Return the server time at which `item`, which has an expiry, ends."""
        return self.ends_at_ms(item.added_ms, item.expires_ms, now_ms)

    def ends_at_ms(self, added_ms: int, ends_ms: int, now_ms: int) -> int:
        """Return the server time at which something written at `added_ms` with the end `ends_ms` ends."""
        if self.is_even or ends_ms <= 0 or is_date(ends_ms):
            return ends_ms - self.ahead_ms
        return ends_ms - self._era(added_ms, ends_ms % MARKS, now_ms).ahead_ms

    def added_ms(self, item: Item, now_ms: int) -> int:
        """Return the server time at which `item` was put."""
        if self.is_even:
            return item.added_ms - self.ahead_ms
        return item.added_ms - self._era_of(item, now_ms).ahead_ms

    def is_over(self, item: Item, now_ms: int) -> bool:
        """Tell whether the item's own life has ended, or its date has come."""
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
        """Return the expiry of a copy of `item` that is added at `now_ms`: the copy ends at the same moment."""
        ends_ms = item.expires_ms
        if self.is_even or ends_ms <= 0 or is_date(ends_ms):
            return ends_ms
        return self.end_of_life(now_ms, self.ends_ms(item, now_ms) - now_ms)

    def shortened_ms(self, item: Item, now_ms: int, life_ms: int) -> int:
        """Return the expiry of `item` if it is to live for `life_ms` from `now_ms` on at most. The expiry is read by
        the era of the item's put, which is the present one unless the item comes back.
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
        """Return the server time at which the wall showed `wall_ms`; of several such moments the latest."""
        return wall_ms - (self.ahead_ms if self.is_even else self._era(wall_ms, 0, now_ms).ahead_ms)

    def shown_ms(self, then_ms: int) -> int:
        """Return the time that the wall showed at `then_ms`, or will show unless it is set."""
        for era in reversed(self._eras):
            if then_ms >= era.since_ms - era.ahead_ms:
                return then_ms + era.ahead_ms
        return then_ms + self._eras[0].ahead_ms

    # jobs: their moments are nanoseconds; the mark of the moment of a creation is its remainder by JOB_MARKS, plus one

    def created_ns(self, wall_ns: int, now_ms: int) -> int:
        """Return the server time at which a job was created for which `wall_ns` was written."""
        return wall_ns - self._era_of_job(wall_ns, now_ms).ahead_ms * NS_A_MS

    def comes_ns(self, date_ns: int, wall_ns: int, now_ms: int) -> int:
        """Return the first moment, in server time, at which the wall shows the date of that job, or has gone past it:
        if the wall was set past the date, the moment of that step. Of a date that was past when the job was created:
        that date.
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
        """Return the latest era in which the wall showed `added_ms`: one of mark `mark`, of `marks`, if there is one.
        `mark` 0: of any.
        """
        marked = within = None
        until_ms = now_ms + self.ahead_ms  # the last era has not shown more
        for era in reversed(self._eras):
            shows = era.since_ms <= added_ms <= min(era.until_ms, until_ms)
            until_ms = FOREVER_MS
            is_marked = (era.mark - mark) % marks == 0
            if shows and (is_marked or not mark):
                return era
            if shows and within is None:
                within = era
            if is_marked and marked is None:
                marked = era  # written between a step and its note, or in the gap that a step forward leaves
        return within or marked or self._eras[-1 if added_ms > self._eras[-1].since_ms else 0]


def is_date(expires_ms: int) -> bool:
    """Tell whether an expiry was given as a date. Dates are whole seconds, and no end of a life is one."""
    return expires_ms % 1000 == 0


def marked(ends_ms: int, mark: int) -> int:
    """Return the first moment from `ends_ms` on whose remainder by MARKS is `mark`."""
    return ends_ms + (mark - ends_ms) % MARKS


def next_mark(mark: int) -> int:
    """Return the mark of the era that follows one of mark `mark`."""
    return mark % MARKS_MAX + 1


def item_mark(mark: int) -> int:
    """Return the remainder by MARKS of an end of life that is written in an era of that mark."""
    return (mark - 1) % (MARKS - 1) + 1


EVEN = Calendar()
"""The calendar of a queue without a server: its wall is never set."""
