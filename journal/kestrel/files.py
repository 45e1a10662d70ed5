"""The file names of a Kestrel spool: the kind of each file, and the order in which files are replayed.

Source: "Multiple journal files" of the Kestrel journal format. Only the four documented patterns count; all other files
in the folder are foreign and left alone.
"""

from __future__ import annotations

import re
from enum import Enum

from msgspec import Struct

from staniel.queues.names import FILE_NAME_MAX, file_error

OWN_FOLDER = ".staniel"  # the spool's folder for all files that are not journals
# Any number of digits: the next archive is numbered one above the largest, however large that is.
PATTERN = re.compile(r"([^.~/]+)(?:\.([0-9]+)(\.pack)?|~~([0-9]+))?", re.DOTALL)


class Kind(Enum):
    CURRENT = "current"  # NAME: the file to which records are appended
    ARCHIVE = "archive"  # NAME.<ms>: rotated, replayed in numeric order before the current one
    PACK = "pack"  # NAME.<ms>.pack: replaces every archive with a number <= <ms>
    TEMP = "temp"  # NAME~~<ms>: unfinished, deleted at start
    FOREIGN = "foreign"


class Name(Struct, frozen=True):
    """A parsed file name. `number` is the <ms> of the patterns, 0 for the current file and for foreign ones."""

    kind: Kind
    queue: str = ""
    number: int = 0


FOREIGN = Name(Kind.FOREIGN)


def parse(file_name: str) -> Name:
    """Parse `file_name`."""
    match = PATTERN.fullmatch(file_name) if len(file_name) <= FILE_NAME_MAX else None
    if match is None or file_error(match[1]):
        return FOREIGN
    queue, number, pack, temp = match.groups()
    if temp is not None:
        return Name(Kind.TEMP, queue, int(temp))
    if number is not None:
        return Name(Kind.PACK if pack else Kind.ARCHIVE, queue, int(number))
    return Name(Kind.CURRENT, queue)


def damaged_folder(folder: str) -> str:
    return f"{folder}/{OWN_FOLDER}/damaged"


def sidecar_folder(folder: str) -> str:
    return f"{folder}/{OWN_FOLDER}/segments"


def sidecar_path(folder: str, name: str) -> str:
    """Return the path of the sidecar of file `name` of a spool."""
    return f"{sidecar_folder(folder)}/{name}"


def plan_path(own: str) -> str:
    """Return the path of the plan of a conversion of the spool."""
    return f"{own}/convert.plan"


def archive_name(queue: str, number: int) -> str:
    return f"{queue}.{number}"


def pack_name(queue: str, number: int) -> str:
    return f"{queue}.{number}.pack"


def temp_name(queue: str, number: int) -> str:
    return f"{queue}~~{number}"


class Files(Struct):
    """The files of one queue in a spool. Archives and packs: file name to number (`q.7` and `q.07` are two files).
    `gone`: archives that are missing although their sidecars exist. `stuck`: empty packs that the system refuses to
    move away; they are ignored.
    """

    queue: str
    archives: dict[str, int]
    packs: dict[str, int]
    temps: list[str]
    current: bool = False
    gone: dict[str, int] = {}
    stuck: list[str] = []

    @property
    def holds_nothing(self) -> bool:
        """True if there are only temporary files, which do not make a queue."""
        return not (self.current or self.archives or self.packs)

    def names(self) -> list[str]:
        """Return the name of every file."""
        return [*self.archives, *self.packs, *self.temps, *([self.queue] if self.current else [])]

    def archives_in_order(self) -> list[str]:
        return sorted(self.archives, key=lambda name: (self.archives[name], name))

    def sealed_in_order(self) -> list[str]:
        """Return the archives in order, including those that are gone."""
        numbers = self.archives | self.gone
        return sorted(numbers, key=lambda name: (numbers[name], name))

    def newest_number(self) -> int:
        return max([*self.archives.values(), *self.gone.values()], default=0)


def sort_out(entries: list[tuple[str, bool]]) -> tuple[dict[str, Files], list[str]]:
    """Sort a folder's (name, is regular file) entries into the files of each queue, and the names left alone."""
    queues: dict[str, Files] = {}
    foreign: list[str] = []
    for file_name, regular in entries:
        name = parse(file_name)
        if name.kind is Kind.FOREIGN or not regular:
            foreign.append(file_name)
            continue
        files = queues.setdefault(name.queue, Files(name.queue, {}, {}, []))
        if name.kind is Kind.CURRENT:
            files.current = True
        elif name.kind is Kind.ARCHIVE:
            files.archives[file_name] = name.number
        elif name.kind is Kind.PACK:
            files.packs[file_name] = name.number
        else:
            files.temps.append(file_name)
    return queues, foreign
