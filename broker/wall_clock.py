"""The wall clock: each step is noted in the calendar and in `.staniel/clock`, so that later runs know of it.

The steady clock counts time since the machine booted, also while the machine sleeps. As long as it has not rebooted,
the wall clock's distance from the steady clock changes only when the wall clock is set, also while no server runs.
After a reboot the wall clock is believed, unless it shows an earlier time than was seen before; then no time counts as
passed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct, structs

from staniel.broker.events import EventSink, Level
from staniel.journal.clock_note import FILE_BYTES_MAX, ClockNote, decode
from staniel.journal.disk.fs import Fs, is_missing
from staniel.journal.disk.quarantine import UNDECODABLE
from staniel.journal.disk.replace_file import Replacement, replace_file
from staniel.journal.own_files import KeptFile
from staniel.journal.spool import refused_start
from staniel.queues.calendar import FIRST_ERA, Calendar, Era, next_mark

STEP_MS = 500  # a smaller difference counts as the inaccuracy of two readings; small differences add up
NOTE_MS = 600_000  # the greatest age of the file, which shows that a reboot has set the clock back
APART_MS = 60_000  # beyond this difference operators are warned
WALLS = frozenset(("added_at_ms", "expires_at_ms", "put_at_ms", "left_at_ms"))  # times that items carry
View = TypeVar("View", bound=Struct)


class ClockReading(Struct, frozen=True):
    """A reading of the machine's clocks: `steady_ms` since boot; `boot` is the id of that boot."""

    wall_ms: int
    steady_ms: int
    boot: str


class WallClock:
    """The only writer of the calendar. `read` is the driver's; without it the wall clock is never read. `stepped` is
    called when the wall clock was set. A step back is applied only when `may_set_back` allows it; once it does, call
    `check_clock` again.
    """

    def __init__(self, fs: Fs, own: str, calendar: Calendar, report: EventSink, stepped: Callable[[int], None]) -> None:
        self.calendar = calendar
        self.read: Callable[[], ClockReading] | None = None
        self._stepped = stepped
        self.may_set_back: Callable[[], bool] = lambda: True
        self._fs = fs
        self._path = f"{own}/clock"
        self._report = report
        self._note: ClockNote | None = None
        self._is_told = False
        self._is_unwritten = False
        self._noted_ms = 0

    @property
    def apart_ms(self) -> int:
        """The difference between the wall clock and server time; below 0: the wall clock is behind."""
        return self.calendar.ahead_ms

    @property
    def is_apart(self) -> bool:
        return abs(self.calendar.ahead_ms) >= APART_MS

    @property
    def kept(self) -> KeptFile:
        """The file, once it is written."""
        return KeptFile(
            self._path, lambda: self._note is not None and is_missing(self._fs, self._path, 1), lambda: self._write()
        )

    def read_notes(self, read: Callable[[], ClockReading], now_ms: int) -> None:
        """Read the notes of earlier runs. `now_ms`, the server time, began as the wall clock's time. Raises SpoolError
        if the file cannot be read now.
        """
        self.read = read
        here = read()
        before = self._remembered()
        if before is None:
            eras, reference = [FIRST_ERA], here
        else:
            expected_ms = before.wall_ms + here.steady_ms - before.steady_ms
            if here.boot != before.boot or not here.boot:
                expected_ms = max(here.wall_ms, before.wall_ms)
            step_ms = here.wall_ms - expected_ms
            if abs(step_ms) >= STEP_MS:
                eras, reference = _after_step(before.eras, expected_ms, step_ms), here
                level = Level.WARNING if abs(step_ms) >= APART_MS else Level.INFO
                self._report(level, "clock.set", seconds=_seconds(step_ms), while_server="was stopped")
            elif here.boot and here.boot == before.boot:
                eras, reference = before.eras, ClockReading(before.wall_ms, before.steady_ms, before.boot)
            else:
                eras, reference = before.eras, here
        # The operator may have set the wall clock since server time began.
        apart_ms = here.wall_ms - now_ms
        ahead_ms = eras[-1].ahead_ms - (apart_ms if abs(apart_ms) >= STEP_MS else 0)
        self.calendar.set_eras(_relative(eras, ahead_ms))
        self._keep(reference, now_ms)

    def check_clock(self, now_ms: int) -> None:
        """Note a step if the wall clock was set since the last check."""
        if self.read is None:
            return
        here = self.read()
        if here.wall_ms - self.calendar.wall_ms(now_ms) <= -STEP_MS and not self.may_set_back():
            return
        if step_ms := self._take_step(here, now_ms):
            self._keep_as_expected(here, now_ms)
            self._report_step(step_ms)
            self._stepped(now_ms)
        elif self._is_unwritten or now_ms - self._noted_ms >= NOTE_MS:
            self._keep_as_expected(here, now_ms)

    def end(self, now_ms: int) -> Replacement | None:
        """Note the wall clock's time, which the next start takes as a lower limit. The caller syncs and installs the
        note.
        """
        if self.read is None:
            return None
        here = self.read()
        self._take_step(here, now_ms)
        self._note = self._note_of(self._as_expected(here, now_ms))
        try:
            return Replacement(self._fs, self._path, self._encoded())
        except OSError as error:
            self.report_unwritten(error)
            return None

    def _take_step(self, here: ClockReading, now_ms: int) -> int:
        """Note a step in the calendar. Return how far the wall clock was set since the last check; 0 if it was not."""
        calendar = self.calendar
        expected_ms = calendar.wall_ms(now_ms)
        step_ms = here.wall_ms - expected_ms
        if abs(step_ms) < STEP_MS:
            return 0
        calendar.set_eras(_after_step(calendar.eras, expected_ms, step_ms))
        return step_ms

    def _keep_as_expected(self, here: ClockReading, now_ms: int) -> None:
        """Keep the time that the calendar expects, not the reading. Otherwise a difference smaller than a step would be
        lost each time, and never add up to one.
        """
        self._keep(self._as_expected(here, now_ms), now_ms)

    def _as_expected(self, here: ClockReading, now_ms: int) -> ClockReading:
        return ClockReading(self.calendar.wall_ms(now_ms), here.steady_ms, here.boot)

    def _report_step(self, step_ms: int) -> None:
        if self.is_apart:
            self._is_told = True
            hint = (
                "expiry, waits and leases count the time that passed; dates follow the wall; look at the machine's NTP"
            )
            self._report(
                Level.WARNING, "clock.apart", seconds=_seconds(self.apart_ms), step=_seconds(step_ms), hint=hint
            )
        elif self._is_told:
            self._is_told = False
            self._report(Level.WARNING, "clock.apart", seconds=_seconds(self.apart_ms), hint="it is right again")
        else:
            self._report(Level.INFO, "clock.set", seconds=_seconds(step_ms))

    def _keep(self, here: ClockReading, now_ms: int) -> None:
        note = self._note_of(here)
        if note == self._note and not self._is_unwritten:
            return
        self._note, self._noted_ms = note, now_ms
        was_unwritten, self._is_unwritten = self._is_unwritten, False
        try:
            self._write()
        except OSError as error:
            self._is_unwritten = True  # the next check tries again
            if was_unwritten:
                return
            self.report_unwritten(error)

    def report_unwritten(self, error: OSError) -> None:
        hint = "after a crash, items from before the last step of the clock may expire early or late"
        self._report(Level.WARNING, "clock.not_kept", file=self._path, why=error.strerror, hint=hint)

    def _note_of(self, here: ClockReading) -> ClockNote:
        eras = _relative(self.calendar.eras, self.calendar.ahead_ms)
        return ClockNote(here.boot, here.wall_ms, here.steady_ms, eras)

    def _write(self) -> None:
        self._fs.make_folder(self._path.rpartition("/")[0])
        replace_file(self._fs, self._path, self._encoded())

    def _encoded(self) -> bytes:
        return msgspec.json.encode(self._note) + b"\n"

    def _remembered(self) -> ClockNote | None:
        try:
            data = self._fs.read(self._path, 0, FILE_BYTES_MAX)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise refused_start(error, self._path) from error
        try:
            note = decode(data)
        except UNDECODABLE as error:
            self._report(Level.WARNING, "clock.damaged", file=self._path, why=str(error), hint="it is written again")
            return None
        self._note = note
        return note


def _seconds(ms: int) -> int:
    return round(ms / 1000)


def _relative(eras: Sequence[Era], ahead_ms: int) -> list[Era]:
    """Return the same eras, relative to a clock that is `ahead_ms` ahead."""
    return [msgspec.structs.replace(era, ahead_ms=era.ahead_ms - ahead_ms) for era in eras]


def _after_step(eras: Sequence[Era], before_ms: int, step_ms: int) -> list[Era]:
    """Return the eras after the wall clock, which showed `before_ms`, was set by `step_ms`."""
    last = eras[-1]
    ended = msgspec.structs.replace(last, until_ms=max(before_ms, last.since_ms))
    return [*eras[:-1], ended, Era(next_mark(last.mark), last.ahead_ms + step_ms, before_ms + step_ms)]


def by_the_wall(view: View, ahead_ms: int) -> View:
    """Return the view with moments of server time converted to the wall clock, which is `ahead_ms` ahead. Moments that
    items carry are the wall clock's already: see WALLS.
    """
    if not ahead_ms:
        return view
    moments = {name: getattr(view, name) for name in view.__struct_fields__ if name.endswith("at_ms")}
    changes = {name: moment + ahead_ms for name, moment in moments.items() if moment and name not in WALLS}
    return structs.replace(view, **changes)
