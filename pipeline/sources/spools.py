"""The spools that one load names: a list of paths, patterns, or a file of hosts and paths.

Each spool has a name, which the column `host` shows: the one in the file, what the wildcards stand for, or the path.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import parse_qs

from msgspec import Struct

from staniel.pipeline.lake.folders import SCHEME, FileVanished, as_local, below, folder, without_secrets
from staniel.pipeline.lake.globs import is_pattern, match_folders
from staniel.pipeline.lake.stores import NONE, with_settings

HOST = "{host}"  # in a path, the place of a host's name
FILE_BYTES_MAX = 16 << 20
NAMES_SHOWN = 3


class SpoolRef(Struct, frozen=True):
    """A spool by name and path. `error` says why it was not found; "": it may be there."""

    host: str
    path: str
    error: str = ""

    def describe(self) -> str:
        path = without_secrets(self.path)
        return f"spool {path}" if self.host == path else f"spool {path} of host {self.host}"


class SpoolUnreachable(Exception):
    """A spool of several cannot be read."""


def list_spools(paths: list[str], hosts_file: str = "", stores: Mapping[str, str] = NONE) -> list[SpoolRef]:
    """Return the spools in the order of the list or file, and those of a pattern in the order of their names. `stores`
    are settings for URLs in the file. Raises ValueError for a file that cannot be used, and if two spools have one name
    or are the same folder.
    """
    named = list(_named_paths(paths, hosts_file)) if hosts_file else [("", path) for path in paths]
    spools = [spool for host, path in named for spool in _found_at(host, with_settings(path, stores))]
    _check_names(spools)
    _check_folders(spools)
    return spools


def _found_at(host: str, path: str) -> Iterator[SpoolRef]:
    shown = without_secrets(path)
    if not is_pattern(path):
        yield SpoolRef(host or shown, path)
        return
    matches = match_folders(path)
    for match in matches:
        name = match.name if not match.error else f"{match.name}/?".lstrip("/")
        yield SpoolRef(f"{host}/{name}".lstrip("/"), match.path, match.error)
    if not matches:
        yield SpoolRef(host or shown, path, "no folder matches this pattern")


def _named_paths(paths: list[str], hosts_file: str) -> Iterator[tuple[str, str]]:
    """Yield (host, path) for each line of the file; the host is "" for a path alone. Raises ValueError."""
    template = paths[0] if paths else ""
    if len(paths) > 1 or (template and HOST not in template):
        raise ValueError(
            f"with option hostsFile the path is one with {HOST}, like /data/{HOST}/spool, or none, and the file has the"
            " paths"
        )
    where = without_secrets(hosts_file)
    lines = _read_text(hosts_file).splitlines()
    is_empty = True
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        is_empty = False
        host, _, path = text.partition(" ") if "\t" not in text else text.partition("\t")
        path = path.strip()
        if "/" in host or host.startswith("."):
            yield "", _path_beside(hosts_file, text)
        elif path:
            yield host, _path_beside(hosts_file, path)
        elif template:
            yield host, template.replace(HOST, host)
        else:
            raise ValueError(
                f"option hostsFile: line {number} of {where}: {host} has no path: write `{host} /its/spool`, or give a"
                f" path like /data/{HOST}/spool"
            )
    if is_empty:
        raise ValueError(f"option hostsFile: {where} names no spool")


def _path_beside(file: str, path: str) -> str:
    """Return a path of the file as an absolute one: a relative one begins at the file's folder."""
    if SCHEME.match(path) or os.path.isabs(path):
        return path
    return below(_parent(file), path)


def _parent(file: str) -> str:
    path, mark, options = file.partition("?") if SCHEME.match(file) else (file, "", "")
    return f"{path.rpartition('/')[0] or '/'}{mark}{options}"


def _read_text(file: str) -> str:
    """Return the content of a file. Raises ValueError."""
    file = as_local(file)
    name = (file.partition("?")[0] if SCHEME.match(file) else file).rpartition("/")[2]
    try:
        opened = folder(_parent(file)).open(name)
        try:
            return opened.read(0, FILE_BYTES_MAX).decode("utf-8")
        finally:
            opened.close()
    except UnicodeDecodeError as error:
        raise ValueError(f"option hostsFile: {without_secrets(file)} is not UTF-8: {error}") from None
    except FileVanished:
        raise ValueError(f"option hostsFile: there is no file {without_secrets(file)}") from None
    except OSError as error:
        raise ValueError(f"option hostsFile: {without_secrets(file)}: {error.strerror or error}") from None


def _check_names(spools: Iterable[SpoolRef]) -> None:
    by_host: dict[str, SpoolRef] = {}
    for spool in spools:
        other = by_host.setdefault(spool.host, spool)
        if other is spool:
            continue
        if other.path == spool.path:
            raise ValueError(f"{spool.describe()} is given twice: leave one out")
        raise ValueError(
            f"two spools have the host name {spool.host}: {without_secrets(other.path)} and"
            f" {without_secrets(spool.path)}; give each a name of its own in hostsFile, as `{spool.host}-2 /its/spool`"
        )


def _check_folders(spools: Iterable[SpoolRef]) -> None:
    """Refuse a folder under two names or paths: its records would come twice."""
    by_folder: dict[object, SpoolRef] = {}
    for spool in spools:
        other = by_folder.setdefault(_folder_id(spool.path), spool)
        if other is not spool:
            raise ValueError(f"{other.describe()} and {spool.describe()} are the same folder: leave one out")


def _folder_id(path: str) -> object:
    path = as_local(path)
    if SCHEME.match(path):
        endpoint = parse_qs(path.partition("?")[2]).get("endpoint_override", [""])[0]
        return without_secrets(path).rstrip("/").replace("s3a:", "s3:", 1), endpoint
    try:
        status = os.stat(path)
    except OSError:
        return os.path.abspath(path)
    return status.st_dev, status.st_ino


def list_of(spools: Iterable[SpoolRef]) -> str:
    """Return the first names of some spools, for a message."""
    names = [spool.host for spool in spools]
    return ", ".join(names[:NAMES_SHOWN]) + (
        f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    )
