"""The plan of a conversion whose new files have been verified: the names to be moved, whatever happens.

The plan is one small JSON file with a checksum. Every start carries it out again until it is done; after a failed sync
it is done when the moved files have been renewed. If it cannot be read, its queue is not served, because a part of the
queue's files may have been moved already.
"""

from __future__ import annotations

from contextlib import suppress
from zlib import crc32

import msgspec
from msgspec import Struct, structs

from staniel.journal.disk.fs import Fs
from staniel.journal.disk.quarantine import UNDECODABLE, quarantine
from staniel.journal.disk.removal import RemovalList
from staniel.journal.disk.replace_file import replace_file
from staniel.journal.kestrel import files as kestrel_files
from staniel.journal.kestrel.install import remove_sidecars
from staniel.journal.libkestrel import files as libkestrel_files
from staniel.queues.names import family_of

FOLDER = "convert"  # in the own folder: new files that are not moved in yet
PLAN_BYTES_MAX = 16 << 20
LIST_NAME = "conversion plan"  # with a blank, which no queue's name has
UNREADABLE = (
    "the plan of its conversion to another format cannot be read: move its old files back from .staniel/aside.*, or its"
    " new ones from .staniel/convert, then remove .staniel/convert.plan and start again"
)


class ConversionPlan(Struct, frozen=True, forbid_unknown_fields=True):
    """The steps that remain after everything has been verified. File names: `old` are moved to `aside`, then `new` are
    moved in. `crc`: the crc32 of the plan without this field; plans of earlier versions have none.
    """

    aside: str
    old: list[str]
    new: list[str]
    crc: int | None = None


class UnreadablePlan(Struct, frozen=True):
    """A plan that cannot be read. `queues`: the queues, by fan-out parent, whose files it moves."""

    path: str
    why: str
    queues: frozenset[str]
    saved_as: str


def encode(plan: ConversionPlan) -> bytes:
    return msgspec.json.encode(structs.replace(plan, crc=_crc_of(plan)))


def decode(data: bytes) -> ConversionPlan:
    """Decode a plan. Raises one of UNDECODABLE."""
    plan = msgspec.json.decode(data, type=ConversionPlan)
    if plan.crc not in (None, _crc_of(plan)):
        raise ValueError("its checksum does not match")
    return plan


def _crc_of(plan: ConversionPlan) -> int:
    return crc32(msgspec.json.encode(structs.replace(plan, crc=None)))


def carry_out(fs: Fs, folder: str, own: str, *, keeps_plan: bool = False) -> UnreadablePlan | None:
    """Finish a verified conversion, if there is one. Every step can be interrupted. A plan that cannot be decoded stays
    where it is. `keeps_plan`: a sync has failed, so the caches may show a plan and moves that are not durable. The plan
    is made durable before anything is moved, and it stays until `remove_plan`, after the renewal of the moved files.
    Raises OSError, also if the plan cannot be read; raises JournalFailure.
    """
    path = kestrel_files.plan_path(own)
    try:
        plan = decode(fs.read(path, 0, min(fs.size(path), PLAN_BYTES_MAX)))
    except FileNotFoundError:
        return None
    except (IsADirectoryError, *UNDECODABLE) as error:
        return _hold_back(fs, own, path, error)
    if keeps_plan:
        replace_file(fs, path, encode(plan))
    fs.make_folder(plan.aside)
    remove_sidecars(fs, folder, plan.old)  # of files that are gone, a start would report the items as lost
    removal_list = RemovalList(fs, folder, LIST_NAME)
    removal_list.write(plan.old)
    _move(fs, folder, plan.aside, plan.old)
    _move(fs, f"{own}/{FOLDER}", folder, plan.new)
    if not keeps_plan:
        remove_plan(fs, own)
        removal_list.drop()
    return None


def remove_plan(fs: Fs, own: str) -> None:
    """Remove the plan of a conversion, if there is one. All of its moves must be durable. Raises OSError,
    JournalFailure.
    """
    with suppress(FileNotFoundError):
        fs.remove(kestrel_files.plan_path(own))
        fs.sync_folder(own)


def _hold_back(fs: Fs, own: str, path: str, error: BaseException) -> UnreadablePlan:
    """Block the queues whose new files are still in the conversion's own folder. If it has none, all of them have been
    moved. Raises OSError.
    """
    try:
        names = [name for name, _ in fs.list(f"{own}/{FOLDER}")]
    except (FileNotFoundError, NotADirectoryError):
        names = []
    kinds = [kestrel_files.parse(name).queue or libkestrel_files.parse(name).queue for name in names]
    queues = frozenset(family_of(queue) for queue in kinds if queue)
    try:
        saved_as = quarantine(fs, path, 0, fs.size(path), f"{own}/damaged")
    except OSError:
        saved_as = ""
    return UnreadablePlan(path, str(error), queues, saved_as)


def _move(fs: Fs, source: str, target: str, names: list[str]) -> None:
    there = {name for name, _ in fs.list(source)}
    for name in names:
        if name in there:
            fs.rename(f"{source}/{name}", f"{target}/{name}")
    fs.sync_folder(target)
    fs.sync_folder(source)
