"""What a start writes anew after a failed sync of an earlier run: which files, which names, and what is out of reach.

Knows folders and names. Refuses to know how files are renewed (doubt.py) and what they say. What the mark lists is
renewed wherever it lies, also where this run does not serve it: the mark goes, and nobody would know any more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from msgspec import Struct

from journal import cmdlog_layout, layout, libkestrel_layout
from journal.doubt import Doubt, Mark
from journal.fs import Locked
from journal.names import Names
from journal.survey import Survey

RENEWED = ("intents", "status", "paused")  # own files that are read at the next start
UNSURE_SEGMENTS = 2  # the one that was written to, and the one before it, whose last sync may not have come
TEMPORARY = re.compile(r"~~\d+$|\.new$|\.rw$|^\.staniel-ballast$")


class Renewed(Struct, frozen=True):
    """`files`: so many were written anew. `left`: paths that were out of reach, and stay in doubt."""

    files: int
    left: list[str]


class Renewal:
    """Of one spool. `own`: the spool's own folder. `jobs`: where the command log is; `serves_jobs`: this process has
    its locks.
    """

    def __init__(self, fs: Names, folder: str, own: str, doubt: Doubt, jobs: str, *, serves_jobs: bool) -> None:
        self.fs = fs
        self.folder = folder
        self.own = own
        self.doubt = doubt
        self.jobs = jobs
        self._ours = {folder, own, layout.sidecar_folder(folder), *([jobs] if serves_jobs else [])}
        self._releases: list[Callable[[], None]] = []

    def run(self, found: Survey) -> Renewed:
        """Raises OSError, JournalFailure."""
        try:
            return self._run(found)
        finally:
            for release in self._releases:
                release()

    def _run(self, found: Survey) -> Renewed:
        mark = self.doubt.read()
        named = [path for path in [*mark.names, *mark.files, *mark.gone] if self._counts(path)]
        wanted = list(dict.fromkeys([*self._written(found, mark), *named]))
        left = self._out_of_reach(wanted)
        there = [path for path in wanted if path not in left and path not in mark.gone and self._exists(path)]
        once_there = [path for path in dict.fromkeys([*mark.names, *mark.gone]) if self._counts(path)]
        gone = [path for path in once_there if path not in there and path not in left]
        self.doubt.renew([(path, self._temp(path)) for path in there], gone, left)
        return Renewed(len(there), left)

    def _written(self, found: Survey, mark: Mark) -> list[str]:
        """The files that the server writes to, whatever the mark says. Segments are synced before or soon after they
        are sealed: those that were not are in the mark, if it is whole.
        """
        names = [name for name, each in found.kestrel.items() if each.current]
        for each in found.streams.values():
            names += [*self._newest(sorted(each.segments, key=lambda name: each.segments[name]), mark)]
            names += each.readers.values()
        names += [f"{layout.OWN_FOLDER}/{name}" for name, regular in self.fs.list(self.own) if regular]
        segments = [cmdlog_layout.segment_name(number) for number in self._segments()]
        paths = [path for name in names if self._counts(path := f"{self.folder}/{name}")]
        return [*paths, *(f"{self.jobs}/{name}" for name in self._newest(segments, mark))]

    def _newest(self, names: list[str], mark: Mark) -> list[str]:
        return names if mark.is_torn else names[-UNSURE_SEGMENTS:]

    def _segments(self) -> list[int]:
        try:
            return cmdlog_layout.segment_numbers(self.fs.list(self.jobs))
        except FileNotFoundError:
            return []

    def _counts(self, path: str) -> bool:
        """Whether it matters what the file says and that its name is right: temporary files are worth nothing."""
        folder, _, name = path.rpartition("/")
        if folder == self.own:
            return name in RENEWED
        return not TEMPORARY.search(name)

    def _out_of_reach(self, paths: Iterable[str]) -> list[str]:
        """Those in folders that are not there, or that another process uses now; the other folders are held until this
        is over.
        """
        refused: dict[str, bool] = dict.fromkeys(self._ours, False)
        left = []
        for path in paths:
            folder = path.rpartition("/")[0]
            if folder not in refused:
                refused[folder] = not self._hold(folder)
            if refused[folder]:
                left.append(path)
        return left

    def _hold(self, folder: str) -> bool:
        try:
            names = {name for name, _ in self.fs.list(folder)}
            if cmdlog_layout.APPEND_LOCK in names:
                self._releases.append(self.fs.hold(f"{folder}/{cmdlog_layout.APPEND_LOCK}", shared=False))
        except (FileNotFoundError, NotADirectoryError, Locked):
            return False
        return True

    def _exists(self, path: str) -> bool:
        try:
            self.fs.size(path)
        except FileNotFoundError:
            return False
        return True

    def _temp(self, path: str) -> str:
        """Where new bytes for `path` are written: a name that every start clears away."""
        folder, _, name = path.rpartition("/")
        if folder != self.folder:
            return f"{path}{cmdlog_layout.REWRITE_SUFFIX if name.endswith('.log') else '.new'}"
        kind = layout.parse(name)
        if kind.queue:
            return f"{folder}/{layout.temp_name(kind.queue, kind.number)}"
        return f"{folder}/{libkestrel_layout.temp_name(name, 0)}"
