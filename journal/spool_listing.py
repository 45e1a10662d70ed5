"""The list of the queues of a spool folder, and the format of each, by names and the first bytes of files.

Kestrel's archives and libkestrel's segments have the same names, but a segment begins with a magic number that no
Kestrel record begins with.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from staniel.journal import put_key_log, undo_file
from staniel.journal.disk.fs import Fs
from staniel.journal.disk.refusals import described, remedy
from staniel.journal.kestrel import files as kestrel_files
from staniel.journal.kestrel.files import OWN_FOLDER, Files, sidecar_folder
from staniel.journal.libkestrel import files as libkestrel_files
from staniel.journal.libkestrel.records import MAGIC_BYTES, SEGMENT_MAGIC
from staniel.journal.workq import files as workq_files
from staniel.queues.names import family_of, parent_of

INTENTS, PAUSED, STATUS, CLOCK = "intents", "paused", "status", "clock"
SPOOL_STATE = (INTENTS, PAUSED, STATUS, CLOCK)  # in the own folder: the spool's state in addition to its journals
HELD = "held"  # in the own folder: second names of files that a backup is copying
JOBS_HELD = ".staniel-held"  # the same within the folder of a command log that lies elsewhere
CMDLOG = f"{OWN_FOLDER}/{workq_files.OWN_FOLDER}"
OPERATIONS = f"{OWN_FOLDER}/{undo_file.FOLDER}"
PUT_KEYS = f"{OWN_FOLDER}/{put_key_log.FOLDER}"
NOT_COPIED = {
    "lock": "it belongs to the process that has the spool open",
    "version": "a copy has no redo log: what makes the copy writes this file last",
    "failed_sync": "it is about the disk of the spool",
    "failed_sync.room": "it is room on the disk of the spool",
    "ballast": "it is room on the disk of the spool",
    "last_backup": "it is about the backups of the spool",
    "audit": "it is a record of what happened in the spool, and recovery does not read it",
    "audit.1": "see audit",
    "redo.0": "the copied journals have what it has",
    "redo.1": "see redo.0",
    "convert.plan": "a spool with an unfinished conversion is not copied",
    "convert": "see convert.plan",
    "member": "a copy is a spool of its own",
    "follower": "see member",
    "held": "a copy in progress has made its files",
    "holds": "its holders read the spool, not the copy",
    "kept": "see holds",
    "repair": "see held",
    "quarantine": "recovery does not read it",
    "damaged": "recovery does not read it",
    "aside.*": "recovery does not read it",
}
"""Names in the own folder that a copy of the spool does not have, and why."""
JOURNAL_KINDS = (kestrel_files.Kind.CURRENT, kestrel_files.Kind.ARCHIVE, kestrel_files.Kind.PACK)
STREAM_KINDS = (libkestrel_files.StreamFileKind.SEGMENT, libkestrel_files.StreamFileKind.READER)
TRY_AGAIN = "then try again"
MIXED = "it has files of both journal formats; move those of one away, or finish `staniel journal convert`"


class SpoolListing(Struct):
    """The files of a spool by queue: Kestrel's files, libkestrel's files, and why a queue cannot be served. Files in
    `foreign` are left alone.
    """

    kestrel: dict[str, Files]
    streams: dict[str, libkestrel_files.StreamFiles]
    mixed: dict[str, str]
    foreign: list[str]


def list_spool(fs: Fs, folder: str, held: Mapping[str, str] | None = None) -> SpoolListing:
    """List a spool folder. `held`: queues that must not be served, by fan-out parent, and why. Raises OSError."""
    entries = fs.list(folder)
    kestrel, foreign = kestrel_files.sort_out(entries)
    streams, mixed = dict[str, libkestrel_files.StreamFiles](), dict[str, str]()
    for name, files in libkestrel_files.group_by_queue(entries).items():
        try:
            if _is_stream(fs, folder, files):
                streams[name] = files
        except OSError as error:
            if name in kestrel and not kestrel[name].current and not kestrel[name].packs:
                # If only a file of one format were missing here, libkestrel's segments would be taken for damaged
                # archives.
                mixed[name] = f"the format of its files is unknown: {described(error)}; {remedy(error, TRY_AGAIN)}"
                del kestrel[name]
    names = set[str]()
    for name, files in streams.items():
        if name in kestrel:
            if kestrel[name].current or kestrel[name].packs:
                mixed[name] = MIXED
            del kestrel[name]
        names.update(files.names())
    foreign = [file_name for file_name in foreign if file_name not in names]
    for name in [name for name in kestrel if parent_of(name) in streams]:
        mixed[name] = mixed[parent_of(name)] = MIXED
        del kestrel[name]
    for family, why in (held or {}).items():
        for name in [name for name in {family, *kestrel, *streams} if family_of(name) == family]:
            mixed[name] = why
            kestrel.pop(name, None)
    return SpoolListing(kestrel, {name: files for name, files in streams.items() if name not in mixed}, mixed, foreign)


def _is_stream(fs: Fs, folder: str, files: libkestrel_files.StreamFiles) -> bool:
    """Tell whether the files are libkestrel's: a file has the name of a reader's file, or begins like a segment. Raises
    OSError.
    """
    if files.readers:
        return True
    return any(first_bytes(fs, f"{folder}/{name}") == SEGMENT_MAGIC for name in files.segments)


def first_bytes(fs: Fs, path: str) -> bytes:
    """Return the first bytes of a file, as many as a magic number has. Raises OSError."""
    return fs.read(path, 0, MAGIC_BYTES)


class SpoolFile(Struct, frozen=True):
    """A file of a spool's content. `name`: its name within the spool; for a segment of a command log, as if the log
    were in the spool. `is_whole`: the file is small, and may be cut or replaced; other files only grow.
    """

    name: str
    path: str
    is_whole: bool = False


def is_journal_file(name: str) -> bool:
    """Tell whether recovery would take a file of this name for one of a queue."""
    if kestrel_files.parse(name).kind in JOURNAL_KINDS:
        return True
    return libkestrel_files.parse(name).kind in STREAM_KINDS


def spool_files(fs: Fs, folder: str, jobs: str = "") -> list[SpoolFile]:
    """Return the files that a copy of a spool must have: journals with their sidecars, the command log, which lies in
    the folder `jobs` or within the spool, keys of puts, and the state of transfers, pauses, status and the clock. Files
    of purges hold nothing that the copy needs: the items in them have left their queues, and the others are still in
    their queues. NOT_COPIED says why the other files are left out. Raises OSError.
    """
    own = f"{folder}/{OWN_FOLDER}"
    files = [
        SpoolFile(name, f"{folder}/{name}") for name, regular in fs.list(folder) if regular and is_journal_file(name)
    ]
    sidecars = filter(is_journal_file, _names(fs, sidecar_folder(folder)))
    files += [SpoolFile(f"{OWN_FOLDER}/segments/{name}", f"{sidecar_folder(folder)}/{name}") for name in sidecars]
    files += [
        SpoolFile(f"{OPERATIONS}/{name}", f"{folder}/{OPERATIONS}/{name}")
        for name in _names(fs, f"{folder}/{OPERATIONS}")
        if undo_file.is_name(name) and _carries_items(fs, f"{folder}/{OPERATIONS}/{name}")
    ]
    files += [
        SpoolFile(f"{PUT_KEYS}/{name}", f"{folder}/{PUT_KEYS}/{name}")
        for name in _names(fs, f"{folder}/{PUT_KEYS}")
        if put_key_log.is_name(name)
    ]
    names = set(_names(fs, own))
    files += [SpoolFile(f"{OWN_FOLDER}/{name}", f"{own}/{name}", True) for name in SPOOL_STATE if name in names]
    jobs = jobs or f"{folder}/{CMDLOG}"
    for number in workq_files.segment_numbers((name, True) for name in _names(fs, jobs)):
        name = workq_files.segment_name(number)
        files.append(SpoolFile(f"{CMDLOG}/{name}", f"{jobs}/{name}"))
    return files


def may_be_in_spool(name: str) -> bool:
    """Tell whether `spool_files` may return this name."""
    folder, _, last = name.rpartition("/")
    if not last or last in (".", "..") or "\0" in name:
        return False
    if folder == OWN_FOLDER:
        return last in SPOOL_STATE
    if folder == OPERATIONS:
        return undo_file.is_name(last)
    if folder == PUT_KEYS:
        return put_key_log.is_name(last)
    if folder == CMDLOG:
        return bool(workq_files.segment_numbers([(last, True)]))
    return folder in ("", f"{OWN_FOLDER}/segments") and is_journal_file(last)


def _carries_items(fs: Fs, path: str) -> bool:
    """Tell whether an operation's file carries items. A file that has just been removed carries none."""
    try:
        return undo_file.carries_items(fs, path)
    except FileNotFoundError:
        return False


def _names(fs: Fs, folder: str) -> list[str]:
    try:
        return [name for name, regular in fs.list(folder) if regular]
    except (FileNotFoundError, NotADirectoryError):
        return []
