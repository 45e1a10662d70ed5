"""The note of the steps of the wall clock, `.staniel/clock`: the eras by which the times of items are read."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from staniel.journal.disk.fs import Fs
from staniel.journal.disk.quarantine import UNDECODABLE
from staniel.queues.calendar import ERAS_MAX, FOREVER_MS, LONG_AGO_MS, MARKS_MAX, Calendar, Era

FILE_BYTES_MAX = 1 << 20
MOMENT_MS_MAX = 2**53  # 285,000 years


class ClockNote(Struct, frozen=True):
    """The content of the file. `wall_ms` and `steady_ms` were read at one moment of the last era; `ahead_ms` is
    relative to that moment.
    """

    boot: str
    wall_ms: int
    steady_ms: int
    eras: list[Era]


def decode(data: bytes) -> ClockNote:
    """Decode a note. Raises one of UNDECODABLE."""
    note = msgspec.json.decode(data, type=ClockNote)
    if why := _flaw(note):
        raise msgspec.DecodeError(why)
    return note


def noted_calendar(fs: Fs, own: str) -> Calendar:
    """Return the calendar that the last server of a spool has noted, for a tool that takes the wall clock's time for
    server time. A damaged note counts as none, as it does at a start. Raises OSError if the file cannot be read.
    """
    try:
        return Calendar(decode(fs.read(f"{own}/clock", 0, FILE_BYTES_MAX)).eras)
    except (FileNotFoundError, *UNDECODABLE):
        return Calendar()


def _flaw(note: ClockNote) -> str:
    """Return what is wrong with the note; "" if a server could have written it."""
    if not 0 < len(note.eras) <= ERAS_MAX:
        return f"it has {len(note.eras)} eras"
    moments = [note.wall_ms, note.steady_ms]
    for era in note.eras:
        if not 0 < era.mark <= MARKS_MAX:
            return f"an era has the mark {era.mark}"
        moments += [era.ahead_ms]
        moments += [moment for moment in (era.since_ms, era.until_ms) if moment not in (LONG_AGO_MS, FOREVER_MS)]
    if any(abs(moment) > MOMENT_MS_MAX for moment in moments):
        return "it has times that no clock shows"
    return ""
