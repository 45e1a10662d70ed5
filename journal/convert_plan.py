"""What remains of a conversion once its new files have been verified: names to be moved, whatever happens.

Knows the plan's file and how to carry it out, again and again until it is done. Refuses to know formats.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from journal.fs import Fs


class Plan(Struct, frozen=True):
    """What remains to be done once everything has been verified. File names: `old` go to `aside`, then `new` come."""

    aside: str
    old: list[str]
    new: list[str]


def plan_path(own: str) -> str:
    return f"{own}/convert.plan"


def carry_out(fs: Fs, folder: str, own: str) -> bool:
    """Finish a conversion that has been verified; whether there was one. Safe to interrupt at every step. Raises
    OSError.
    """
    path = plan_path(own)
    try:
        plan = msgspec.json.decode(fs.read(path, 0, fs.size(path)), type=Plan)
    except FileNotFoundError:
        return False
    fs.make_folder(plan.aside)
    _move(fs, folder, plan.aside, plan.old)
    _move(fs, f"{own}/convert", folder, plan.new)
    fs.remove(path)
    fs.sync_folder(own)
    return True


def _move(fs: Fs, source: str, target: str, names: list[str]) -> None:
    there = {name for name, _ in fs.list(source)}
    for name in names:
        if name in there:
            fs.rename(f"{source}/{name}", f"{target}/{name}")
    fs.sync_folder(target)
    fs.sync_folder(source)
