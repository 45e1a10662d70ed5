"""Retention holds: a named reader of journal files, and how far it has come. The rules about which files it needs.

A holder is an archive job, a stream, or anything else that reads the files of queues behind the server's back. As long
as its hold is active, no sealed file of its queues is lost before the holder says that it has passed it. What a server
no longer needs (a pack has replaced it, every reader has read it, its queue is deleted) gets a second name in the
folder of kept files first; `kept_files.py` does that.

Over HTTP (`broker/admin/http/holds.py`), with the right `admin`:

    POST   /api/holds            {"name", "queues": [globs], "max_bytes"}    create; the same again changes nothing
    GET    /api/holds            a list of {"name", "queues", "max_bytes", "age_ms", "bytes", "files", "passed":
                                 {queue: file name}, "state": "active" or "dropped", "why"}
    POST   /api/holds/NAME/move  {"passed": {queue: file name}}              forward only
    DELETE /api/holds/NAME       drop

Tools without a server call `read_holds`, `files_to_read` and `open_to_read`. The command log of jobs is the queue
`.cmdlog`. A glob is matched with the name that a queue's files have: fan-out children share the files of their parent.
A position is the name of the last sealed file that the holder has wholly read; the files of a queue are ordered by the
number in their names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from enum import Enum
from fnmatch import fnmatchcase

import msgspec
from msgspec import Struct, structs

from staniel.journal.disk.fs import MISSING, Fs, Reader
from staniel.journal.kestrel import files as kestrel_files
from staniel.journal.workq import files as workq_files

NAME = "holds"  # the file in the own folder
KEPT = "kept"  # the folder of kept files in the own folder
JOBS_KEPT = ".staniel-kept"  # the same within the folder of a command log that lies elsewhere
CMDLOG = workq_files.HELD_AS
FORMAT_VERSION = 1
HOLDS_MAX = 32
GLOBS_MAX = 100
GLOB_CHARS_MAX = 255
MAX_BYTES_MAX = (1 << 63) - 1
HOLD_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,31}")
OF_HOLD = "~"  # between a hold and the file that is kept for it, in the name of a kept file


class HoldState(Enum):
    ACTIVE = "active"
    DROPPED = "dropped"  # at its limit: its files are gone, and its holder must learn that


class Hold(Struct, frozen=True):
    """A hold. `max_bytes` 0: no limit. Times are those of the wall clock. `passed`: the last file that the holder has
    wholly read, by queue. `why`: the reason why it was dropped.
    """

    name: str
    queues: list[str]
    max_bytes: int
    created_at_ms: int
    moved_at_ms: int
    passed: dict[str, str] = {}
    state: HoldState = HoldState.ACTIVE
    why: str = ""


class HoldsFile(Struct, frozen=True):
    """The content of the file."""

    version: int
    holds: list[Hold]


class FilePlace(Struct, frozen=True):
    """The place of a sealed file among those of its queue. `name`: the one that a kept file has; a pack has that of the
    newest file that it replaces.
    """

    queue: str
    number: int
    name: str


class ToRead(Struct, frozen=True):
    """A sealed file that a holder has not passed. `kept`: its path once it is kept."""

    queue: str
    name: str
    path: str
    kept: str


def place_of(name: str) -> FilePlace | None:
    """Return the place of a sealed file; None for every other name."""
    if numbers := workq_files.segment_numbers([(name, True)]):
        return FilePlace(CMDLOG, numbers[0], name)
    parsed = kestrel_files.parse(name)
    if parsed.kind is kestrel_files.Kind.ARCHIVE:
        return FilePlace(parsed.queue, parsed.number, name)
    if parsed.kind is kestrel_files.Kind.PACK:
        return FilePlace(parsed.queue, parsed.number, name.removesuffix(".pack"))
    return None


def holds_queue(hold: Hold, queue: str) -> bool:
    """Tell whether the hold is active and about `queue`."""
    return hold.state is HoldState.ACTIVE and any(fnmatchcase(queue, glob) for glob in hold.queues)


def passed_number(hold: Hold, queue: str) -> int:
    """Return the number of the last file of `queue` that the holder has passed; -1 if there is none."""
    place = place_of(hold.passed.get(queue, ""))
    return -1 if place is None else place.number


def needs(hold: Hold, place: FilePlace) -> bool:
    """Tell whether the holder still needs this file."""
    return holds_queue(hold, place.queue) and place.number > passed_number(hold, place.queue)


def kept_name(hold: str, name: str) -> str:
    """Return the name in the folder of kept files of a file that is kept for a hold. Each hold has kept files of its
    own, because what one name stands for may differ: a pack has the name of the newest file that it replaces, and a
    hold that is created after it never needs that one.
    """
    return f"{hold}{OF_HOLD}{name}"


def kept_place(name: str) -> tuple[str, FilePlace] | None:
    """Return the hold and the place of a kept file; None for every other name."""
    hold, _, file = name.partition(OF_HOLD)
    place = place_of(file)
    return None if place is None else (hold, place)


def hold_error(name: str, queues: Collection[str], max_bytes: int) -> str:
    """Return why a hold cannot be created with these values; "" if it can."""
    if HOLD_NAME.fullmatch(name) is None:
        return "the name of a hold has 1 to 32 letters, digits, dots, colons, hyphens and underscores"
    if not queues or len(queues) > GLOBS_MAX:
        return f"a hold is about 1 to {GLOBS_MAX} patterns of queue names"
    if not all(0 < len(glob) <= GLOB_CHARS_MAX for glob in queues):
        return f"a pattern of queue names has 1 to {GLOB_CHARS_MAX} characters"
    if not 0 <= max_bytes <= MAX_BYTES_MAX:
        return f"max_bytes is from 0 to {MAX_BYTES_MAX}"
    return ""


def move_error(hold: Hold, passed: Mapping[str, str], is_sealed: Callable[[FilePlace], bool]) -> str:
    """Return why the hold cannot move to `passed`; "" if it can. `is_sealed` tells whether there is such a sealed file,
    in its place or kept for the hold.
    """
    if hold.state is not HoldState.ACTIVE:
        return f"the hold {hold.name} was dropped: {hold.why}"
    for queue, name in passed.items():
        place = place_of(name)
        if place is None or place.queue != queue:
            return f"{name!r} is not the name of a sealed file of {queue}"
        if not holds_queue(hold, queue):
            return f"the hold {hold.name} is not about {queue}"
        before = passed_number(hold, queue)
        if place.number < before:
            return f"{queue}: {name} is before {hold.passed[queue]}, and a hold never moves back"
        if place.number != before and not is_sealed(place):
            return f"{queue}: there is no sealed file {name}"
    return ""


def dropped(hold: Hold, why: str) -> Hold:
    """Return the hold as one that was dropped, and has passed nothing."""
    return structs.replace(hold, state=HoldState.DROPPED, passed={}, why=why)


def encode(holds: Iterable[Hold]) -> bytes:
    return msgspec.json.encode(HoldsFile(FORMAT_VERSION, list(holds))) + b"\n"


def decode(data: bytes) -> list[Hold]:
    """Decode the file. Raises one of staniel.journal.disk.quarantine.UNDECODABLE."""
    content = msgspec.json.decode(data, type=HoldsFile)
    if content.version != FORMAT_VERSION:
        raise ValueError(f"version {content.version}, this program knows {FORMAT_VERSION}")
    for hold in content.holds:
        if why := hold_error(hold.name, hold.queues, hold.max_bytes):
            raise ValueError(why)
    return content.holds


def read_holds(fs: Fs, folder: str) -> list[Hold]:
    """Return the holds of the spool `folder`, for a tool that reads it without a server. Raises OSError, and ValueError
    if the file is damaged.
    """
    path = f"{folder}/{kestrel_files.OWN_FOLDER}/{NAME}"
    try:
        data = fs.read(path, 0, fs.size(path))
    except MISSING:
        return []
    return decode(data)


def files_to_read(fs: Fs, folder: str, hold: Hold, jobs: str = "") -> list[ToRead]:
    """Return the sealed files that the holder has not passed, in the order of each queue. A kept file is read in place
    of one with its name that has replaced it. The newest segment of libkestrel's queues and of the command log, which
    is still written, is among them: the caller leaves it out. `jobs`: the folder of a command log outside the spool.
    Open them with `open_to_read`. Raises OSError.
    """
    own = f"{folder}/{kestrel_files.OWN_FOLDER}"
    in_place = {folder: f"{own}/{KEPT}", f"{own}/{workq_files.OWN_FOLDER}": f"{own}/{KEPT}"}
    if jobs:
        in_place = {folder: f"{own}/{KEPT}", jobs: f"{jobs}/{JOBS_KEPT}"}
    # A server keeps a file before it removes or replaces it: what is not in place any more is kept by now. What is kept
    # by then may be newer than a file that was sealed after the look at its place.
    before = _kept_files(fs, hold, in_place.values())
    files: dict[str, tuple[FilePlace, ToRead]] = {}
    for path, kept in in_place.items():
        for name in _names(fs, path):
            place = place_of(name)
            if place is not None and needs(hold, place):  # an archive comes before its pack
                file = ToRead(place.queue, place.name, f"{path}/{name}", f"{kept}/{kept_name(hold.name, place.name)}")
                files.setdefault(place.name, (place, file))
    newest: dict[str, int] = {}
    for place, _ in (*before, *files.values()):
        newest[place.queue] = max(place.number, newest.get(place.queue, 0))
    for place, file in _kept_files(fs, hold, in_place.values()):
        if place.number <= newest.get(place.queue, -1):
            files[place.name] = place, file
    ordered = sorted(files.values(), key=lambda entry: (entry[0].queue, entry[0].number, entry[0].name))
    return [file for _, file in ordered]


def _kept_files(fs: Fs, hold: Hold, folders: Iterable[str]) -> list[tuple[FilePlace, ToRead]]:
    """Return the kept files that the holder has not passed."""
    kept = []
    for folder in dict.fromkeys(folders):
        for name in _names(fs, folder):
            of_hold = kept_place(name)
            if of_hold is not None and of_hold[0] == hold.name and needs(hold, of_hold[1]):
                place, path = of_hold[1], f"{folder}/{name}"
                kept.append((place, ToRead(place.queue, place.name, path, path)))
    return kept


def open_to_read(fs: Fs, file: ToRead) -> Reader:
    """Open a file that `files_to_read` has returned. Another one may have its path now, a pack for instance. But it was
    kept before that, so the kept one counts if there is one once the path is open. Raises OSError.
    """
    reader = None
    with suppress(*MISSING):
        reader = fs.reader(file.path)
    try:
        kept = fs.reader(file.kept)
    except MISSING:
        if reader is None:
            raise
        return reader
    if reader is not None:
        reader.close()
    return kept


def _names(fs: Fs, folder: str) -> list[str]:
    try:
        return [name for name, regular in fs.list(folder) if regular]
    except MISSING:
        return []
