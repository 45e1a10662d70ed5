"""The journal formats that there are adapters for, and telling them apart.

A new format is one adapter and its line here. Refuses to know any of them.
"""

from __future__ import annotations

from collections.abc import Callable

from journal.cmdlog_layout import segment_numbers
from journal.libkestrel import MAGIC_BYTES, READER_MAGIC, SEGMENT_MAGIC
from journal.libkestrel_layout import Kind, parse
from pipeline.files import Folder, Vanished
from pipeline.segments import Format


def _kestrel() -> Format:
    from pipeline.kestrel_format import KestrelFormat

    return KestrelFormat()


def _workq() -> Format:
    from pipeline.cmdlog_format import CmdlogFormat

    return CmdlogFormat()


def _libkestrel() -> Format:
    from pipeline.libkestrel_format import LibkestrelFormat

    return LibkestrelFormat()


FORMATS: dict[str, Callable[[], Format]] = {"kestrel": _kestrel, "libkestrel": _libkestrel, "workq": _workq}


def format_of(folder: Folder, name: str, listing: list[tuple[str, int]]) -> Format:
    """The adapter of a named format; for `auto`, what the files look like."""
    return FORMATS[name if name != "auto" else guess(folder, listing)]()


def guess(folder: Folder, listing: list[tuple[str, int]]) -> str:
    """Kestrel's files have no mark of their own: they are what has no other's."""
    if segment_numbers((name, True) for name, _ in listing):
        return "workq"
    named = [name for name, size in listing if size and parse(name).kind in (Kind.SEGMENT, Kind.READER)]
    return "libkestrel" if named and _magic(folder, named[0]) in (SEGMENT_MAGIC, READER_MAGIC) else "kestrel"


def _magic(folder: Folder, name: str) -> bytes:
    try:
        file = folder.open(name)
    except Vanished:
        return b""
    try:
        return file.read(0, MAGIC_BYTES)
    finally:
        file.close()
