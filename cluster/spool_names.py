"""Names of the files of a spool: which of them followers have too, and which are a server's own.

A name is relative to the spool. Segments of a command log have names as if the log were in the spool, wherever it is.
"""

from __future__ import annotations

import re
from enum import Enum

from msgspec import Struct

from staniel.journal.disk.fs import MISSING, Fs
from staniel.journal.kestrel import files as kestrel_files
from staniel.journal.kestrel.files import OWN_FOLDER
from staniel.journal.libkestrel import files as libkestrel_files
from staniel.journal.spool_listing import CMDLOG

NAME_BYTES_MAX = 255  # of a part of a name: what file systems allow
PARTS_MAX = 3
TEMPORARY = re.compile(r"(?:~~[0-9]+|\.new)\Z")
ARRIVING = f"{OWN_FOLDER}/arriving"
"""A file that a server's own folders give to the spool, while its bytes are sent."""


class Share(Enum):
    REPLICATED = "replicated"
    OWN = "own"


class NameRule(Struct, frozen=True):
    """The names that match `pattern`, within the spool's own folder, and why they are replicated or not."""

    pattern: str
    share: Share
    why: str


def _replicated(pattern: str, why: str) -> NameRule:
    return NameRule(pattern, Share.REPLICATED, why)


def _own(pattern: str, why: str) -> NameRule:
    return NameRule(pattern, Share.OWN, why)


RULES = (
    _replicated("intents", "a take-over finishes transfers that have begun"),
    _replicated("paused", "pauses are the queues', not the machine's"),
    _replicated("status", "as pauses"),
    _replicated("last_backup", "a backup has the content, which is the same everywhere"),
    _replicated("clock", "times of items count by these steps; to another machine they are those before a reboot"),
    _replicated("undo/[^/]+", "operations go on, and can be undone, after a take-over"),
    _replicated("keys/[^/]+", "a repeated put may come after a take-over"),
    _replicated(r"cmdlog/[0-9]{9}\.log(\.rw|\.damaged(\.[0-9]+)?)?", "jobs"),
    _replicated(r"aside\.[^/]+/[^/]+", "an operator may put them back"),
    _replicated("arriving", "a file on its way from a server's own folders, see recording_fs.py"),
    _own("lock", "names the process that owns the folder"),
    _own("version", "names the redo log in use here"),
    _own(r"redo\.[01]", "the redo log: bytes that this disk has not synced elsewhere"),
    _own(r"failed_sync(\.room)?", "what this disk may have lost"),
    _own("ballast", "the reserve of this disk"),
    _own(r"audit(\.1)?", "who asked this server"),
    _own("segments/[^/]+", "derived from journals, where they are needed"),
    _own("held/[^/]+", "names for a backup's copy of this server's files"),
    _own("holds", "its holders read the files of this server"),
    _own("kept/[^/]+", "as `holds`"),
    _own(r"convert\.plan|convert/.+", "a tool's work on a spool that no server has open"),
    _own("repair/.+", "as conversions"),
    _own("quarantine/.+", "copies by the pipeline"),
    _own("damaged/.+", "bytes that this disk gave back wrong"),
    _own("follower|member", "the place of this server's records, its id and its promises"),
    _own("trial", "tries whether a folder of archives takes files"),
    _own(r"cmdlog/(append|read)\.lock", "as `lock`"),
    _own(r"cmdlog/\.staniel-ballast", "as `ballast`"),
    _own(r"cmdlog/\.staniel-held/.+", "as `held/`"),
    _own(r"cmdlog/\.staniel-kept/.+", "as `kept/`"),
)
"""Every name in the spool's own folder that a server or a tool creates; each matches one rule. A suffix of a temporary
file is cut off before. All journals in the spool's folder itself are replicated.
"""

ARCHIVED = re.compile(r"(?:.+/)?(?:archive~|staniel~trial)[^/]*", re.DOTALL)
"""Segments that every reader has passed, in a folder that a setting names. They are no content of a queue."""

_COMPILED = [(re.compile(rule.pattern, re.DOTALL), rule) for rule in RULES]
_REPLICATED = [pattern for pattern, rule in _COMPILED if rule.share is Share.REPLICATED]


def rules_of(name: str) -> list[NameRule]:
    """Return the rules of the own folder that match a name there, given relative to the spool."""
    within = TEMPORARY.sub("", name.removeprefix(f"{OWN_FOLDER}/"))
    return [rule for pattern, rule in _COMPILED if pattern.fullmatch(within)]


def share_of(name: str) -> Share | None:
    """Return whether followers have the file too; None if no server creates such a file."""
    if name.startswith(f"{OWN_FOLDER}/"):
        rules = rules_of(name)
        return rules[0].share if rules else None
    if ARCHIVED.fullmatch(name):
        return Share.OWN
    return Share.REPLICATED if _is_journal(name) else None


def is_replicated(name: str) -> bool:
    """Tell whether a name, from anywhere, is that of a file that followers have too. Such a name stays in the spool."""
    parts = name.split("/")
    if len(parts) > PARTS_MAX or "\0" in name or not {"", ".", ".."}.isdisjoint(parts):
        return False
    if any(len(part.encode("utf-8", "surrogateescape")) > NAME_BYTES_MAX for part in parts):
        return False
    if len(parts) == 1:
        return _is_journal(name)
    if parts[0] != OWN_FOLDER:
        return False
    within = TEMPORARY.sub("", name[len(OWN_FOLDER) + 1 :])
    return any(pattern.fullmatch(within) for pattern in _REPLICATED)


def _is_journal(name: str) -> bool:
    """Tell whether a journal in the spool's folder, or its unfinished successor, may have this name."""
    if "/" in name or name == OWN_FOLDER:
        return False
    name = name.removesuffix(".new")
    if kestrel_files.parse(name).kind is not kestrel_files.Kind.FOREIGN:
        return True
    return libkestrel_files.parse(name).kind is not libkestrel_files.StreamFileKind.FOREIGN


class SpoolPaths:
    """The paths of a spool's files on one machine. `jobs`: the folder of its command log, if it is outside."""

    def __init__(self, folder: str, jobs: str = "") -> None:
        self.folder = folder
        self.own = f"{folder}/{OWN_FOLDER}"
        within = f"{folder}/{CMDLOG}"
        self.jobs = jobs or within
        self._roots = [(f"{folder}/", "")]
        if self.jobs != within:
            self._roots.insert(0, (f"{jobs}/", f"{CMDLOG}/"))

    @property
    def jobs_outside(self) -> str:
        """The folder of the command log if it is outside the spool, else ""."""
        return self.jobs if len(self._roots) > 1 else ""

    def name_of(self, path: str) -> str | None:
        """Return the name of the file at `path`; None if the file is not the spool's."""
        for root, prefix in self._roots:
            if path.startswith(root):
                name = prefix + path[len(root) :]
                is_unused = self.jobs_outside and not prefix and name.startswith(f"{CMDLOG}/")
                return None if is_unused else name
        return None

    def path_of(self, name: str) -> str:
        """Return the path of a file of the spool."""
        if self.jobs_outside and name.startswith(f"{CMDLOG}/"):
            return f"{self.jobs}{name[len(CMDLOG) :]}"
        return f"{self.folder}/{name}"

    def replicated_name(self, path: str) -> str | None:
        """Return the name of the file at `path` if followers have it too, else None."""
        name = self.name_of(path)
        if name is None:
            return None
        share = share_of(name)
        assert share is not None, f"{path} is in no list of cluster/spool_names.py: do followers need it?"
        return name if share is Share.REPLICATED else None

    def replicated_files(self, fs: Fs) -> list[str]:
        """Return the names of all replicated files that are there, sorted. Raises OSError."""
        names = [name for name, regular in fs.list(self.folder) if regular and is_replicated(name)]
        for folder in self._own_folders(fs):
            prefix = f"{OWN_FOLDER}/{folder}/" if folder else f"{OWN_FOLDER}/"
            path = self.path_of(prefix).rstrip("/")
            names += [f"{prefix}{name}" for name in _files_in(fs, path) if is_replicated(f"{prefix}{name}")]
        return sorted(names)

    def _own_folders(self, fs: Fs) -> list[str]:
        entries = {name for name, regular in _entries(fs, self.own) if not regular} | {"cmdlog"}
        return ["", *sorted(entries & {"undo", "keys", "cmdlog"} | {name for name in entries if "aside." in name})]


def _entries(fs: Fs, folder: str) -> list[tuple[str, bool]]:
    try:
        return fs.list(folder)
    except MISSING:
        return []


def _files_in(fs: Fs, folder: str) -> list[str]:
    return [name for name, regular in _entries(fs, folder) if regular]
