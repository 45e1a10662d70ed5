"""The journal formats that there are adapters for, and telling them apart.

A new format is one adapter and its line here. Refuses to know any of them.
"""

from __future__ import annotations

from collections.abc import Callable

from journal.cmdlog_layout import segment_numbers
from pipeline.files import Folder
from pipeline.segments import Format


def _kestrel() -> Format:
    from pipeline.kestrel_format import KestrelFormat

    return KestrelFormat()


def _workq() -> Format:
    from pipeline.cmdlog_format import CmdlogFormat

    return CmdlogFormat()


FORMATS: dict[str, Callable[[], Format]] = {"kestrel": _kestrel, "workq": _workq}


def format_of(folder: Folder, name: str, listing: list[tuple[str, int]]) -> Format:
    """The adapter of a named format; for `auto`, what the files look like."""
    return FORMATS[name if name != "auto" else guess(folder, listing)]()


def guess(folder: Folder, listing: list[tuple[str, int]]) -> str:
    """Kestrel's files have no mark of their own: they are what has no other's."""
    return "workq" if segment_numbers((name, True) for name, _ in listing) else "kestrel"
