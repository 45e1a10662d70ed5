"""The audit log: operations on queues and on the server, and who asked for them. Each is a line of JSON in the spool's
own folder.

It records the purges, flushes, deletes, moves, pauses, aborts, status changes, reloads and stops of every protocol, and
refused operations of the admin listener. The file is bounded: when it is full, it becomes the older one of two. No
client can push out the lines of others: each operation of a protocol gets a few lines in ten seconds, and fewer the
longer clients flood it. Operators, at the admin listener, get many, except for requests that their rights do not allow.
A line is written before the reply leaves, and synced within a second. If it cannot be written, the log says so and the
operation is done all the same, so that an operator can make room on a full disk.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import Struct

from staniel.broker.events import EventSink, Level, RateLimit, RateLimitedSink
from staniel.journal.disk.quarantine import UNDECODABLE
from staniel.journal.new_file import NewFile
from staniel.queues.calendar import Calendar

if TYPE_CHECKING:
    from staniel.journal.disk.fs import File
    from staniel.journal.group_commit import GroupCommit

NAMES = ("audit", "audit.1")  # the newer one first
BURST = 20  # of one operation over one protocol in ten seconds
OPERATORS = "admin"
OPERATORS_BURST = 1000
LONGEST_WINDOW_MS = 3_600_000
KEPT = 1000  # entries in memory, for queries
READ_BYTES = 512 << 10  # of each file, at the first query
WHY_MAX = 300
NAME_MAX = 255  # of a queue's name, in characters: a request can name a queue that does not exist
SYNC_MS = 1000
UNIX_CLIENT = re.compile(r"unix:pid=(\d+),uid=(\d+)")
NO_FILE = 0


class Asker(Protocol):
    """The client that asks for an operation: a session, or an operation that outlives its session."""

    @property
    def address(self) -> str: ...

    @property
    def protocol(self) -> str: ...

    @property
    def user(self) -> str: ...

    @property
    def client_id(self) -> str: ...


class Requester(Struct, frozen=True):
    """The part of an asker that outlives its session."""

    address: str
    protocol: str
    user: str = ""
    client_id: str = ""


class Result(Enum):
    DONE = "done"
    REFUSED = "refused"  # nothing has changed; `why` has the reason
    BEGUN = "begun"  # takes many turns; a line of the same id with its result follows, unless it was cut off


class AuditEntry(Struct, frozen=True):
    """An operation. `queue` "": the server; `target`: where items went, or the new status. `items`: the number of
    items. `uid`, `pid`: of a program on a Unix socket, else -1. `left_out`: how many earlier operations of this kind
    over this protocol have no line. `user`: of [users]; "": unknown.
    """

    id: int
    at_ms: int
    operation: str
    queue: str
    target: str
    items: int
    result: Result
    why: str
    client: str
    protocol: str
    uid: int = -1
    pid: int = -1
    left_out: int = 0
    user: str = ""


_DECODER = msgspec.json.Decoder(AuditEntry)


class Audit:
    """The two files of one spool, and the newest entries in memory. `size_max`: of both files together; NO_FILE:
    entries are kept in memory only.
    """

    def __init__(self, group: GroupCommit, folder: str, size_max: int, report: EventSink, calendar: Calendar) -> None:
        self._group = group
        self._fs = group.fs
        self._paths = [f"{folder}/{name}" for name in NAMES]
        self._size_max = size_max
        self._calendar = calendar
        self._report = RateLimitedSink(report)
        self._limits = {True: RateLimit(OPERATORS_BURST), False: RateLimit(BURST, LONGEST_WINDOW_MS)}
        self._entries: deque[AuditEntry] = deque(maxlen=KEPT)
        self._is_loaded = False
        self._file: File | None = None
        self._is_torn = False  # the file may end in half a line
        self._last_id = 0
        # Users of the admin listener: a token belongs to a request, not to a session.
        self._users: dict[Asker, str] = {}

    def asks(self, asker: Asker, user: str) -> None:
        """Note the user of the request that is served next."""
        if user:
            self._users[asker] = user
        else:
            self._users.pop(asker, None)

    def requester(self, asker: Asker) -> Requester:
        """Return who sent the request that is being served."""
        user = self._users.get(asker, asker.user)
        return Requester(asker.address, asker.protocol, user, asker.client_id)

    def next_id(self) -> int:
        """Return the number of a new operation. Numbers rise across restarts."""
        self._load()
        self._last_id += 1
        return self._last_id

    def know_id(self, number: int) -> None:
        """Note that an operation has this number, although the files may not show it."""
        self._load()
        self._last_id = max(self._last_id, number)

    def tells_numbers(self) -> bool:
        """Tell whether the newer file shows which numbers are used."""
        try:
            size = self._fs.size(self._paths[0])
            lines = self._fs.read(self._paths[0], max(0, size - READ_BYTES), READ_BYTES).split(b"\n")
        except OSError:
            return False
        return any(_decoded([line]) for line in reversed(lines))

    def newest(self, offset: int, limit: int) -> list[AuditEntry]:
        """Return at most `limit` entries, the newest first, after leaving out `offset` of them."""
        self._load()
        entries = list(self._entries)[::-1]
        return entries[offset : offset + limit]

    def record_operation(
        self,
        asker: Asker,
        operation: str,
        now_ms: int,
        *,
        queue: str = "",
        target: str = "",
        items: int = 0,
        result: Result = Result.DONE,
        why: str = "",
        number: int = 0,
        is_forbidden: bool = False,
    ) -> int:
        """Record an operation of a client and return its number: `number`, or a new one. `is_forbidden`: it was refused
        because the client's rights do not allow it.
        """
        kind = ("forbidden" if is_forbidden else operation, asker.protocol, result)
        limit = self._limits[asker.protocol == OPERATORS and not is_forbidden]
        number = number or self.next_id()
        if limit.admits(kind, now_ms):
            left_out = limit.count(kind)
            address, protocol = asker.address, asker.protocol
            user = self._users.get(asker, asker.user)
            self._add(number, now_ms, operation, queue, target, items, result, why, address, protocol, left_out, user)
        return number

    def note_signal(self, operation: str, signal: str, now_ms: int) -> None:
        """Record an operation that a signal to the process has caused."""
        self._add(self.next_id(), now_ms, operation, "", "", 0, Result.DONE, "", signal, "signal", 0)

    def close(self) -> None:
        """Close the file because the server stops; everything written has been synced."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _add(
        self,
        number: int,
        now_ms: int,
        operation: str,
        queue: str,
        target: str,
        items: int,
        result: Result,
        why: str,
        client: str,
        protocol: str,
        left_out: int,
        user: str = "",
    ) -> None:
        at_ms = self._calendar.wall_ms(now_ms)
        match = UNIX_CLIENT.fullmatch(client)
        pid, uid = map(int, match.groups()) if match is not None else (-1, -1)
        why, queue = why[:WHY_MAX], queue[:NAME_MAX]
        entry = AuditEntry(
            number, at_ms, operation, queue, target, items, result, why, client, protocol, uid, pid, left_out, user
        )
        self._entries.append(entry)
        if self._size_max == NO_FILE:
            return
        try:
            self._write(_encoded(entry), now_ms)
        except OSError as error:
            self._is_torn = True
            hint = "the recorded operation was done all the same"
            self._report(
                Level.ERROR,
                "audit.unwritten",
                now_ms,
                file=self._paths[0],
                operation=operation,
                why=str(error),
                hint=hint,
            )

    def _write(self, line: bytes, now_ms: int) -> None:
        if self._file is not None and not self._file.is_at(self._paths[0]):
            self._leave(self._file, now_ms)
        if self._file is None:
            self._file = self._open()
            self._is_torn = self._file.size > 0 and self._fs.read(self._paths[0], self._file.size - 1, 1) != b"\n"
        elif self._file.size + len(line) > self._size_max // 2:
            self._rotate(now_ms)
            self._file = self._open()
        self._file.write(b"\n" * self._is_torn + line)
        self._is_torn = False
        self._group.include(self._file, SYNC_MS, now_ms)

    def _leave(self, file: File, now_ms: int) -> None:
        """Leave a file that another program, such as logrotate, has moved, removed or cut. The next line begins a new
        one.
        """
        self._file = None
        self._group.seal(file, now_ms)
        why = "another program has moved, removed or cut it"
        hint = "a new file is begun; it needs no logrotate: [admin] audit_log bounds it"
        self._report(Level.WARNING, "audit.replaced", now_ms, file=self._paths[0], why=why, hint=hint)

    def _open(self) -> File:
        path = self._paths[0]
        return NewFile(self._fs, path.rpartition("/")[0], path)

    def _rotate(self, now_ms: int) -> None:
        file, self._file = self._file, None
        assert file is not None
        self._group.seal(file, now_ms)
        self._fs.rename(*self._paths)

    def _load(self) -> None:
        """Read the newest entries of an earlier run."""
        if self._is_loaded:
            return
        self._is_loaded = True
        if self._size_max == NO_FILE:
            return
        for path in self._paths:
            left = KEPT - len(self._entries)
            try:
                size = self._fs.size(path)
                lines = self._fs.read(path, max(0, size - READ_BYTES), READ_BYTES).rsplit(b"\n", left + 1)
            except FileNotFoundError:
                continue
            except OSError as error:
                self._report(Level.ERROR, "audit.unreadable", 0, file=path, why=str(error))
                continue
            if len(lines) > left + 1:
                del lines[0]  # the beginning of the range, which may cut a line
            self._entries.extendleft(reversed(_decoded(lines)[-left:] if left else []))
        self._last_id = max([self._last_id, *[entry.id for entry in self._entries]])


def _encoded(entry: AuditEntry) -> bytes:
    """Encode a line. A queue's name need not be UTF-8: its other bytes become \\udc80 to \\udcff, as in HTTP
    replies.
    """
    try:
        return msgspec.json.encode(entry) + b"\n"
    except UnicodeEncodeError:
        import json

        return json.dumps(msgspec.to_builtins(entry), separators=(",", ":")).encode("ascii") + b"\n"


def _decoded(lines: Iterable[bytes]) -> list[AuditEntry]:
    """Decode the readable lines. The first may have lost its beginning, and any its end."""
    entries = []
    for line in lines:
        try:
            entries.append(_DECODER.decode(line))
        except UNDECODABLE:
            if b"\\ud" in line:  # perhaps a name with an odd byte, which the decoder above does not read
                import json

                with suppress(*UNDECODABLE):
                    entries.append(msgspec.convert(json.loads(line), AuditEntry))
    return entries
