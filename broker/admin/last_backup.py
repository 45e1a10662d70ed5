"""The time of the spool's last backup. The server does not copy its files itself: the command that copied them reports
to the server at the end. A file in the spool's own folder keeps the time across restarts.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from staniel.broker.events import EventSink, Level
from staniel.journal.disk.fs import Fs, is_missing
from staniel.journal.disk.quarantine import UNDECODABLE
from staniel.journal.disk.replace_file import replace_file
from staniel.journal.own_files import KeptFile
from staniel.journal.spool import refused_start
from staniel.queues.calendar import Calendar

NAME = "last_backup"


class BackupMade(Struct, frozen=True):
    """A complete backup of the moment `made_at_ms`. `where`: its place, as given to the command."""

    made_at_ms: int
    where: str


class LastBackup:
    """The last known backup. `made` None: no backup is known."""

    def __init__(self, fs: Fs, own_folder: str, report: EventSink, calendar: Calendar) -> None:
        """Read the file. Raises SpoolError if it cannot be read."""
        self._fs = fs
        self._path = path_in(own_folder)
        self._calendar = calendar
        self.made = self._read(report)

    def store_backup(self, made: BackupMade, now_ms: int) -> None:
        """Store a backup, unless a later one is known. Raises OSError; nothing has changed then."""
        age_ms = self.age_ms(now_ms)
        if age_ms is None or self._calendar.moment_ms(made.made_at_ms, now_ms) >= now_ms - age_ms:
            write(self._fs, self._path, made)
            self.made = made

    def age_ms(self, now_ms: int) -> int | None:
        if self.made is None:
            return None
        return max(0, now_ms - self._calendar.moment_ms(self.made.made_at_ms, now_ms))

    def is_old(self, now_ms: int, age_ms_max: int) -> bool:
        """Tell whether the last backup is older than `age_ms_max`, or unknown. With `age_ms_max` 0 it is never
        too old.
        """
        age_ms = self.age_ms(now_ms)
        return age_ms_max > 0 and (age_ms is None or age_ms > age_ms_max)

    @property
    def kept(self) -> KeptFile:
        """The file, if a backup is known."""
        return KeptFile(
            self._path,
            lambda: self.made is not None and is_missing(self._fs, self._path, 1),
            self._make_again,
        )

    def _make_again(self) -> None:
        assert self.made is not None
        write(self._fs, self._path, self.made)

    def _read(self, report: EventSink) -> BackupMade | None:
        try:
            return msgspec.json.decode(self._fs.read(self._path, 0, self._fs.size(self._path)), type=BackupMade)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise refused_start(error, self._path) from error
        except UNDECODABLE as error:
            hint = "the next backup writes a new one"
            report(Level.WARNING, "last_backup.damaged", file=self._path, why=str(error), hint=hint)
            return None


def path_in(own_folder: str) -> str:
    return f"{own_folder}/{NAME}"


def write(fs: Fs, path: str, made: BackupMade) -> None:
    """Write the file, also for the command that copies a spool without a server. Raises OSError."""
    replace_file(fs, path, msgspec.json.encode(made) + b"\n")
