"""Retention holds of journals that are read: the folder as a holder sees it, and the move behind a batch.

A server keeps each sealed file that a hold needs, as a second name in `.staniel/kept`, before it removes the file or
replaces it by a pack (journal/holds.py). So a reader that has a hold, and moves it once it has stored what it has read,
never meets a gap. The move is an order to the server, given with the program `staniel`: the pipeline does not know the
server's parts.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable

from staniel.journal.disk.os_fs import OsFs
from staniel.journal.holds import (
    CMDLOG,
    KEPT,
    FilePlace,
    Hold,
    HoldState,
    holds_queue,
    kept_name,
    kept_place,
    passed_number,
    place_of,
    read_holds,
)
from staniel.journal.kestrel.files import OWN_FOLDER
from staniel.pipeline.formats.base import JournalSegment
from staniel.pipeline.lake.folders import FileVanished, Folder, FolderEntry, LocalFolder, OpenFile, folder
from staniel.pipeline.lake.names import real_name

AT_ONCE = 500  # files in one order: a command line has an end
ORDER_S_MAX = 120.0


class HoldLost(ValueError):
    """A hold that is not there, or was dropped: files may be missing that its holder has not read."""


class HeldFolder(LocalFolder):
    """A spool with the files that are kept for a hold in the place of those that have replaced them."""

    def __init__(self, path: str, hold: str) -> None:
        super().__init__(path)
        self.hold = hold
        self._kept = LocalFolder(f"{self.path}/{OWN_FOLDER}/{KEPT}")

    def _entries(self) -> dict[str, FolderEntry] | None:
        # What is not in place any more is kept by then. `scan` compares two listings, so no file is seen twice.
        by_name = super()._entries()
        kept = self._kept._entries() if by_name is not None else None
        if by_name is None or not kept:
            return by_name
        present = {}
        for name, entry in kept.items():
            of_hold = kept_place(name)
            if of_hold is not None and of_hold[0] == self.hold:
                present[of_hold[1].name] = entry._replace(name=of_hold[1].name)
        replaced = (place_of(name) for name in by_name)
        shown = {
            name: entry
            for (name, entry), place in zip(by_name.items(), replaced, strict=True)
            if place is None or place.name not in present
        }
        return shown | present

    def size(self, name: str) -> int:
        try:
            return self._kept.size(self._kept_name(name))
        except FileVanished:
            return super().size(name)

    def open(self, name: str) -> OpenFile:
        """Open a file. Another one may have its name now, a pack for instance, but it was kept before that."""
        try:
            file = super().open(name)
        except FileVanished:
            return self._kept.open(self._kept_name(name))
        try:
            kept = self._kept.open(self._kept_name(name))
        except FileVanished:
            return file
        file.close()
        return kept

    def _kept_name(self, name: str) -> str:
        return kept_name(self.hold, real_name(name))


def open_spool(path: str, hold: str) -> Folder:
    """Return the folder, as the holder of `hold` sees it; "": without one."""
    return HeldFolder(path, hold) if hold else folder(path)


def check_hold(path: str, hold: str) -> Hold:
    """Return the hold. Raises HoldLost, and ValueError for a folder that no server writes to on this machine."""
    if not isinstance(folder(path), LocalFolder):
        raise ValueError(f"option hold is for a spool in a local folder, with its server; not for {path}")
    if not os.path.isdir(f"{path}/{OWN_FOLDER}"):
        raise ValueError(f"option hold: {path} is no spool: it has no folder {OWN_FOLDER}")
    present = [known for known in read_holds(OsFs(), path) if known.name == hold]
    if not present:
        create = f"staniel hold create {hold} --spool {path}"
        raise HoldLost(f"there is no retention hold {hold!r} in {path}: {create}; it keeps files from then on")
    if present[0].state is not HoldState.ACTIVE:
        raise HoldLost(
            f"the retention hold {hold!r} of {path} was dropped: {present[0].why}. Files may be missing: read on once"
            f" without option hold, which counts what is lost, then: staniel hold create {hold} --spool {path}"
        )
    return present[0]


def passed_files(hold: Hold, read: Iterable[tuple[list[JournalSegment], int]]) -> list[str]:
    """Return the files that the hold can pass: of each queue, the newest sealed one that was read. `read` has the files
    of each queue in order, and how many of them were read to their ends.
    """
    places: dict[str, FilePlace | None] = {}
    for segments, at in read:
        for queue in {place.queue for segment in segments if (place := _place(segment)) is not None}:
            before = [place for segment in segments[:at] if (place := _place(segment)) is not None]
            newest = max(before, key=lambda place: place.number, default=None)
            other = places.get(queue, newest)
            # Queues that share files: the slowest counts.
            places[queue] = min(newest, other, key=lambda place: place.number) if newest and other else None
    return sorted(
        place.name
        for place in places.values()
        if place is not None and holds_queue(hold, place.queue) and place.number > passed_number(hold, place.queue)
    )


def has_passed(hold: Hold, file: str) -> bool:
    """Tell whether the hold has passed this file, or a later one of its queue: its holder has read all of it."""
    place = place_of(real_name(file))
    return place is not None and place.number <= passed_number(hold, place.queue)


def _place(segment: JournalSegment) -> FilePlace | None:
    place = place_of(real_name(segment.file))
    return None if place is None or place.queue == CMDLOG else place


def move_hold(path: str, hold: str, files: list[str]) -> str:
    """Have the server pass these files. Return why it has refused, or ""."""
    order = [sys.executable, "-m", "staniel", "hold", "move", "--spool", path, hold]
    for begin in range(0, len(files), AT_ONCE):
        some = files[begin : begin + AT_ONCE]
        try:
            ran = subprocess.run([*order, *some], capture_output=True, text=True, timeout=ORDER_S_MAX, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        if ran.returncode:
            return ran.stderr.strip() or f"exit status {ran.returncode}"
    return ""
