"""The source of a backup's files: a running server, which holds them while we are connected to it, or a spool that no
server has open.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from http.client import HTTPException
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from staniel.broker.admin.last_backup import BackupMade, path_in, write
from staniel.broker.operations.backup import HeldFiles
from staniel.broker.version import VERSION
from staniel.journal.copy_mark import UNFINISHED
from staniel.journal.disk.fs import AlreadyLocked
from staniel.journal.disk.os_fs import OsFs, is_file, is_folder, is_named
from staniel.journal.disk.refusals import refused_tool
from staniel.journal.kestrel.files import OWN_FOLDER
from staniel.journal.membership import membership
from staniel.journal.redo.log import UNUSED
from staniel.journal.spool import LOCK
from staniel.journal.spool_listing import CMDLOG, spool_files
from staniel.journal.tools.unfinished import Work, unfinished_work
from staniel.journal.workq.files import APPEND_LOCK
from staniel.server.backup.manifest import BackupError
from staniel.server.backup.store import LocalFile
from staniel.server.text import OTHER_VERSION

NOT_COUNTED = -1
LAST_CHUNK = b"0\r\n\r\n"
START_ONCE = "start a server on it once, then stop it, or back up while it runs"


class SourceFile(Struct, frozen=True):
    """A file to back up: `name` within the spool, `local` where its bytes are."""

    name: str
    local: LocalFile


class BackupSource(Protocol):
    """The source of a backup. `held` describes its moment."""

    held: HeldFiles
    files: list[SourceFile]
    was_running: bool

    def check(self) -> None:
        """Check that all files were held until now. Raises BackupError."""

    def close(self) -> None: ...


class RunningSource:
    """The files that a server holds for us. `answer` is the reply of its admin listener, whose lines name them. Raises
    BackupError.
    """

    was_running = True

    def __init__(self, answer: Any, sock: socket.socket) -> None:
        self._answer, self._sock = answer, sock
        try:
            self.held = msgspec.convert(self._read_line(), HeldFiles)
            self.files = [self._file_of(self._read_line()) for _ in range(self.held.files)]
            if self._read_line() != {"end": True}:
                raise BackupError(OTHER_VERSION)
        except msgspec.ValidationError as error:
            raise BackupError(f"{OTHER_VERSION} ({error})") from error
        try:
            missing = next((file.local.path for file in self.files if not is_named(file.local.path)), "")
        except OSError as error:
            raise BackupError(refused_tool(error)) from error
        if missing:
            why = "run this on the server's machine, in its container, as a user that may read its spool"
            raise BackupError(f"cannot see the files that the server holds, such as {missing}: {why}")

    def _read_line(self) -> Any:
        try:
            line = self._answer.readline()
            return json.loads(line)
        except (OSError, HTTPException, ValueError, RecursionError) as error:
            raise BackupError(f"the server closed the connection: {error}; make the backup again") from error

    def _file_of(self, line: Any) -> SourceFile:
        name, size, path = msgspec.convert(line, tuple[str, int, str])
        return SourceFile(name, LocalFile(path, size))

    def check(self) -> None:
        """Check that the server still runs: files of an ended one may have changed meanwhile. Raises BackupError."""
        from ssl import SSLWantReadError  # OpenSSL takes 30 ms to load

        self._sock.setblocking(False)
        try:
            while data := self._sock.recv(1 << 16):
                if data.endswith(LAST_CHUNK):
                    break
        except (BlockingIOError, SSLWantReadError):
            return
        except OSError:
            pass
        raise BackupError("the server ended while its files were copied: start it, then make the backup again")

    def close(self) -> None:
        self._sock.close()
        self._answer.close()


class RestingSource:
    """A spool that no server has open, locked against servers. `jobs` is the folder of its command log, if that is
    elsewhere. Raises BackupError.
    """

    was_running = False

    def __init__(self, spool: str, now_ms: int, jobs: str = "") -> None:
        self._fs = fs = OsFs()
        own = f"{spool}/{OWN_FOLDER}"
        try:
            self._lock(f"{own}/{LOCK}", spool)
            if jobs and is_folder(jobs):
                self._lock(f"{jobs}/{APPEND_LOCK}", jobs)
            elif is_folder(f"{spool}/{CMDLOG}"):
                self._lock(f"{spool}/{CMDLOG}/{APPEND_LOCK}", spool)
            _refuse_unfinished(spool)
            files = spool_files(fs, spool, jobs)
            self.files = [SourceFile(file.name, LocalFile(file.path, fs.size(file.path))) for file in files]
        except OSError as error:
            fs.close()
            raise BackupError(refused_tool(error, spool)) from error
        except BackupError:
            fs.close()
            raise
        self.held = HeldFiles(
            made_at_ms=now_ms,
            version=VERSION,
            spool=os.path.abspath(spool),
            queues=NOT_COUNTED,
            items=NOT_COUNTED,
            jobs=NOT_COUNTED,
            sync="",
            other_syncs={},
            files=len(self.files),
            bytes=sum(file.local.bytes for file in self.files),
        )

    def _lock(self, path: str, folder: str) -> None:
        try:
            self._fs.lock(path)
        except AlreadyLocked as locked:
            raise BackupError(f"{locked.holder or 'another process'} has {folder} open") from None
        except OSError as error:
            if error.errno != errno.EROFS:
                raise

    def check(self) -> None:
        """Do nothing: the lock has kept servers away."""

    def store_made(self, made: BackupMade) -> None:
        """Note the backup in the spool, for the next server that starts on it; not in a member's, whose files change by
        the stream alone. Raises OSError.
        """
        if not membership(self._fs, self.held.spool).is_alone:
            return
        write(self._fs, path_in(f"{self.held.spool}/{OWN_FOLDER}"), made)

    def close(self) -> None:
        self._fs.close()


def is_spool(folder: str) -> bool:
    """Return True if a server has used the folder as its spool. Raises OSError."""
    return is_file(f"{folder}/{OWN_FOLDER}/version")


def _refuse_unfinished(spool: str) -> None:
    """Refuse a spool whose files are not complete by themselves. Raises BackupError, OSError."""
    own = f"{spool}/{OWN_FOLDER}"
    joined = membership(OsFs(), spool)
    if not joined.may_be_copied:
        raise BackupError(joined.refusal(spool))
    with open(f"{own}/version", encoding="utf-8", errors="replace") as file:
        version = file.read(100).strip()
    if version == UNFINISHED:
        raise BackupError(f"{spool} is not complete: {Work.COPY.value}; remove it and copy it again")
    if version != UNUSED:
        raise BackupError(f"the server of {spool} was not stopped cleanly, or is another version's: {START_ONCE}")
    for left in unfinished_work(OsFs(), spool):
        if left.work is Work.CONVERSION:
            raise BackupError(f"a conversion in {spool} is not finished: finish `staniel journal convert` first")
        if left.work not in (
            Work.TRANSFERS,
            Work.PUT_KEYS,
            Work.MEMBER,
        ):  # the copy has these too, and its start finishes them
            raise BackupError(f"{left.work.value} of {spool}: {START_ONCE}")
