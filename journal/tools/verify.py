"""Read the journal files of a spool record by record and compare them with their checksums, in every format.

Nothing is changed. The command line prints the results (server/cli/verify.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from msgspec import Struct, field, structs

from staniel.journal.disk.fs import Fs
from staniel.journal.disk.refusals import refused_tool
from staniel.journal.dump import Dumper, Row, Run, runs
from staniel.journal.errors import CUT_SHORT, CorruptRecord, Flaw, TruncatedRecord
from staniel.journal.kestrel import files as kestrel_files
from staniel.journal.kestrel import sidecar
from staniel.journal.kestrel.dump import KestrelDumper
from staniel.journal.kestrel.sidecar import verify_checksums
from staniel.journal.libkestrel import files as libkestrel_files
from staniel.journal.libkestrel.dump import LibkestrelDumper
from staniel.journal.libkestrel.records import READER_MAGIC, SEGMENT_MAGIC
from staniel.journal.libkestrel.recovery import is_partial_magic, is_zero
from staniel.journal.spool_listing import first_bytes
from staniel.journal.workq import dump as workq_dump
from staniel.journal.workq import files as workq_files

GONE = "a missing sealed file"
ZEROS_MIN = 8  # zeros at the end of an item; binary numbers end in fewer
CMDLOG_FOLDER = f"{kestrel_files.OWN_FOLDER}/{workq_files.OWN_FOLDER}"


class Inspection(Struct):
    """The result for a file. `records`: how many can be read. `has_checksums`: any flipped bit would have been noticed.
    `flaws`: by their first byte. `hints`: bytes that look like a flaw, but may be right.
    """

    path: str
    bytes: int = 0
    records: int = 0
    has_checksums: bool = False
    flaws: list[Flaw] = field(default_factory=list)
    hints: list[Flaw] = field(default_factory=list)
    refusal: str = ""

    @property
    def is_damaged(self) -> bool:
        return not all(flaw.is_torn for flaw in self.flaws)


Reader = Callable[[Fs, Inspection, bool], None]
"""A reader of one file. The last argument is whether the file's end may be torn, because it is the current file."""
Journal = tuple[str, Reader, bool]


def inspect(
    fs: Fs, folder: str, queues: frozenset[str] = frozenset(), *, is_follower: bool = False
) -> Iterator[Inspection]:
    """Inspect every journal file of a spool or of a command log's folder, or only those of `queues`; the jobs of a
    command log belong to all queues. `is_follower`: the spool is a follower's, of which any file may have a torn end.
    Raises OSError for the folder. A file that the system refuses to read gets a refusal.
    """
    for name, read, is_written in _journals(fs, folder, queues):
        inspection = Inspection(f"{folder}/{name}")
        try:
            if read is not _missing:
                inspection.bytes = fs.size(inspection.path)
            read(fs, inspection, is_written)
        except OSError as error:
            inspection.refusal = refused_tool(error, inspection.path)
        if is_follower and (read is _cmdlog or not inspection.has_checksums):
            inspection.flaws = [_as_torn(flaw, inspection.bytes) for flaw in inspection.flaws]
        inspection.flaws.sort(key=lambda flaw: flaw.at)
        yield inspection


def _as_torn(flaw: Flaw, size: int) -> Flaw:
    """Return a flaw in a follower's file: what reaches to the file's end may be behind the follower's place, and is
    written again by its leader.
    """
    return structs.replace(flaw, is_torn=True) if flaw.at + flaw.size >= size else flaw


def _journals(fs: Fs, folder: str, queues: frozenset[str]) -> Iterator[Journal]:
    """Yield the journal files to inspect. Temporary files are left out: the next start removes them."""
    entries = fs.list(folder)
    kestrel, streams = kestrel_files.sort_out(entries)[0], libkestrel_files.group_by_queue(entries)
    yield from _gone(fs, folder, queues, {name for name, _ in entries})
    for queue in sorted(queues.intersection({*kestrel, *streams}) if queues else {*kestrel, *streams}):
        kestrel_queue, stream = kestrel.get(queue) or kestrel_files.Files(queue, {}, {}, []), streams.get(queue)
        segments = set[str]()
        if stream is not None:
            segments = _segments(fs, folder, kestrel_queue, stream)
            kestrel_files_of_queue = stream.segments.keys() - segments
            yield from (journal for journal in _of_stream(stream) if journal[0] not in kestrel_files_of_queue)
        yield from (journal for journal in _of_kestrel(kestrel_queue) if journal[0] not in segments)
    if not queues:
        yield from _of_cmdlog(fs, folder, "")
        yield from _of_cmdlog(fs, folder, f"{CMDLOG_FOLDER}/")


def _gone(fs: Fs, folder: str, queues: frozenset[str], names: set[str]) -> Iterator[Journal]:
    """Yield the missing sealed files that still have a sidecar."""
    for name in sorted(sidecar.names_in(fs, folder)):
        parsed = kestrel_files.parse(name)
        if parsed.kind is kestrel_files.Kind.ARCHIVE and name not in names and (not queues or parsed.queue in queues):
            yield name, _missing, False


def _missing(fs: Fs, inspection: Inspection, is_written: bool) -> None:
    folder, _, name = inspection.path.rpartition("/")
    described = sidecar.load(fs, folder, name)
    if described is None:
        inspection.flaws.append(Flaw(0, 0, GONE))
    else:
        inspection.flaws.append(Flaw(0, described.size, f"{GONE}, with {described.effect.added} items"))


def _segments(fs: Fs, folder: str, own: kestrel_files.Files, stream: libkestrel_files.StreamFiles) -> set[str]:
    """Return the files that are libkestrel's segments; Kestrel's archives have the same names. If other files are
    Kestrel's, the first bytes of each file decide. Otherwise all files are segments if there is a reader's file, or if
    one of them begins like a segment.
    """
    begin_so = set[str]()
    for name in stream.segments:
        with suppress(OSError):  # it gets a refusal when it is read as a whole
            if first_bytes(fs, f"{folder}/{name}") == SEGMENT_MAGIC:
                begin_so.add(name)
    if own.current or own.packs:
        return begin_so
    return set(stream.segments) if stream.readers or begin_so else set()


def _of_kestrel(files: kestrel_files.Files) -> Iterator[Journal]:
    yield from ((name, _kestrel, False) for name in [*files.archives_in_order(), *sorted(files.packs)])
    if files.current:
        yield files.queue, _kestrel, True


def _of_stream(files: libkestrel_files.StreamFiles) -> Iterator[Journal]:
    newest = files.newest_number()
    yield from ((name, _segment, number == newest) for name, number in sorted(files.segments.items()))
    yield from ((name, _reader, True) for name in sorted(files.readers.values()))


def _of_cmdlog(fs: Fs, folder: str, below: str) -> Iterator[Journal]:
    try:
        numbers = workq_files.segment_numbers(fs.list(f"{folder}/{below}".rstrip("/")))
    except (FileNotFoundError, NotADirectoryError):
        return
    yield from ((below + workq_files.segment_name(number), _cmdlog, number == numbers[-1]) for number in numbers)


def is_written_to(fs: Fs, path: str) -> bool:
    """Tell whether the end of this file may be torn: it is the current file of its journal, or there are no other files
    in its folder to tell. Raises OSError.
    """
    folder, _, name = path.rpartition("/")
    if workq_dump.is_cmdlog(fs, path):
        numbers = workq_files.segment_numbers(fs.list(folder or "."))
        return not numbers or name not in map(workq_files.segment_name, numbers[:-1])
    begin = first_bytes(fs, path)
    if begin == SEGMENT_MAGIC:
        streams = libkestrel_files.group_by_queue(fs.list(folder or ".")).values()
        return all(files.segments.get(name, -1) in (-1, files.newest_number()) for files in streams)
    return begin == READER_MAGIC or kestrel_files.parse(name).kind is kestrel_files.Kind.CURRENT


def begun_stream(fs: Fs, path: str) -> Flaw | None:
    """Return the torn end of a libkestrel file that lacks some of its first bytes; None if it is not such a file.
    Raises OSError.
    """
    begin = first_bytes(fs, path)
    folder, _, name = path.rpartition("/")
    if not any(is_partial_magic(begin, magic) for magic in (SEGMENT_MAGIC, READER_MAGIC)):
        return None  # no Kestrel record begins like this
    for files in libkestrel_files.group_by_queue(fs.list(folder or ".")).values():
        if name in files.readers.values() or files.segments.get(name) == files.newest_number():
            return Flaw(0, len(begin), CUT_SHORT, True)
    return None


def _kestrel(fs: Fs, inspection: Inspection, is_written: bool) -> None:
    _records(fs, inspection, KestrelDumper(), is_written)
    folder, _, name = inspection.path.rpartition("/")
    described = None if is_written else sidecar.load(fs, folder, name)
    if described is not None and described.file == name:
        inspection.has_checksums = True
        inspection.flaws += verify_checksums(described, fs, inspection.path)


def _segment(fs: Fs, inspection: Inspection, is_written: bool) -> None:
    _stream(fs, inspection, is_written, SEGMENT_MAGIC)


def _reader(fs: Fs, inspection: Inspection, is_written: bool) -> None:
    _stream(fs, inspection, is_written, READER_MAGIC)


def _stream(fs: Fs, inspection: Inspection, is_written: bool, magic: bytes) -> None:
    """Read a segment or a reader's file. An empty file has no flaw: a crash came between its creation and its first
    bytes.
    """
    begin = first_bytes(fs, inspection.path)
    if begin == magic:
        end = _records(fs, inspection, LibkestrelDumper(magic), is_written)
        if not inspection.flaws and not is_zero(fs, inspection.path, end, inspection.bytes):
            inspection.flaws.append(Flaw(end, inspection.bytes - end, "bytes after the end of the data"))
    elif inspection.bytes:
        torn = is_written and is_partial_magic(begin, magic)
        why = CUT_SHORT if torn else "the first bytes are those of another kind of file"
        inspection.flaws.append(Flaw(0, inspection.bytes, why, torn))


def _records(fs: Fs, inspection: Inspection, dumper: Dumper, is_written: bool) -> int:
    """Count the records. Return where the last one ends."""
    end = dumper.start
    last: Run | None = None
    try:
        for last in runs(fs, inspection.path, dumper):
            inspection.records += last.records
            end = last.at + last.size
    except CorruptRecord as error:
        size = inspection.bytes - error.at
        inspection.flaws.append(Flaw(error.at, size, error.why, is_written and isinstance(error, TruncatedRecord)))
    if is_written and last is not None:
        _look_for_zeros(inspection, dumper.row(last.data, last.last_at, last.stop, 0, end - (last.stop - last.last_at)))
    return end


def _look_for_zeros(inspection: Inspection, last: Row | None) -> None:
    """Report zeros at the end of the last item. After power loss a file system may have a file's new size but not its
    bytes, and show zeros for them.
    """
    if last is None or not last.data:
        return
    zeros = len(last.data) - len(last.data.rstrip(b"\0"))
    if zeros == len(last.data) or zeros >= ZEROS_MIN:
        end = last.at + last.size
        inspection.hints.append(Flaw(end - zeros, zeros, f"the last item, at byte {last.at}, ends in zeros"))


def _cmdlog(fs: Fs, inspection: Inspection, is_written: bool) -> None:
    """Read a segment of a command log, in which each record has a checksum of its own."""
    inspection.has_checksums = True
    if is_written and not inspection.bytes:
        return  # a crash came between the segment's creation and its first bytes
    for record in workq_dump.dump_segment(fs, inspection.path):
        why = str(record.get("damaged", ""))
        if not why:
            inspection.records += 1
            continue
        at, size = int(str(record["at"])), int(str(record["size"]))
        inspection.flaws.append(Flaw(at, size, why, is_written and bool(record.get("torn"))))
