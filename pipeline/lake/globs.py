"""Patterns of folders, as `/data/*/spool`, on local disks and in object stores.

Wildcards are `*`, `?` and `[…]` within one name, and `{a,b}`. In a URL a question mark begins the options, and is no
wildcard. A path that exists as it is written is no pattern. Hidden names match only a pattern that begins with a dot.
"""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from staniel.pipeline.lake.folders import SCHEME, RemoteFolder, as_local, below, folder

BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")
MISSING = (FileNotFoundError, NotADirectoryError)


class FolderMatch(NamedTuple):
    """A folder that matches a pattern, or a part of the pattern that cannot be looked up. `name` is what the names with
    wildcards stand for, joined with slashes. `error` says why a folder above cannot be listed.
    """

    name: str
    path: str
    error: str = ""


class FolderTree(Protocol):
    """Folders below a first one, by path or URL."""

    def folders(self, path: str) -> list[str]:
        """Return the names of the folders in a folder. Raises OSError."""

    def existing(self, paths: list[str]) -> list[bool]:
        """Return False for each path where there is no folder. A path that the system refuses to look at is True."""


class LocalTree:
    def folders(self, path: str) -> list[str]:
        with os.scandir(path or "/") as entries:
            return [entry.name for entry in entries if entry.is_dir()]

    def existing(self, paths: list[str]) -> list[bool]:
        return [_may_be_folder(path) for path in paths]


class RemoteTree:
    """Folders of an object store, or of another file system of pyarrow. `top` is a URL."""

    def __init__(self, top: str) -> None:
        place = folder(top)
        assert isinstance(place, RemoteFolder)
        self._fs, self._top, self._top_path = place.fs, top.partition("?")[0].rstrip("/"), place.path

    def _path(self, url: str) -> str:
        path: str = self._top_path + url.partition("?")[0].removeprefix(self._top)
        return path

    def folders(self, path: str) -> list[str]:
        from pyarrow import fs

        infos = self._fs.get_file_info(fs.FileSelector(self._path(path)))
        return [info.base_name for info in infos if info.type == fs.FileType.Directory]

    def existing(self, paths: list[str]) -> list[bool]:
        from pyarrow import fs

        infos = self._fs.get_file_info([self._path(path) for path in paths]) if paths else []
        return [info.type == fs.FileType.Directory for info in infos]


def is_pattern(path: str) -> bool:
    """Return True if a path or URL has wildcards, and is not the path of a folder that exists."""
    path = as_local(path)
    if SCHEME.match(path):
        return _has_wildcards(path.partition("?")[0].partition("://")[2].partition("/")[2])
    return _has_wildcards(path) and not os.path.lexists(path)


def match_folders(pattern: str) -> list[FolderMatch]:
    """Return the folders that match, sorted. Raises ValueError for a URL that pyarrow does not know."""
    pattern = as_local(pattern)
    matches = dict.fromkeys(match for text in _alternatives(pattern) for match in _matches(text))
    return sorted(matches)


def _matches(pattern: str) -> Iterator[FolderMatch]:
    is_remote = SCHEME.match(pattern) is not None
    text, mark, options = pattern.partition("?") if is_remote else (pattern, "", "")
    scheme, slashes, path = text.partition("://") if is_remote else ("", "", text)
    first, *names = path.split("/")
    top = f"{scheme}{slashes}{first}{mark}{options}"
    while names and not _is_wild(names[0]):
        top = below(top, names.pop(0))
    tree: FolderTree = RemoteTree(top) if is_remote else LocalTree()
    reached = [FolderMatch("", top)]
    for name in names:
        reached = [next_match for match in reached for next_match in _descend(tree, match, name)]
    sound = [match for match in reached if not match.error]
    yield from (match for match in reached if match.error)
    yield from (match for match, exists in zip(sound, tree.existing([m.path for m in sound]), strict=True) if exists)


def _descend(tree: FolderTree, match: FolderMatch, name: str) -> Iterator[FolderMatch]:
    """Yield what a match becomes by the next name of the pattern."""
    if match.error or not _is_wild(name):
        yield FolderMatch(match.name, below(match.path, name), match.error)
        return
    try:
        names = tree.folders(match.path)
    except MISSING:
        return
    except OSError as error:
        yield FolderMatch(match.name, below(match.path, name), f"cannot be listed: {error.strerror or error}")
        return
    for present in names:
        if fnmatch.fnmatchcase(present, name) and (name.startswith(".") or not present.startswith(".")):
            yield FolderMatch(f"{match.name}/{present}".lstrip("/"), below(match.path, present))


def _has_wildcards(text: str) -> bool:
    return _is_wild(text) or BRACES.search(text) is not None


def _is_wild(name: str) -> bool:
    return any(letter in name for letter in "*?[")


def _alternatives(pattern: str) -> list[str]:
    """Return the patterns that one with braces stands for. A name from braces counts as one with wildcards."""
    match = BRACES.search(pattern)
    if match is None:
        return [pattern]
    before, after = pattern[: match.start()], pattern[match.end() :]
    return [text for word in match[1].split(",") for text in _alternatives(before + _as_wild(word) + after)]


def _as_wild(word: str) -> str:
    """Return a pattern for exactly this word: its first letter in brackets makes it one."""
    return f"[{word[0]}]{word[1:]}" if word and not _is_wild(word) and word[0] not in "!/^-]" else word


def _may_be_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except MISSING:
        return False
    except OSError:
        return True
