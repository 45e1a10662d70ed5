"""Move a queue and its fan-out children to another journal format, while no server runs.

The order makes it safe. The new files are written outside the spool, synced and read back before any old file is
touched. Then a plan is written, and from then on every start carries it out to the end. The old files are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256

from staniel.journal.clock_note import noted_calendar
from staniel.journal.convert_plan import FOLDER, ConversionPlan, carry_out, encode
from staniel.journal.disk.fs import File, Fs, JournalFailure, is_missing
from staniel.journal.disk.refusals import described, failure_line, remedy_in_service
from staniel.journal.disk.replace_file import replace_file
from staniel.journal.disk.watched_fs import RefusedCalls
from staniel.journal.errors import Damage
from staniel.journal.kestrel import files as kestrel_files
from staniel.journal.kestrel.encoder import Encoder
from staniel.journal.kestrel.item_reader import is_stand_in
from staniel.journal.libkestrel import files as libkestrel_files
from staniel.journal.libkestrel.family import StreamJournal
from staniel.journal.libkestrel.files import queue_of_reader, reader_name, segment_name
from staniel.journal.libkestrel.position import Position, encode_reader_file
from staniel.journal.libkestrel.records import DATA_BYTES_MAX, MAGIC_BYTES, SEGMENT_MAGIC, encode_put
from staniel.journal.libkestrel.segments import StreamSegments
from staniel.journal.spool import Spool
from staniel.journal.tools.unfinished import unfinished_in
from staniel.queues.calendar import Calendar
from staniel.queues.config import Format, JournalDialect, QueueConfig
from staniel.queues.delays import delay_of, due_ms, expiry_of
from staniel.queues.item import LOST_MS, Item, copy_of
from staniel.queues.line import Line
from staniel.queues.names import family_of, file_error, parent_of

SEGMENT_BYTES = 16 << 20
MEMORY_BYTES = 64 << 20
PIECE_BYTES = 1 << 20
TOLD_EVERY_ITEMS = 10_000

Progress = Callable[[str, int, int], None]  # arguments: the work, how many items are done, how many there are


class ConversionRefused(Exception):
    """The error for a conversion that cannot be done. Nothing has changed; the text says why and what to do."""


class ConversionUnfinished(Exception):
    """The error for a conversion whose new files are complete but not all in place. The text says why and what
    to do.
    """


class Digest:
    """The digest of a queue's content: the number of items, and a checksum over all of them in their order."""

    def __init__(self) -> None:
        self.items = 0
        self._hash = sha256()

    def add(self, item: Item) -> None:
        self.items += 1
        self._hash.update(b"%d %d %d " % (len(item.data), item.added_ms, item.expires_ms))
        self._hash.update(item.data)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Digest) and (self.items, self._hash.digest()) == (other.items, other._hash.digest())


class Conversion:
    """The conversion of a queue with its children from one format to the other. The spool must be this process's own
    (see Spool).
    """

    def __init__(
        self, spool: Spool, queue: str, now_ms: int, progress: Progress, watch: RefusedCalls | None = None
    ) -> None:
        """Take a spool whose disk `watch` watches."""
        self._watch = watch or RefusedCalls()
        self.spool = spool
        self.fs: Fs = spool.fs
        self.queue = queue
        self.now_ms = now_ms
        self.progress = progress
        self.folder = f"{spool.own}/{FOLDER}"
        self.old: list[str] = []
        self.left: list[Damage] = []
        """The unreadable parts of the old files, which the new files do not have. Each text says where a copy is."""

    def run(self, target_format: Format) -> int:
        """Convert the queue. Return how many items have been moved; -1 if the queue is in that format already. Raises
        ConversionRefused, or OSError with nothing changed in the spool; ConversionUnfinished.
        """
        self._watch.pop_error()  # recovery may continue without what was refused
        try:
            return self._run(target_format)
        except ConversionRefused:
            self._watch.check()  # a refused read is not damage
            raise

    def _run(self, target_format: Format) -> int:
        """Do what `run` does."""
        if parent_of(self.queue):
            raise ConversionRefused(f"{self.queue} is a fan-out queue; name its parent, {parent_of(self.queue)}")
        source_format = self._format()
        if source_format is target_format:
            return -1
        self._clean()
        lines = self._kestrel_lines() if source_format is Format.KESTREL else self._stream_lines()
        total = sum(map(len, lines.values()))
        digests = {name: Digest() for name in lines}
        new = (self._write_stream if target_format is Format.LIBKESTREL else self._write_kestrel)(lines, digests, total)
        self.fs.sync_folder(self.folder)
        self._verify(target_format, digests, total)
        self._watch.check()  # items of a refused read might be missing in both
        self._put_in_place(ConversionPlan(f"{self.spool.own}/aside.{self.now_ms}", self.old, new))
        return sum(digest.items for digest in digests.values())

    def _put_in_place(self, plan: ConversionPlan) -> None:
        """Write the plan and carry it out. Raises OSError with nothing changed in the spool; ConversionUnfinished."""
        path = kestrel_files.plan_path(self.spool.own)
        try:
            replace_file(self.fs, path, encode(plan))
        except (OSError, JournalFailure) as error:
            if is_missing(self.fs, path):
                raise
            raise self._not_in_place(error, path) from error
        try:
            carry_out(self.fs, self.spool.folder, self.spool.own)
        except (OSError, JournalFailure) as error:
            raise self._not_in_place(error, path) from error

    def _not_in_place(self, error: OSError | JournalFailure, path: str) -> ConversionUnfinished:
        left = f"the files of {self.queue} are between two formats, as {path} says"
        if isinstance(error, JournalFailure):  # only a start may finish it: it renews what the disk may lack
            why, hint = str(error), "look at the system's log"
            if isinstance(refused := error.__cause__, OSError):
                why, hint = described(refused, path), remedy_in_service(refused, hint)
            return ConversionUnfinished(f"{why}; {hint}. {left}: start a server, which finishes it")
        return ConversionUnfinished(
            f"{failure_line(error, path)}. {left}: run this again or start a server, which finishes it"
        )

    def _format(self) -> Format:
        listing = self.spool.listing()
        kestrel = [name for name in listing.kestrel if family_of(name) == self.queue]
        if left := unfinished_in(self.fs, self.spool.folder, self.queue):
            why = left[0].work.value
            raise ConversionRefused(
                f"the last server left work to finish: {why}; start it once, stop it, and try again"
            )
        if self.queue in listing.mixed:
            raise ConversionRefused(f"queue {self.queue}: {listing.mixed[self.queue]}")
        if self.queue in listing.streams:
            return Format.LIBKESTREL
        if not kestrel:
            raise ConversionRefused(f"there is no queue {self.queue} in {self.spool.folder}")
        return Format.KESTREL

    def _clean(self) -> None:
        """Remove what an interrupted run has left. Without a plan it is of no use."""
        self.fs.make_folder(self.folder)
        for name, regular in self.fs.list(self.folder):
            if regular:
                self.fs.remove(f"{self.folder}/{name}")

    def _kestrel_lines(self) -> dict[str, Line]:
        lines: dict[str, Line] = {}
        for name, files in sorted(self.spool.listing().kestrel.items()):
            if family_of(name) != self.queue:
                continue
            if why := stream_refusal(name):
                raise ConversionRefused(why)
            recovered = self.spool.recovery.recover(name, files, self.now_ms, MEMORY_BYTES)
            replay = recovered.replay
            for xid in sorted(replay.open, reverse=True):
                replay.line.give_back(replay.open[xid])
            lines[name] = replay.line
            self.left += recovered.damages
            self.old += files.names()
        return lines

    def _stream_lines(self) -> dict[str, Line]:
        files = self.spool.listing().streams[self.queue]
        readers = [name for name in files.readers if name and name != self.queue and file_error(f"{self.queue}+{name}")]
        if readers:
            raise ConversionRefused(f"Kestrel's format cannot keep the reader {readers[0]!r} of queue {self.queue}")
        recovered, journals = self.spool.streams.recover(files, lambda name: QueueConfig(), self.now_ms)
        self.left += recovered.damages
        self.spool.group.sync_all(self.now_ms)
        self.old = self.spool.listing().streams[self.queue].names()
        return {name: journal.line for name, journal in journals}

    def _write_stream(self, lines: dict[str, Line], digests: dict[str, Digest], total: int) -> list[str]:
        """Merge the queues into one: an item at the head of several queues becomes one item of all of them."""
        calendar = noted_calendar(self.fs, self.spool.own)
        writer = SegmentFiles(self.fs, self.folder, self.queue, self._first_number())
        positions = {name: Position() for name in lines}
        segments = StreamSegments(self.fs, self.folder)
        item_id = done = 0
        while heads := {name: head for name, line in lines.items() if (head := next_item(line)) is not None}:
            item = min(heads.values(), key=lambda head: head.added_ms)
            refuse_lost(item)
            if len(item.data) > DATA_BYTES_MAX:
                raise ConversionRefused(f"an item of {len(item.data)} bytes: libkestrel's format allows 16MB at most")
            item_id += 1
            written = undelayed(item, calendar, self.now_ms)
            writer.write(encode_put(written, item_id))
            for name, position in positions.items():
                if heads.get(name) == item:
                    lines[name].pop()
                    digests[name].add(written)
                    done = self._report_progress("writing", done + 1, total)
                else:
                    position.confirm(item_id, item_id, segments)
        writer.close()
        return writer.names + [self._write_reader(name, positions) for name in lines]

    def _write_reader(self, name: str, positions: dict[str, Position]) -> str:
        reader = name.partition("+")[2] or ("" if len(positions) == 1 else self.queue)
        file_name = reader_name(self.queue, reader)
        write_file(self.fs, f"{self.folder}/{file_name}", [encode_reader_file(positions[name])])
        return file_name

    def _first_number(self) -> int:
        """Return a number above those of all existing files, so that no new name is an old one."""
        numbers = [kestrel_files.parse(name).number for name in self.old]
        return max([self.now_ms, *(number + 1 for number in numbers)])

    def _write_kestrel(self, lines: dict[str, Line], digests: dict[str, Digest], total: int) -> list[str]:
        done = 0
        for name, line in lines.items():
            encoder = Encoder(JournalDialect.DOCUMENTS)
            file = self.fs.append(f"{self.folder}/{name}")
            pieces: list[bytes] = []
            while line.head() is not None:
                item = line.pop().item
                refuse_lost(item)
                digests[name].add(item)
                pieces.append(encoder.addx(copy_of(item)))
                done = self._report_progress("writing", done + 1, total)
                if len(pieces) == TOLD_EVERY_ITEMS or len(item.data) > PIECE_BYTES:
                    file.write(b"".join(pieces))
                    pieces.clear()
            finish_file(file, b"".join(pieces))
        return list(lines)

    def _report_progress(self, stage: str, done: int, total: int) -> int:
        if not done % TOLD_EVERY_ITEMS:
            self.progress(stage, done, total)
        return done

    def _verify(self, target_format: Format, digests: dict[str, Digest], total: int) -> None:
        """Read the new files back as recovery would. Raises ConversionRefused."""
        lines = self._lines_of_new(target_format)
        done = 0
        for name, expected in digests.items():
            digest = Digest()
            while name in lines and lines[name].head() is not None:
                digest.add(lines[name].pop().item)
                done = self._report_progress("verifying", done + 1, total)
            if digest != expected:
                raise ConversionRefused(f"the new files of {name} differ from the old ones; nothing has been replaced")

    def _lines_of_new(self, target_format: Format) -> dict[str, Line]:
        entries = self.fs.list(self.folder)
        if target_format is Format.KESTREL:
            recovery = type(self.spool.recovery)(self.fs, self.folder)
            queues = kestrel_files.sort_out(entries)[0]
            return {
                name: recovery.recover(name, files, self.now_ms, MEMORY_BYTES).replay.line
                for name, files in queues.items()
            }
        files = libkestrel_files.group_by_queue(entries)[self.queue]
        streams = self.spool.streams
        recovered = type(streams.recovery)(self.fs, self.folder, streams.recovery.damaged).recover(files, self.now_ms)
        config = QueueConfig()
        family = StreamJournal(self.queue, self.spool.group, config, recovered.segments, streams.tasks)
        return {
            queue_of_reader(self.queue, reader): family.resume(reader, position, config).line
            for reader, position in recovered.readers.items()
        }


class SegmentFiles:
    """The writer of segments, one after another, each synced when it is full."""

    def __init__(self, fs: Fs, folder: str, queue: str, number: int) -> None:
        self.fs = fs
        self.folder = folder
        self.queue = queue
        self.number = number
        self.names: list[str] = []
        self._file: File | None = None
        self._size = 0
        self._pieces: list[bytes] = []
        self._pending = 0

    def write(self, record: bytes) -> None:
        if self._file is None or self._size + len(record) > SEGMENT_BYTES:
            self.close()
            self._begin_segment()
        self._pieces.append(record)
        self._size += len(record)
        self._pending += len(record)
        if self._pending > PIECE_BYTES and self._file is not None:
            self._file.write(b"".join(self._pieces))
            self._pieces.clear()
            self._pending = 0

    def close(self) -> None:
        """Complete and close the last segment."""
        if self._file is not None:
            finish_file(self._file, b"".join(self._pieces))
            self._pieces.clear()
            self._file = None

    def _begin_segment(self) -> None:
        self.names.append(segment_name(self.queue, self.number))
        self.number += 1
        self._file = self.fs.append(f"{self.folder}/{self.names[-1]}")
        self._pieces.append(SEGMENT_MAGIC)
        self._size = self._pending = MAGIC_BYTES


def write_file(fs: Fs, path: str, pieces: list[bytes]) -> None:
    finish_file(fs.append(path), b"".join(pieces))


def finish_file(file: File, last_bytes: bytes) -> None:
    """Write `last_bytes`, then sync and close the file."""
    try:
        if last_bytes:
            file.write(last_bytes)
        file.sync()
    finally:
        file.close()


def next_item(line: Line) -> Item | None:
    """Return the head of a line that recovery has read, without the stand-ins before it: the records that would remove
    them are lost, and they are not items.
    """
    while (head := line.head()) is not None and is_stand_in(head):
        line.pop()
    return head


def refuse_lost(item: Item) -> None:
    """Raise ConversionRefused for an item that its journal has lost."""
    if item.expires_ms == LOST_MS:
        raise ConversionRefused("an item cannot be read back from the old files; nothing has been replaced")


def undelayed(item: Item, calendar: Calendar, now_ms: int) -> Item:
    """Return `item` for libkestrel's format, which has no delays. Raises ConversionRefused if it has not ended."""
    if delay_of(item) is None:
        return item
    if (ends_ms := due_ms(calendar, item, now_ms)) > now_ms:
        due = datetime.fromtimestamp(ends_ms / 1000, UTC).isoformat(timespec="seconds")
        raise ConversionRefused(
            f"an item is put with a delay that ends at {due}: libkestrel's format has no delays; "
            "convert the queue when all of them have ended, or flush it first"
        )
    return Item(item.data, item.added_ms, expiry_of(item), item.flags)


def stream_refusal(name: str) -> str:
    """Return why a libkestrel journal cannot keep a queue called `name`; empty if it can."""
    parent = parent_of(name)
    parts = [parent, name.partition("+")[2]] if parent else [name]
    if parent and parts[1] == parent:
        return f"in libkestrel's format {name} would be {parent} itself; empty it and delete it first"
    return next((f"{name}: {why}" for part in parts if (why := libkestrel_files.name_error(part))), "")
