"""The thread that works on the files of a member that does not lead: it applies records, takes a copy, sums files, and
syncs, one after the other. The loop hands it the work and goes on; what ended comes back as an event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from msgspec import Struct

from staniel.cluster.durable import Kept
from staniel.cluster.stream import RECORD_COST, Record
from staniel.server.cluster.member_spool import MemberSpool
from staniel.server.sync_thread import WorkerThread

T = TypeVar("T")
WAITING_BYTES_MAX = 32 << 20
"""Bytes of records and pieces that wait for the thread; beyond that, the leader must wait."""


class SpoolWork(Struct):
    """A piece of work. `ended` is called on the loop with what it returned. `is_copy`: syncs of the member's file wait
    for it, because they say that all that was written before is durable.
    """

    work: Callable[[], object]
    ended: Callable[[], None]
    size: int = 0
    is_copy: bool = False

    def run(self) -> None:
        self.work()


def _do_nothing() -> None:
    pass


class SpoolThread:
    """The thread, and the work that waits for it. `durable`: records up to this number are durable in files. `running`:
    what it does now. Methods return at once, but for `close`.
    """

    def __init__(self, spool: MemberSpool, kept: Kept) -> None:
        self._spool = spool
        self._kept = kept
        self._worker: WorkerThread[SpoolWork] = WorkerThread("spool")
        self._waiting: deque[SpoolWork] = deque()
        self._applied = 0
        """Records up to this number were handed over, or are in the files."""
        self._is_syncing = self._has_failed = False
        self.running: SpoolWork | None = None
        self.durable = self.waiting_bytes = self.copies = 0

    @property
    def fd(self) -> int:
        """The descriptor that is readable when work has ended."""
        return self._worker.fd

    @property
    def is_copying(self) -> bool:
        """True if a part of a copy is not in the files yet."""
        return bool(self.copies)

    def take_ended(self) -> None:
        """Go on with the next work, if one has ended. Raises what the ended one raised: none may follow it then."""
        try:
            if self._worker.finished() is None:
                return
        except BaseException:
            self.running, self._has_failed = None, True
            self._waiting.clear()
            raise
        ended, self.running = self.running, None
        assert ended is not None
        self.waiting_bytes -= ended.size
        self.copies -= ended.is_copy
        self._start_next()
        ended.ended()

    def apply(self, upto: int) -> None:
        """Apply the records up to this number."""
        if records := self._take_records(upto):
            size = sum([len(record.data) for record in records]) + RECORD_COST * len(records)
            self._do(partial(self._spool.apply, records), size=size)

    def _take_records(self, upto: int) -> list[Record]:
        records: list[Record] = []
        for record in self._kept.stream.behind(self._applied):
            if record.place.number > upto:
                break
            records.append(record)
        self._applied = max(self._applied, upto)
        return records

    def sync(self) -> None:
        """Make what is applied durable in files. `durable` says so later."""
        if not self._is_syncing:
            self._is_syncing = True
            self._do_for(self._spool.sync, self._note_durable)

    def _note_durable(self, number: int) -> None:
        self._is_syncing = False
        self.durable = number

    def begin_copy(self) -> None:
        """Begin to take the files of a leader. The stream in `kept` is the one that follows them."""
        self._applied = self.durable = 0
        self._do(self._spool.begin_copy, is_copy=True)

    def write_piece(self, data: bytes) -> None:
        """Take a piece of a copy."""
        self._do(partial(self._spool.write_piece, data), size=len(data), is_copy=True)

    def sum_files(self, *, is_first: bool, then: Callable[[tuple[bytes, bool]], None]) -> None:
        """Sum some files, and call `then` with the piece that says so, and whether it is the last."""
        self._do_for(partial(self._spool.sum_files, is_first=is_first), then)

    def become_leaders(self, upto: int, then: Callable[[], None]) -> None:
        """Apply all records, leave the files to a server that leads, and call `then`."""
        self._do(partial(self._spool.become_leaders, self._take_records(upto)), then)

    def close(self) -> None:
        """Wait for all work, and leave the files synced, unless work has failed."""
        while self.running is not None:
            self._worker.join()
            self.take_ended()
        self._worker.close()
        if not self._has_failed:
            self._spool.close()

    def _do_for(self, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """Have work done whose result `then` takes."""
        results: list[T] = []
        self._do(lambda: results.append(work()), lambda: then(results[0]))

    def _do(
        self,
        work: Callable[[], object],
        ended: Callable[[], None] = _do_nothing,
        *,
        size: int = 0,
        is_copy: bool = False,
    ) -> None:
        self._waiting.append(SpoolWork(work, ended, size, is_copy))
        self.waiting_bytes += size
        self.copies += is_copy
        self._start_next()

    def _start_next(self) -> None:
        if self.running is None and self._waiting:
            self.running = self._waiting.popleft()
            self._worker.start(self.running)
