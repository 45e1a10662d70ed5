"""Read-ahead for queues whose last items are only in the journal: a thread reads pieces, and the turn decodes a few
items of them at a time.
"""

from __future__ import annotations

from staniel.journal.background import ReadPiece, TaskQueue
from staniel.journal.kestrel.read_behind import ReadBehind
from staniel.journal.kestrel.segments import LogSegment
from staniel.queues.queue import Queue

QUEUES_PER_STEP = 4


class ReadAhead:
    """The queues whose items are read ahead. `decode_some` is called in every turn."""

    def __init__(self, tasks: TaskQueue) -> None:
        self._tasks = tasks
        self.pending: dict[Queue, None] = {}  # queues for which `decode_some` has something to do now
        self._failed: set[Queue] = set()  # queues whose next get reads the items, and reports the error
        self._reading: dict[Queue, None] = {}

    def queue_if_room(self, queue: Queue) -> None:
        """Begin to read ahead if `queue`, which has changed, has room for more of its items."""
        if queue not in self._reading and queue.line.on_disk and not queue.line.is_full and queue not in self._failed:
            self.pending[queue] = None

    def forget(self, queue: Queue) -> None:
        """Remove `queue`, which is deleted."""
        self.pending.pop(queue, None)
        self._failed.discard(queue)

    def retry(self, queue: Queue) -> None:
        """Try again, because the queue's files may be readable now."""
        self._failed.discard(queue)
        self.queue_if_room(queue)

    def decode_some(self) -> None:
        """Decode a slice for a few queues, in turns. A queue that cannot be read waits until a client asks for it."""
        for queue in list(self.pending)[:QUEUES_PER_STEP]:
            del self.pending[queue]
            try:
                self._feed(queue)
            except OSError:
                self._failed.add(queue)

    def _feed(self, queue: Queue) -> None:
        line = queue.line
        tail = line.tail
        if not line.on_disk or line.is_full or not isinstance(tail, ReadBehind):
            return
        items = tail.decode()
        if items:
            line.take_in(items)
            self.queue_if_room(queue)
        wanted = tail.span_to_read() if line.on_disk else None
        if wanted is not None and queue not in self._reading:
            self._read(queue, tail, *wanted)

    def _read(self, queue: Queue, tail: ReadBehind, segment: LogSegment, at: int, count: int) -> None:
        def come(error: OSError | None, now_ms: int) -> None:
            del self._reading[queue]
            if error is not None and not segment.is_replaced:
                self._failed.add(queue)
            elif queue.line.tail is tail:
                tail.read_ahead(segment, at, piece.data, piece.checks)
                self.pending[queue] = None

        path = tail.segments.path(segment)
        piece = ReadPiece(tail.segments.fs, path, at, count, segment.block_bytes, come)
        self._reading[queue] = None
        self.pending.pop(queue, None)
        self._tasks.submit(piece, urgent=True)
