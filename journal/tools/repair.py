"""A repaired copy of journal files: what recovery would read from them, in files without flaws. The originals are only
read.

Files with a damaged end are copied and cut there, as recovery does. A queue in Kestrel's format with a damaged or
missing sealed file is rewritten, because later files refer to its content. A command log is copied record by record.
Each queue is first copied to a work folder in the target, recovered there, and read back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import assert_never

from msgspec import Struct, field

from staniel.journal.copy_mark import VERSION, clear_mark, set_mark
from staniel.journal.disk.failed_sync import FailedSyncMarker
from staniel.journal.disk.fs import Fs, is_there
from staniel.journal.disk.replace_file import replace_file
from staniel.journal.disk.unsynced_names import UnsyncedNames
from staniel.journal.disk.watched_fs import RefusedCalls
from staniel.journal.errors import Flaw
from staniel.journal.kestrel import files as kestrel_files
from staniel.journal.kestrel.encoder import Encoder
from staniel.journal.kestrel.files import OWN_FOLDER, Files, sidecar_path
from staniel.journal.kestrel.recovery import Recovered, Recovery
from staniel.journal.kestrel.sidecar import names_in
from staniel.journal.libkestrel import files as libkestrel_files
from staniel.journal.libkestrel.recovery import StreamRecovery
from staniel.journal.membership import membership
from staniel.journal.put_key_log import FOLDER as KEYS_FOLDER
from staniel.journal.put_key_log import PutKeyLog, PutsStored, Record, replayed
from staniel.journal.put_key_log import encode as encode_key
from staniel.journal.redo.dump import changed_by_start, is_of_later_version, used_log
from staniel.journal.redo.log import UNUSED
from staniel.journal.spool import SpoolError, check_version
from staniel.journal.spool_listing import INTENTS, SPOOL_STATE, list_spool
from staniel.journal.tools.convert import MEMORY_BYTES, PIECE_BYTES, finish_file
from staniel.journal.tools.source import JOBS, FileFlaw, ReadSource
from staniel.journal.tools.unfinished import Unfinished, Work, unfinished_work
from staniel.journal.tools.verify import CMDLOG_FOLDER, inspect
from staniel.journal.trace import Progress
from staniel.journal.transfer_log import TransferLog, encode
from staniel.journal.undo_file import FOLDER as UNDO_FOLDER
from staniel.journal.undo_file import UndoContent, Unusable, is_name, read_content
from staniel.journal.workq import files as workq_files
from staniel.journal.workq.encoder import MAGIC
from staniel.journal.workq.trace import CmdLogTrace
from staniel.queues.config import JournalDialect
from staniel.queues.item import LOST_MS, Item, copy_of
from staniel.queues.names import family_of

START_ONCE = "start a server on the spool once, or on a copy of the folder, which brings them up to date"
WORK = "repair"  # in the own folder of the copy, until it is complete
COPIED = tuple(name for name in SPOOL_STATE if name != INTENTS)  # own files of a spool that are copied as they are
LEFT_BEHIND = {
    Work.TRANSFERS: "some may be in two queues, or not gone",
    Work.OPERATION: "some may be in two queues, or not gone",
    Work.PUT_KEYS: "what a client puts again may be there twice",
}
"""The effect of unfinished work on a copy of some files, which lacks it."""
PARSERS = (kestrel_files.parse, libkestrel_files.parse)


class CannotRepair(Exception):
    """The error for files that cannot be repaired. No copy has been made. The text says why and what to do."""


class Repaired(Struct):
    """The result for a queue, family or command log, or for work that the last server left unfinished: the items or
    records in its new files, and the unreadable parts of the old ones. `lost_items`: for a rewritten queue, the items
    that are known to be missing.
    """

    name: str
    format: str
    files: list[str]
    count: int
    is_anew: bool = False
    lost: list[FileFlaw] = field(default_factory=list)
    lost_items: int = 0
    why_not: str = ""

    @property
    def has_losses(self) -> bool:
        return bool(self.why_not or self.lost_items) or not all(file_flaw.flaw.is_torn for file_flaw in self.lost)


class Repair:
    """The repair of the files `names` of `folder`, or of all if that is None, into the empty folder `target`. No server
    may use either folder.
    """

    def __init__(
        self, fs: Fs, folder: str, names: frozenset[str] | None, target: str, now_ms: int, progress: Progress
    ) -> None:
        self._watch = RefusedCalls()
        self.fs, self.folder, self.target = self._watch.on(fs), folder, target
        self.now_ms, self.progress = now_ms, progress
        self.work = f"{target}/{OWN_FOLDER}/{WORK}"
        self.anew = f"{self.work}/anew"
        self._names = names
        self._anew: set[str] = set()
        self._mixed: set[str] = set()

    def run(self) -> Iterator[Repaired]:
        """Make the repaired copy. Raises CannotRepair before anything is made. Raises OSError, JournalFailure; the copy
        is marked as unfinished then. Any refused call ends the repair, because only bytes that were read can be known
        to be damaged.
        """
        for repaired in self._made():
            self._watch.check()
            yield repaired
        self._watch.check()
        self.fs.sync_folder(self.target)
        clear_mark(self.fs, f"{self.target}/{OWN_FOLDER}", self._version())

    def _made(self) -> Iterator[Repaired]:
        """Make the copy, with the mark that prevents servers from starting on it. Raises as `run` does."""
        fs, folder = self.fs, self.folder
        if self._names is None:
            self._check_version()
        left = unfinished_work(fs, folder)
        for unfinished in left:
            self._look_at(unfinished)
        source = ReadSource(fs, folder)
        listing = source.listing
        self._watch.check()
        fs.make_folder(f"{self.target}/{OWN_FOLDER}")
        set_mark(fs, f"{self.target}/{OWN_FOLDER}")
        fs.make_folder(kestrel_files.sidecar_folder(self.work))
        fs.make_folder(self.anew)
        fs.make_folder(kestrel_files.sidecar_folder(self.target))
        for name, why in sorted(listing.mixed.items()):
            self._mixed.add(name)
            yield Repaired(name, "mixed", [], 0, why_not=why)
        for name in source.queues():
            is_stream = name in listing.streams
            files = (listing.streams[name] if is_stream else listing.kestrel[name]).names()
            if names := [file for file in files if self._names is None or file in self._names]:
                yield self._stream(name, names) if is_stream else self._kestrel(name, names)
                self._clear_work()
        if source.cmdlog and (self._names is None or source.cmdlog == folder):
            yield self._jobs(source)
        yield from self._left_behind(left) if self._names is not None else self._copy_own()

    def _version(self) -> bytes:
        """Return the version for the copy; "" if only some files are copied, or no server has used the folder. Raises
        OSError.
        """
        own_folder = f"{self.folder}/{OWN_FOLDER}"
        if self._names is not None or not is_there(self.fs, f"{own_folder}/{VERSION}"):
            return b""
        if used_log(self.fs, own_folder) is not None:  # the copy has no redo log
            return f"{UNUSED}\n".encode()
        return self.fs.read(f"{own_folder}/{VERSION}", 0, 1 << 20)

    def _check_version(self) -> None:
        """Verify that a start would accept the spool. Raises CannotRepair."""
        try:
            check_version(self.fs, self.folder)
        except SpoolError as refused:
            raise CannotRepair(str(refused)) from refused

    def _look_at(self, left: Unfinished) -> None:
        """Verify that a copy of the spool would be complete: no work is unfinished that must be done in the spool
        itself. Raises CannotRepair.
        """
        fs, folder = self.fs, self.folder
        match left.work:
            case Work.COPY:
                raise CannotRepair(f"{folder} is not complete: {left.work.value}; remove it and copy it again")
            case Work.UNFIT_HALF | Work.UNFIT_SHORT | Work.FOLLOWER | Work.MEMBER | Work.MEMBER_DAMAGED:
                raise CannotRepair(membership(fs, folder).refusal(folder))
            case Work.CONVERSION:
                raise CannotRepair(f"a conversion in {folder} is not finished: finish `staniel journal convert` first")
            case Work.FAILED_SYNC:
                if FailedSyncMarker(UnsyncedNames(fs), left.path, folder=folder).read().changes_files:
                    raise CannotRepair(f"a start has begun to rewrite the files of {folder}: {START_ONCE}")
            case Work.REDO_LOG:
                self._look_at_log()
            case Work.TRANSFERS | Work.PUT_KEYS | Work.OPERATION:
                pass  # the copy has these files too, and a start on it completes them
            case _:
                assert_never(left.work)

    def _look_at_log(self) -> None:
        """Verify that the journals have everything that the redo log has; the copy would lack the rest. Raises
        CannotRepair.
        """
        own_folder = f"{self.folder}/{OWN_FOLDER}"
        if is_of_later_version(self.fs, own_folder):
            raise CannotRepair(f"the redo log of {self.folder} is of a later version of staniel: use that one")
        changed = changed_by_start(self.fs, self.folder, own_folder)
        lacking = [path for path, _ in changed if self._names is None or path.rpartition("/")[2] in self._names]
        if lacking:
            raise CannotRepair(
                f"after a power cut {len(lacking)} journals, such as {lacking[0]}, lack changes that the "
                f"redo log has: {START_ONCE}"
            )

    def _kestrel(self, queue: str, names: list[str]) -> Repaired:
        fs, work = self.fs, self.work
        for name in names:
            self._copy(f"{self.folder}/{name}", f"{work}/{name}")
        for name in names_in(fs, self.folder):
            if kestrel_files.parse(name).queue == queue and self._names is None:
                self._copy(sidecar_path(self.folder, name), sidecar_path(work, name))
        lost = self._flaws(work, queue)
        files = list_spool(fs, work).kestrel.get(queue, Files(queue, {}, {}, []))
        files.gone = {
            name: kestrel_files.parse(name).number
            for name in names_in(fs, work)
            if name not in files.archives and kestrel_files.parse(name).queue == queue
        }
        recovery = Recovery(fs, work)
        recovered = recovery.recover(queue, files, self.now_ms, MEMORY_BYTES)
        recovery.drop_stand_ins(recovered)
        self._watch.check()
        flawed_files = {flaw.file for flaw in lost}
        cut = [flaw for flaw in recovered.damages if flaw.file not in flawed_files]
        lost += [FileFlaw(flaw.file, Flaw(flaw.at, flaw.lost_bytes, flaw.why, flaw.is_torn)) for flaw in cut]
        is_sound = all(flaw.file == queue for flaw in lost) and not (recovered.stand_ins or recovered.missing_items)
        if is_sound:
            repaired = Repaired(queue, "kestrel", files.names(), self._count(queue, work), lost=lost)
            self._check(repaired, work)
            self._move(repaired.files, work)
            return repaired
        count, lost_items = self._write_anew(queue, recovered)
        repaired = Repaired(queue, "kestrel", [queue], count, True, lost, lost_items)
        self._anew.add(queue)
        self._check(repaired, self.anew)
        self._move(repaired.files, self.anew)
        return repaired

    def _write_anew(self, queue: str, recovered: Recovered) -> tuple[int, int]:
        """Write one file with the items of the queue. Return (how many items, how many are lost)."""
        replay, encoder = recovered.replay, Encoder(JournalDialect.DOCUMENTS)
        opened = {xid: delivery for xid, delivery in replay.open.items() if not _is_lost(delivery.item)}
        lost_items = len(replay.open) - len(opened)
        file = self.fs.append(f"{self.anew}/{queue}")
        pieces = list(encoder.snapshot(replay.counter, opened, []))
        count, pending = len(opened), 0
        while replay.line.head() is not None:
            item = replay.line.pop().item
            if _is_lost(item):
                lost_items += 1
                continue
            count += 1
            pieces.append(encoder.addx(copy_of(item)))
            pending += len(pieces[-1])
            if pending > PIECE_BYTES:
                file.write(b"".join(pieces))
                pieces.clear()
                pending = 0
        finish_file(file, b"".join(pieces))
        read_back = self._count(queue, self.anew)
        self._watch.check()
        assert read_back == count, f"{queue}: {count} items were written, {read_back} are read back"
        return count, lost_items

    def _count(self, queue: str, folder: str) -> int:
        """Return how many items are in the files of a queue."""
        trace, files = ReadSource(self.fs, folder).kestrel(queue)
        with closing(files):
            for _ in trace.steps():
                pass
            return sum(not item.is_stand_in for item in [*trace.line, *trace.open.values()])

    def _stream(self, family: str, names: list[str]) -> Repaired:
        fs, work = self.fs, self.work
        for name in names:
            self._copy(f"{self.folder}/{name}", f"{work}/{name}")
        lost = self._flaws(work, family)
        files = libkestrel_files.group_by_queue(fs.list(work))[family]
        recovered = StreamRecovery(fs, work, f"{work}/damaged").recover(files, self.now_ms)
        self._watch.check()
        known_files = [name for name in recovered.files.names() if name not in recovered.ignored]
        for name in recovered.ignored:
            fs.remove(f"{work}/{name}")
        trace, frozen = ReadSource(fs, work).stream(family)
        with closing(frozen):
            count = sum(1 for _ in trace.puts())
        repaired = Repaired(family, "libkestrel", known_files, count, lost=lost)
        self._check(repaired, work)
        self._move(known_files, work)
        return repaired

    def _jobs(self, source: ReadSource) -> Repaired:
        """Copy every readable record into segments of the same names."""
        folder = self.target if source.cmdlog == self.folder else f"{self.target}/{CMDLOG_FOLDER}"
        self.fs.make_folder(folder)
        lost = self._flaws(source.cmdlog, "")
        trace, frozen = source.jobs()
        repaired = Repaired(JOBS, "workq", [], 0, lost=lost)
        with closing(frozen):
            for name in trace.names():
                if self._names is None or name in self._names:
                    self._copy_records(trace, name, folder, repaired)
        self.fs.sync_folder(folder)
        self._check(repaired, folder)
        return repaired

    def _copy_records(self, trace: CmdLogTrace, name: str, folder: str, repaired: Repaired) -> None:
        pieces, pending, file = [MAGIC], 0, None
        for step in trace.steps_of(name):
            file = file or self.fs.append(f"{folder}/{name}")
            pieces.append(trace.bytes_of(step))
            pending += step.size
            repaired.count += 1
            if pending > PIECE_BYTES:
                file.write(b"".join(pieces))
                self.progress(pending)
                pieces.clear()
                pending = 0
        if file is not None:
            finish_file(file, b"".join(pieces))
            repaired.files.append(name)

    def _flaws(self, folder: str, queue: str) -> list[FileFlaw]:
        """Return the flaws that `verify` finds in the files of a queue; without a queue, in those of the
        command log.
        """
        flaws = []
        for inspection in inspect(self.fs, folder, frozenset((queue,) if queue else ())):
            name = inspection.path.removeprefix(f"{folder}/")
            if queue or workq_files.segment_numbers([(name, True)]):
                flaws += [FileFlaw(name, flaw) for flaw in inspection.flaws]
        self._watch.check()
        return flaws

    def _check(self, repaired: Repaired, folder: str) -> None:
        queue = "" if repaired.format == "workq" else repaired.name
        left = self._flaws(folder, queue) if repaired.files else []
        assert not left, f"the new files of {repaired.name} have a flaw: {left[0]}"

    def _copy(self, old: str, new: str) -> None:
        size, at = self.fs.size(old), 0
        file = self.fs.append(new)
        try:
            while at < size:
                piece = self.fs.read(old, at, PIECE_BYTES)
                if not piece:
                    break
                file.write(piece)
                self.progress(len(piece))
                at += len(piece)
            file.sync()
        finally:
            file.close()

    def _move(self, names: list[str], work: str) -> None:
        """Move files into the copy, with their sidecars."""
        for name in names:
            self.fs.rename(f"{work}/{name}", f"{self.target}/{name}")
        moved = [name for name in names_in(self.fs, work) if name in names]
        for name in moved:
            self.fs.rename(sidecar_path(work, name), sidecar_path(self.target, name))
        if moved:
            self.fs.sync_folder(kestrel_files.sidecar_folder(self.target))
        self.fs.sync_folder(self.target)

    def _clear_work(self) -> None:
        own_folder = f"{self.work}/{OWN_FOLDER}"
        for folder in (self.work, f"{self.work}/damaged", f"{own_folder}/segments", f"{own_folder}/damaged"):
            if _has_folder(self.fs, folder):
                for name, regular in self.fs.list(folder):
                    if regular:
                        self.fs.remove(f"{folder}/{name}")

    def _copy_own(self) -> Iterator[Repaired]:
        """Copy the rest of the spool's state, and the work that the last server left unfinished. A start on the copy
        finishes that, as it would in the old spool. Yield the work that it cannot finish.
        """
        own, new = f"{self.folder}/{OWN_FOLDER}", f"{self.target}/{OWN_FOLDER}"
        for name in COPIED:
            if is_there(self.fs, f"{own}/{name}"):
                replace_file(self.fs, f"{new}/{name}", self.fs.read(f"{own}/{name}", 0, 1 << 30))
        if is_there(self.fs, f"{own}/{INTENTS}"):
            yield from self._copy_intents(f"{own}/{INTENTS}", f"{new}/{INTENTS}")
        yield from self._copy_keys(own, new)
        yield from self._copy_undos(f"{own}/{UNDO_FOLDER}", f"{new}/{UNDO_FOLDER}")

    def _left_behind(self, left: list[Unfinished]) -> Iterator[Repaired]:
        """Yield the unfinished work that is not copied because only some files are copied."""
        names = self._names or frozenset()
        queues = {family_of(parse(name).queue) for name in names for parse in PARSERS}
        for work in left:
            if work.work in LEFT_BEHIND and (not work.queue or work.queue in queues):
                about = work.queue or "some queue"
                why = f"{work.work.value}, of {about}: name the whole spool, or {LEFT_BEHIND[work.work]}"
                yield Repaired(work.path.removeprefix(f"{self.folder}/{OWN_FOLDER}/"), "unfinished", [], 0, why_not=why)

    def _copy_intents(self, old: str, new: str) -> Iterator[Repaired]:
        """Copy the intents that a start on the copy can use. Recovery finds the item of an intent by its transaction or
        id, also in a rewritten queue. But it does not find the copy, which was at a place in a file.
        """
        log = TransferLog(self.fs, old)
        under_way = log.read()
        followable = [intent for intent in under_way if not self._is_lost_on(intent.source, intent.target)]
        replace_file(self.fs, new, b"".join(map(encode, followable)))
        for route in dict.fromkeys((intent.source, intent.target) for intent in under_way):
            if self._is_lost_on(*route):
                yield self._unfinished(INTENTS, *route)
        if log.damage.lost:
            why = f"{log.damage.lost} lines cannot be read: an item whose line is lost may be in both of its queues"
            yield Repaired(INTENTS, "transfers", [], 0, why_not=why)

    def _copy_keys(self, own: str, new: str) -> Iterator[Repaired]:
        """Copy the keys of puts. A start on the copy looks for the item of an unfinished put at a place in a file: in a
        queue that is written anew it is another place now, and the key is left out.
        """
        log = PutKeyLog(self.fs, own)
        stored, unfinished = replayed(log.read() or ())
        kept = [put for put in unfinished if not self._is_lost_on(put.queue, put.queue)]
        if stored or kept:
            self.fs.make_folder(f"{new}/{KEYS_FOLDER}")
            records: list[Record] = [*stored, PutsStored([put.put for put in stored]), *kept]
            replace_file(self.fs, f"{new}/{KEYS_FOLDER}/1", b"".join(map(encode_key, records)))
        for queue in dict.fromkeys(put.queue for put in unfinished if put not in kept):
            why = f"keys of puts to {queue} had not been noted as stored: what a client puts again may be there twice"
            yield Repaired(KEYS_FOLDER, "unfinished", [], 0, why_not=why)
        if lost := sum(damage.lost for damage in log.damaged.values()):
            why = f"{lost} lines cannot be read: a put that is repeated with a lost key is stored again"
            yield Repaired(KEYS_FOLDER, "keys", [], 0, why_not=why)

    def _copy_undos(self, old: str, new: str) -> Iterator[Repaired]:
        """Copy the files of operations that a start on the copy can continue. Recovery finds by a number or an id which
        items have left, also in a rewritten queue. But it would search for arriving items at a place in a file that is
        a different file now.
        """
        fs = self.fs
        names = fs.list(old) if _has_folder(fs, old) else []
        for name in [name for name, regular in names if regular and is_name(name)]:
            content = read_content(fs, f"{old}/{name}")
            if content is Unusable.LATER:
                yield Repaired(f"{UNDO_FOLDER}/{name}", UNDO_FOLDER, [], 0, why_not=content.value)
            elif not isinstance(content, Unusable):
                if lost := [route for route in content.routes if self._is_lost_on(*route)]:
                    yield self._unfinished(f"{UNDO_FOLDER}/{name}", *lost[0])
                    continue
                fs.make_folder(new)
                self._copy(f"{old}/{name}", f"{new}/{name}")
                if (size := fs.size(f"{new}/{name}")) > content.end:
                    fs.truncate(f"{new}/{name}", content.end)
                    flaw = Flaw(content.end, size - content.end, "no whole frame begins at that byte", True)
                    yield self._cut_undo(name, content, flaw)
                fs.sync_folder(new)

    def _cut_undo(self, name: str, content: UndoContent, flaw: Flaw) -> Repaired:
        path = f"{UNDO_FOLDER}/{name}"
        lost = [FileFlaw(f"{OWN_FOLDER}/{path}", flaw)]
        return Repaired(path, UNDO_FOLDER, [path], content.counts()[0], lost=lost)

    def _is_lost_on(self, source: str, target: str) -> bool:
        """Tell whether a start on the copy could not find out which items of `source` have left, or arrived in
        `target`.
        """
        return target in self._anew or not self._mixed.isdisjoint(map(family_of, (source, target)))

    def _unfinished(self, name: str, source: str, target: str) -> Repaired:
        way = f"on their way from {source} to {target}" if target not in (source, "") else f"of {source} being purged"
        why = f"items were {way}, and their journals are rewritten or not copied: some may be in both, or return"
        return Repaired(name, "unfinished", [], 0, why_not=why)


def _is_lost(item: Item) -> bool:
    return item.expires_ms == LOST_MS


def _has_folder(fs: Fs, path: str) -> bool:
    try:
        fs.list(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
