"""From a queue's files to its state: the only start-up path, after a crash and after a clean stop alike.

Knows the order of the files, which of them need not be read because a sidecar tells what they do, what to finish, what
to cut and what to keep aside. Refuses to know queues in service. Source: "Multiple journal files" of the Kestrel
journal format.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct, structs

from journal import layout, sidecar
from journal.damaged import keep
from journal.derived import follow
from journal.fs import Fs
from journal.layout import Files
from journal.packing import finish_pack
from journal.readback import ReadBack
from journal.replay import Bad, Replay
from journal.segments import Place, Segment, Segments
from journal.summaries import Entangled
from queues.line import UNBOUNDED, Line
from queues.marks import Mark

CHUNK_BYTES = 256 << 10


class Damage(Struct, frozen=True):
    """A file whose records can be read up to byte `at`. `saved_as` holds a copy of the rest."""

    file: str
    at: int
    lost_bytes: int
    why: str
    saved_as: str


# A start keeps no more of a queue in memory: counting an item costs a third of making it, and the rest is read ahead
# while clients are served already.
START_MEMORY_BYTES = 16 << 20


class Doubt(Struct, frozen=True):
    """A file whose sidecar was not used. `is_serious`: the file or the sidecar is not what was written."""

    file: str
    why: str
    is_serious: bool


class Recovered(Struct):
    """The state of one queue, and its files as they are now."""

    replay: Replay
    files: Files
    segments: Segments
    tail: ReadBack
    replayed_bytes: int
    damages: list[Damage]
    skipped_bytes: int = 0  # of files that were not read, because their sidecars told enough
    doubts: list[Doubt] = []
    ahead: Mark | None = None  # where the queue stands by sidecars, which replay has not been told yet


class Recovery:
    """Recovers the queues of one spool folder."""

    def __init__(self, fs: Fs, folder: str) -> None:
        self.fs = fs
        self.folder = folder
        self.progress: Callable[[int], None] = lambda size: None
        """Set by who wants to know: so many more bytes of files have been dealt with."""

    def recover(self, queue: str, files: Files, now_ms: int, memory_bytes: int = UNBOUNDED) -> Recovered:
        """Finish what a crash interrupted, replay every file, cut a damaged end. About `memory_bytes` of items are kept
        in memory at most. Raises OSError if the disk refuses.
        """
        self.finish(queue, files)
        recovered = self._prepare(queue, files, now_ms, memory_bytes)
        segments = recovered.segments
        for name in files.archives_in_order():
            segments.current.name = name
            if not self._skip(name, files.archives[name], recovered):
                self._place(recovered)
                self._replay_sealed(name, files.archives[name], recovered)
        self._place(recovered)
        segments.current.name = queue
        if files.current:
            self._replay(recovered)
            if recovered.damages and recovered.damages[-1].file == queue:
                recovered.damages[-1] = self._cut(recovered.damages[-1])
                segments.current.size = recovered.damages[-1].at
        recovered.replay.line.settle()
        recovered.tail.start_afresh()  # it may have read what has been cut off
        return recovered

    def _prepare(self, queue: str, files: Files, now_ms: int, memory_bytes: int) -> Recovered:
        segments = Segments(self.fs, self.folder, queue)
        line = Line()
        line.tail = tail = ReadBack(segments, line)
        line.bound(min(memory_bytes, START_MEMORY_BYTES))
        return Recovered(Replay(now_ms, line), files, segments, tail, 0, [])

    def tidy(self, files: Files) -> None:
        """Drop temporary files."""
        for name in files.temps:
            self.fs.remove(f"{self.folder}/{name}")
        files.temps.clear()

    def finish(self, queue: str, files: Files) -> None:
        """Drop temporary files; put the newest pack in place of what it covers. Safe to interrupt at every step."""
        self.tidy(files)
        if files.packs:
            self._finish_packs(queue, files)

    def _finish_packs(self, queue: str, files: Files) -> None:
        newest = max(files.packs, key=lambda name: (files.packs[name], name))
        number = files.packs.pop(newest)
        older = sorted(files.packs, key=lambda name: (files.packs[name], name))
        covered = [name for name in files.archives_in_order() if files.archives[name] <= number]
        sealed = layout.archive_name(queue, number)
        finish_pack(self.fs, self.folder, newest, sealed, covered + older)
        files.packs.clear()
        for name in covered:
            del files.archives[name]
        files.archives[sealed] = number

    def _skip(self, name: str, number: int, recovered: Recovered) -> bool:
        """Take a sealed file's sidecar for it; False if the file has to be read."""
        segments, path = recovered.segments, f"{self.folder}/{name}"
        described = sidecar.load(self.fs, self.folder, name)
        if described is None:
            return False
        segment, size = segments.current, self.fs.size(path)
        try:
            if described.file != name or described.size != size:
                raise Entangled(f"it speaks of {described.file} with {described.size} bytes")
            effect = described.effect
            mark = follow(segment.entry, segment.entered, effect, described.last_id, described.opens, described.heads)
        except Entangled as odd:
            recovered.doubts.append(Doubt(name, str(odd), False))
            return False
        if sidecar.fit(described, self.fs, path) is sidecar.Fit.OTHER:
            recovered.doubts.append(Doubt(name, "checksums are those of another file", True))
            return False
        sidecar.furnish(segment, described)
        segments.seal(name, number, size, mark, segment.entered if effect.counter is None else effect.counter)
        recovered.ahead = mark
        recovered.skipped_bytes += size
        self.progress(size)
        return True

    def _place(self, recovered: Recovered) -> None:
        """Let replay go on where the sidecars have led."""
        mark, replay, tail = recovered.ahead, recovered.replay, recovered.tail
        if mark is None:
            return
        line = replay.line
        items = {taken.turn: taken.item for taken in [*replay.open.values(), *line.returned]}
        line.place(mark, [], 0, 0)
        wanted = {*(turn for _, turn in mark.open), *mark.heads}
        items |= tail.fetch(wanted - items.keys())
        size, mortal = tail.came(mark.left) if mark.left < mark.end else (mark.came_bytes, mark.came_mortal)
        counter = recovered.segments.current.entered
        replay.restore(mark, counter, items, mark.came_bytes - size, mark.came_mortal - mortal)
        recovered.ahead = None

    def _replay_sealed(self, name: str, number: int, recovered: Recovered) -> None:
        segments, replay, damages = recovered.segments, recovered.replay, recovered.damages
        size = self._replay(recovered)
        if damages and damages[-1].file == name:
            damages[-1] = self._keep_copy(damages[-1])
            segments.current.is_damaged = True
        segments.seal(name, number, size, replay.mark(), replay.counter)

    def _replay(self, recovered: Recovered) -> int:
        """Read the current segment into the state; its size. Stops at the first damaged record, and notes it."""
        segment = recovered.segments.current
        segment.size = self.fs.size(f"{self.folder}/{segment.name}")
        try:
            self._replay_segment(segment, recovered)
        except Bad as bad:
            recovered.damages.append(Damage(segment.name, bad.at, segment.size - bad.at, bad.why, ""))
        recovered.replayed_bytes += segment.size
        return segment.size

    def _replay_segment(self, segment: Segment, recovered: Recovered) -> None:
        replay, size = recovered.replay, segment.size
        replay.begin_file()
        at, want = 0, CHUNK_BYTES
        while at < size:
            piece = recovered.segments.read(segment, at, want)
            try:
                used = replay.consume(piece, size - at - len(piece))
            except Bad as bad:
                raise Bad(bad.why, at + bad.at) from None
            at += used
            self.progress(used)
            if replay.is_between_changes:
                line = replay.line
                segment.note(Place(at, line.end, line.came_bytes, line.came_mortal))
            # A record longer than the piece: read twice as much, which the file really has.
            want = CHUNK_BYTES if used else 2 * want

    def _cut(self, damage: Damage) -> Damage:
        """Keep the unreadable end of the current file aside, then cut it off, so that new records can follow."""
        kept = self._keep_copy(damage)
        self.fs.truncate(f"{self.folder}/{damage.file}", damage.at)
        return kept

    def _keep_copy(self, damage: Damage) -> Damage:
        path, damaged = f"{self.folder}/{damage.file}", layout.damaged_folder(self.folder)
        saved_as = keep(self.fs, path, damage.at, damage.lost_bytes, damaged)
        return structs.replace(damage, saved_as=saved_as)
