"""Server status: up, writeavoid, readonly or quiescent, kept across restarts in a file. A stricter status is enforced
after a grace period. Source: server status of Kestrel 2.4.
"""

from __future__ import annotations

from enum import Enum

from staniel.broker.timers import NEVER_MS
from staniel.journal.disk.fs import Fs, is_missing
from staniel.journal.disk.replace_file import replace_file
from staniel.journal.own_files import KeptFile
from staniel.journal.spool import refused_start


class ServerStatus(Enum):
    """A status by its reported name; `strictness` orders them."""

    UP = "Up"
    WRITEAVOID = "WriteAvoid"
    READONLY = "ReadOnly"
    QUIESCENT = "Quiescent"

    @property
    def strictness(self) -> int:
        return STRICTNESS[self]

    @property
    def reads(self) -> bool:
        return self is not ServerStatus.QUIESCENT

    @property
    def writes(self) -> bool:
        return self is ServerStatus.UP or self is ServerStatus.WRITEAVOID


STRICTNESS = {ServerStatus.UP: 1, ServerStatus.WRITEAVOID: 2, ServerStatus.READONLY: 3, ServerStatus.QUIESCENT: 4}
BY_NAME = {status.value.lower(): status for status in ServerStatus}


def by_name(name: str) -> ServerStatus | None:
    """Return the status of that name, in any case; None for a name that cannot be set."""
    return BY_NAME.get(name.lower())


class StatusControl:
    """The status of a server. `reported` is the status that the command `status` shows, `enforced` the one in force;
    they differ during the grace period. `started_ms`: when recovery began. `stop_cause`: the fields of the log event of
    the stop.
    """

    def __init__(self, fs: Fs, path: str, default: ServerStatus, grace_ms: int) -> None:
        self.fs = fs
        self.path = path
        self.grace_ms = grace_ms
        self.reported = self.enforced = default
        self.due_ms = NEVER_MS  # when the reported status is to be enforced
        self.refusal = ""  # why no client may write now, whatever the status is
        self._is_kept = False
        self.trouble = self._remember()
        self.started_ms = 0
        self.is_stopping = False
        self.stop_cause: dict[str, object] = {}

    @property
    def pending(self) -> bool:
        return self.reported is not self.enforced

    def change(self, wanted: ServerStatus, now_ms: int) -> bool:
        """Report `wanted` at once. Enforce it at once if it is no stricter, else after the grace period.

        Return False, with nothing changed, if another change waits and this one would not loosen. Raises OSError if the
        status cannot be stored.
        """
        loosens = wanted.strictness <= self.enforced.strictness
        if self.pending and not loosens:
            return False
        self._write(wanted)
        self.reported = wanted
        if loosens or not self.grace_ms:
            self.enforced = wanted
            self.due_ms = NEVER_MS
        else:
            self.due_ms = now_ms + self.grace_ms
        return True

    def stop(self, why: str, client: str = "") -> None:
        """Stop the server after this tick, because of a signal or a client's request."""
        if not self.is_stopping:
            self.is_stopping = True
            self.stop_cause = {"why": why, "client": client} if client else {"why": why}

    @property
    def kept(self) -> KeptFile:
        """The file, once a status has been set."""
        return KeptFile(
            self.path,
            lambda: self._is_kept and is_missing(self.fs, self.path, 1),
            lambda: self._write(self.reported),
        )

    def on_timer(self, now_ms: int) -> None:
        """Enforce the reported status, because the grace period has ended."""
        self.enforced = self.reported
        self.due_ms = NEVER_MS

    def _remember(self) -> str:
        """Read the status of an earlier run. Return what is wrong with the file; "" if it is right. Raises SpoolError
        if the file cannot be read.
        """
        try:
            text = self.fs.read(self.path, 0, 100).decode("utf-8", "replace").strip()
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise refused_start(error, self.path) from error
        status = by_name(text)
        if status is None:
            return f"{self.path} says {text!r}, which is not a status"
        self.reported = self.enforced = status
        self._is_kept = True
        return ""

    def _write(self, status: ServerStatus) -> None:
        folder, _, _ = self.path.rpartition("/")
        self.fs.make_folder(folder)
        replace_file(self.fs, self.path, f"{status.value}\n".encode())
        self._is_kept = True
