"""Recovery of a queue from its files: the only start-up path, after a crash and after a clean stop alike.

It finishes an interrupted pack, then goes through the files in order. If a sidecar says what a file does, recovery uses
the sidecar; otherwise it reads the file record by record. It cuts off a damaged end and keeps a copy of it. Source:
"Multiple journal files" of the Kestrel journal format.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from msgspec import Struct, structs

from staniel.journal.disk.fs import Fs, SyncFailed, try_to_remove
from staniel.journal.disk.quarantine import quarantine, quarantine_entry
from staniel.journal.dump import rows
from staniel.journal.errors import CorruptRecord, Damage, TruncatedRecord
from staniel.journal.kestrel import files as kestrel_files
from staniel.journal.kestrel import sidecar
from staniel.journal.kestrel.derived_effect import follow
from staniel.journal.kestrel.dump import KestrelDumper
from staniel.journal.kestrel.effect import EffectMismatch
from staniel.journal.kestrel.files import Files
from staniel.journal.kestrel.install import UnfinishedPack, is_empty_pack, remove_sidecars, try_to_finish
from staniel.journal.kestrel.item_reader import LOST, is_stand_in
from staniel.journal.kestrel.read_behind import ReadBehind
from staniel.journal.kestrel.replay import Replay
from staniel.journal.kestrel.segments import IndexEntry, LogSegment, Segments
from staniel.journal.kestrel.sidecar import is_beginning
from staniel.queues.checkpoint import Checkpoint
from staniel.queues.line import UNBOUNDED, PlainLine

CHUNK_BYTES = 256 << 10

# Recovery keeps no more of a queue in memory. Counting an item costs a third of making it, and the rest is read ahead
# while clients are already served.
START_MEMORY_BYTES = 16 << 20


class SidecarRejected(Struct, frozen=True):
    """A file whose sidecar was not used. `is_serious`: the file or the sidecar has changed since it was written."""

    file: str
    why: str
    is_serious: bool


class MissingItems(Struct):
    """The items of a sealed file that is missing, or shorter than its sidecar says. `first_seq`: the first of them;
    None: unknown. `items`: how many of them were still in the queue, counted after the last file; -1: unknown.
    """

    file: str
    first_seq: int | None
    is_gone: bool
    items: int = -1


class Recovered(Struct):
    """The state of one queue, and its present files."""

    replay: Replay
    files: Files
    segments: Segments
    tail: ReadBehind
    replayed_bytes: int
    damages: list[Damage]
    skipped_bytes: int = 0  # bytes of files that need not be read, because they have sidecars
    rejected_sidecars: list[SidecarRejected] = []
    missing_items: list[MissingItems] = []
    stand_ins: int = 0  # items that lost records removed long ago; they are not delivered
    ahead: Checkpoint | None = None  # the queue's state according to sidecars, not restored into `replay` yet
    unfinished: UnfinishedPack | None = None
    refused: list[OSError] = []  # refused calls on files that are ignored


class Recovery:
    """The recovery of the queues of one spool folder."""

    def __init__(self, fs: Fs, folder: str) -> None:
        self.fs = fs
        self.folder = folder
        self.progress: Callable[[int], None] = lambda size: None
        """A hook that the owner sets; it is called with the bytes of files that have been processed since the last
        call.
        """

    def recover(self, queue: str, files: Files, now_ms: int, memory_bytes: int = UNBOUNDED) -> Recovered:
        """Finish what a crash interrupted, replay every file, cut off a damaged end. Keep at most about `memory_bytes`
        of items in memory. Raises OSError if the disk refuses.
        """
        refused = self.tidy(files)
        damages = self._set_empty_packs_aside(files, refused) if files.packs else []
        unfinished = self._finish_packs(queue, files) if files.packs else None
        segments, line = Segments(self.fs, self.folder, queue), PlainLine()
        line.tail = tail = ReadBehind(segments, line)
        line.bound(min(memory_bytes, START_MEMORY_BYTES))
        recovered = Recovered(Replay(now_ms, line), files, segments, tail, 0, damages)
        recovered.unfinished, recovered.refused = unfinished, refused
        for name in files.sealed_in_order():
            segments.current.name = name
            number = files.archives.get(name)
            if number is None:
                self._do_without(name, recovered)
            elif not self._skip(name, number, recovered):
                self._restore_state(recovered)
                self._replay_sealed(name, number, recovered)
        self._restore_state(recovered)
        segments.current.name = queue
        if files.current:
            self._replay(recovered)
            if recovered.damages and recovered.damages[-1].file == queue:
                recovered.damages[-1] = self._cut(recovered.damages[-1])
                segments.current.size = recovered.damages[-1].at
        line.measure_dropped()
        tail.reset()  # it may have read bytes that were cut off
        if recovered.missing_items:
            self._count_losses(recovered)
        return recovered

    def tidy(self, files: Files) -> list[OSError]:
        """Remove temporary files. Return what the system refuses. Such a file is never read; code that writes one first
        removes an old one, or does without.
        """
        refused = try_to_remove(self.fs, self.folder, files.temps)
        files.temps.clear()
        return refused

    def finish_pack(self, queue: str, files: Files) -> list[Damage]:
        """Remove temporary files. Put the newest pack in place of the files that it covers; set it aside if it is
        empty. Every step can be interrupted. Raises OSError.
        """
        damages = self._set_empty_packs_aside(files, self.tidy(files))
        unfinished = self._finish_packs(queue, files) if files.packs else None
        if unfinished is not None:
            raise unfinished.error
        return damages

    def _set_empty_packs_aside(self, files: Files, refused: list[OSError]) -> list[Damage]:
        """Move empty packs away. If the system refuses to move one, it stays, and the error is appended to `refused`;
        the next start will find it empty again. Raises OSError if a pack cannot be read, or a sync fails.
        """
        damages = []
        damaged = kestrel_files.damaged_folder(self.folder)
        for name in [name for name in files.packs if is_empty_pack(self.fs, f"{self.folder}/{name}")]:
            size = self.fs.size(f"{self.folder}/{name}")
            del files.packs[name]
            try:
                saved_as = quarantine_entry(self.fs, self.folder, name, damaged)
            except SyncFailed:
                raise
            except OSError as error:
                refused.append(error)
                files.stuck = [*files.stuck, name]
            else:
                damages.append(Damage(name, 0, size, "an empty pack replaces nothing", saved_as))
        return damages

    def _finish_packs(self, queue: str, files: Files) -> UnfinishedPack | None:
        newest = max(files.packs, key=lambda name: (files.packs[name], name))
        number = files.packs.pop(newest)
        older = sorted(files.packs, key=lambda name: (files.packs[name], name))
        covered = [name for name in files.archives_in_order() if files.archives[name] <= number]
        older += [name for name in files.gone if files.gone[name] <= number]
        sealed = kestrel_files.archive_name(queue, number)
        unfinished = try_to_finish(self.fs, self.folder, newest, sealed, covered + older)
        files.packs.clear()
        for name in covered:
            del files.archives[name]
        files.gone = {name: last_number for name, last_number in files.gone.items() if last_number > number}
        files.archives[unfinished.pack if unfinished else sealed] = number
        return unfinished

    def _skip(self, name: str, number: int, recovered: Recovered) -> bool:
        """Use a sealed file's sidecar in place of the file. Return False if the file must be read."""
        segments, path = recovered.segments, f"{self.folder}/{name}"
        described = sidecar.load(self.fs, self.folder, name)
        if described is None:
            return False
        segment, size = segments.current, self.fs.size(path)
        is_shorter = size < described.size and is_beginning(described, self.fs, path)
        try:
            if described.file != name or (described.size != size and not is_shorter):
                raise EffectMismatch(f"it describes {described.file} with {described.size} bytes")
            checkpoint = self._follow(segment, described)
        except EffectMismatch as odd:
            recovered.rejected_sidecars.append(SidecarRejected(name, str(odd), False))
            return False
        if not is_shorter and sidecar.compare_file(described, self.fs, path) is sidecar.Fit.OTHER:
            recovered.rejected_sidecars.append(SidecarRejected(name, "checksums are those of another file", True))
            return False
        if is_shorter:
            # The rest of the file is read to its end, even if the last block has a wrong checksum. The file gets no new
            # sidecar.
            segment.is_damaged = True
            recovered.missing_items.append(MissingItems(name, segment.entry.end + self._items_in(path), False))
        self._seal_described(described, checkpoint, number, size, recovered)
        if is_shorter:
            segment.checks, segment.index = [], [entry for entry in segment.index if entry.at < size]
        self.progress(size)
        return True

    def _follow(self, segment: LogSegment, described: sidecar.Sidecar) -> Checkpoint:
        """Return the checkpoint at the end of `segment`, by its sidecar. Raises EffectMismatch."""
        effect, last_id = described.effect, described.last_id
        return follow(segment.entry, segment.entered, effect, last_id, described.opens, described.heads)

    def _seal_described(
        self, described: sidecar.Sidecar, checkpoint: Checkpoint, number: int, size: int, recovered: Recovered
    ) -> None:
        """Give the current segment the facts in its sidecar, and seal it."""
        segments = recovered.segments
        segment = segments.current
        sidecar.apply_to_segment(segment, described)
        segments.seal(described.file, number, size, checkpoint, _counter_after(segment, described))
        recovered.ahead = checkpoint
        recovered.skipped_bytes += size

    def _do_without(self, name: str, recovered: Recovered) -> None:
        """Continue without a sealed file that is missing. Its sidecar says what the file did to its queue; without
        that, later files would remove other items.
        """
        described = sidecar.load(self.fs, self.folder, name)
        segment, gone = recovered.segments.current, recovered.files.gone
        try:
            if described is None or described.file != name:
                raise EffectMismatch("there is no sidecar")
            checkpoint = self._follow(segment, described)
            self._go_on_from(checkpoint, _counter_after(segment, described), name, recovered.files)
        except EffectMismatch:
            recovered.missing_items.append(MissingItems(name, None, True))
            del gone[name]
            remove_sidecars(self.fs, self.folder, [name])  # it is useless now, and must be reported only once
            return
        recovered.missing_items.append(MissingItems(name, segment.entry.end, True))
        segment.is_gone = True
        self._seal_described(described, checkpoint, gone[name], 0, recovered)

    def _go_on_from(self, checkpoint: Checkpoint, counter: int, name: str, files: Files) -> None:
        """Verify that the next existing sealed file, if there is one, continues from `checkpoint`. Raises
        EffectMismatch. It does not continue if it is a pack that has replaced `name`, and the sidecar of `name` is
        stale; a backup of a running server, for example, can leave such a sidecar.
        """
        order = files.sealed_in_order()
        for behind in order[order.index(name) + 1 :]:
            described = sidecar.load(self.fs, self.folder, behind)
            if described is None:
                raise EffectMismatch("the next file has no usable sidecar")
            effect = described.effect
            checkpoint = follow(checkpoint, counter, effect, described.last_id, described.opens, described.heads)
            counter = counter if effect.counter is None else effect.counter
            if behind in files.archives:
                return

    def _items_in(self, path: str) -> int:
        """Return how many items a file adds, up to its first unreadable record."""
        count = 0
        with suppress(CorruptRecord):
            for row in rows(self.fs, path, KestrelDumper()):
                count += row.data is not None
        return count

    def _count_losses(self, recovered: Recovered) -> None:
        """Count for each file the missing items that were still in the queue."""
        replay = recovered.replay
        ends = {
            segment.name: segment.checkpoint.end
            for segment in recovered.segments.sealed
            if segment.checkpoint is not None
        }
        outside = [delivery.seq for delivery in [*replay.open.values(), *replay.line.returned]]
        for missing in recovered.missing_items:
            if missing.first_seq is not None:
                first, end = missing.first_seq, ends[missing.file]
                missing.items = sum(first <= seq < end for seq in outside) + max(0, end - max(first, replay.line.left))

    def drop_stand_ins(self, recovered: Recovered) -> None:
        """Turn the stand-ins that remain after the last file of a queue into lost items. The records that would remove
        them are lost. Stand-ins are not items, so no client may get them.
        """
        line, opened = recovered.replay.line, recovered.replay.open
        recovered.tail.loses_stand_ins = True
        in_line = sum(map(is_stand_in, line.in_memory))
        if in_line:
            line.in_memory = deque([LOST if is_stand_in(item) else item for item in line.in_memory])
        outside = [delivery for delivery in opened.values() if is_stand_in(delivery.item)]
        returned = [delivery for delivery in line.returned if is_stand_in(delivery.item)]
        for delivery in [*outside, *returned]:
            delivery.item = LOST
        line.expiring += in_line + len(returned)
        recovered.stand_ins += in_line + len(returned) + len(outside)

    def _restore_state(self, recovered: Recovered) -> None:
        """Let replay continue from the state that the sidecars have led to."""
        checkpoint, replay, tail = recovered.ahead, recovered.replay, recovered.tail
        if checkpoint is None:
            return
        line = replay.line
        items = {delivery.seq: delivery.item for delivery in [*replay.open.values(), *line.returned]}
        line.place(checkpoint, [], 0, 0)
        seqs = {*checkpoint.open_seqs, *checkpoint.heads}
        items |= tail.fetch(seqs - items.keys())
        size, expiring = (
            tail.totals_before(checkpoint.left)
            if checkpoint.left < checkpoint.end
            else (checkpoint.added_bytes, checkpoint.added_expiring)
        )
        counter = recovered.segments.current.entered
        replay.restore(checkpoint, counter, items, checkpoint.added_bytes - size, checkpoint.added_expiring - expiring)
        recovered.ahead = None

    def _replay_sealed(self, name: str, number: int, recovered: Recovered) -> None:
        segments, replay, damages = recovered.segments, recovered.replay, recovered.damages
        size = self._replay(recovered)
        if damages and damages[-1].file == name:
            # A sealed file is complete, so a torn record in it is damage.
            damages[-1] = structs.replace(self._keep_copy(damages[-1]), is_torn=False)
            segments.current.is_damaged = True
        segments.seal(name, number, size, replay.checkpoint(), replay.counter)

    def _replay(self, recovered: Recovered) -> int:
        """Read the current segment into the state and return its size. Stop at the first damaged record, and note it. A
        change with missing records at the end of the file counts as damaged, too.
        """
        segment, replay = recovered.segments.current, recovered.replay
        segment.size = size = self.fs.size(f"{self.folder}/{segment.name}")
        end_file = partial(replay.end_file, is_sealed=segment.name in recovered.files.archives)
        replay.begin_file()
        at, want = 0, CHUNK_BYTES
        try:
            while at < size:
                piece = recovered.segments.read(segment, at, want)
                used = replay.consume(piece, size - at - len(piece))
                at += used
                self.progress(used)
                if replay.is_between_changes:
                    line = replay.line
                    segment.add_index_entry(IndexEntry(at, line.end, line.added_bytes, line.added_expiring))
                # The record is longer than the piece. Read twice as much, because the file is known to have so much.
                want = CHUNK_BYTES if used else 2 * want
            if unfinished_bytes := end_file():
                raise TruncatedRecord(at=-unfinished_bytes)
        except CorruptRecord as error:
            error.at += at - end_file()  # it counts from the piece that was read last
            torn = isinstance(error, TruncatedRecord)
            damage = Damage(segment.name, error.at, segment.size - error.at, error.why, is_torn=torn)
            recovered.damages.append(damage)
        recovered.replayed_bytes += segment.size
        return segment.size

    def _cut(self, damage: Damage) -> Damage:
        """Copy the unreadable end of the current file, then cut it off, so that new records can follow."""
        copy = self._keep_copy(damage)
        self.fs.truncate(f"{self.folder}/{damage.file}", damage.at)
        return copy

    def _keep_copy(self, damage: Damage) -> Damage:
        path, damaged = f"{self.folder}/{damage.file}", kestrel_files.damaged_folder(self.folder)
        saved_as = quarantine(self.fs, path, damage.at, damage.lost_bytes, damaged)
        return structs.replace(damage, saved_as=saved_as)


def _counter_after(segment: LogSegment, described: sidecar.Sidecar) -> int:
    counter = described.effect.counter
    return segment.entered if counter is None else counter
