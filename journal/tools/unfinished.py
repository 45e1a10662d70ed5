"""The work that the last server of a spool left unfinished; a start finishes it. Every tool that changes or copies
journals checks here first: without that work the journals contain less, or more, than a start would serve. The spool of
a cluster's member counts as such, too: only the stream of its leader may change it.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from staniel.journal.copy_mark import VERSION, has_mark
from staniel.journal.disk.fs import MISSING, Fs, is_there
from staniel.journal.kestrel.files import OWN_FOLDER, plan_path
from staniel.journal.membership import Standing, membership
from staniel.journal.put_key_log import FOLDER as KEYS_FOLDER
from staniel.journal.put_key_log import PutKeyLog, replayed
from staniel.journal.redo.dump import used_log
from staniel.journal.spool import MARK
from staniel.journal.transfer_log import TransferLog
from staniel.journal.undo_file import FOLDER, Unusable, is_name, read_content
from staniel.queues.names import family_of


class Work(Enum):
    COPY = "what is copied into it is not complete"
    UNFIT_HALF = Standing.HALF.value
    UNFIT_SHORT = Standing.SHORT.value
    FOLLOWER = Standing.FOLLOWER.value
    MEMBER = Standing.MEMBER.value
    MEMBER_DAMAGED = Standing.DAMAGED.value
    FAILED_SYNC = "a sync has failed in the last run"
    REDO_LOG = "the redo log may have what journals lack"
    CONVERSION = "a conversion is not finished"
    TRANSFERS = "items are on their way to another queue"
    PUT_KEYS = "it is not noted whether puts with a key have stored their items"
    OPERATION = "a purge, a move or an undo is not finished"


class Unfinished(Struct, frozen=True):
    """Unfinished work. `queue`: its queue, or its fan-out family; "" for the spool as a whole, or if the queue is
    unknown. `path`: the file that shows it.
    """

    work: Work
    path: str
    queue: str = ""


def unfinished_work(fs: Fs, folder: str) -> list[Unfinished]:
    """Return the unfinished work in the spool `folder`, in the order of `Work`. Raises OSError if a file cannot be
    read.
    """
    own = f"{folder}/{OWN_FOLDER}"
    unfinished = []
    if has_mark(fs, own):
        unfinished.append(Unfinished(Work.COPY, f"{own}/{VERSION}"))
    joined = membership(fs, folder)
    if not joined.is_alone:
        unfinished.append(Unfinished(Work(joined.standing.value), joined.path))
    if is_there(fs, f"{own}/{MARK}"):
        unfinished.append(Unfinished(Work.FAILED_SYNC, f"{own}/{MARK}"))
    if used_log(fs, own) is not None:
        unfinished.append(Unfinished(Work.REDO_LOG, f"{own}/version"))
    if is_there(fs, plan_path(own)):
        unfinished.append(Unfinished(Work.CONVERSION, plan_path(own)))
    path = f"{own}/intents"
    if is_there(fs, path):
        log = TransferLog(fs, path)
        names = [name for intent in log.read() for name in (intent.source, intent.target)]
        lost = [""] if log.damage.lost else []  # an unreadable line may be about any queue
        unfinished += [
            Unfinished(Work.TRANSFERS, path, name) for name in dict.fromkeys([*lost, *map(family_of, names)])
        ]
    return unfinished + _put_keys(fs, own) + _operations(fs, f"{own}/{FOLDER}")


def unfinished_in(fs: Fs, folder: str, queue: str) -> list[Unfinished]:
    """Return the unfinished work of a queue and its children, and of the spool as a whole."""
    return [unfinished for unfinished in unfinished_work(fs, folder) if unfinished.queue in ("", family_of(queue))]


def _put_keys(fs: Fs, own: str) -> list[Unfinished]:
    """Return the queues whose puts with a key are not finished."""
    log = PutKeyLog(fs, own)
    _, unfinished = replayed(log.read() or ())
    names = [put.queue for put in unfinished]
    lost = [""] if any(damage.lost for damage in log.damaged.values()) else []
    families = dict.fromkeys([*lost, *map(family_of, names)])
    return [Unfinished(Work.PUT_KEYS, f"{own}/{KEYS_FOLDER}", family) for family in families]


def _operations(fs: Fs, folder: str) -> list[Unfinished]:
    """Return the unfinished operations. A file of a later version may be about any queue. A file without content took
    no items.
    """
    try:
        names = [name for name, regular in fs.list(folder) if regular and is_name(name)]
    except MISSING:
        return []
    unfinished = []
    for name in sorted(names, key=int):
        content = read_content(fs, f"{folder}/{name}")
        if content is Unusable.LATER:
            unfinished.append(Unfinished(Work.OPERATION, f"{folder}/{name}"))
        elif not isinstance(content, Unusable) and not content.is_settled:
            families = dict.fromkeys(map(family_of, content.queues))
            unfinished += [Unfinished(Work.OPERATION, f"{folder}/{name}", family) for family in families]
    return unfinished
