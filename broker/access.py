"""Access checks: server status, connection limits, paused queues, white lists. A check returns the reason of a refusal,
which the client gets as text.

Most requests skip these checks: a session and a queue each have a flag `needs_check`, which is true when one of them
can refuse.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from staniel.broker.limits_reached import LimitsReached
from staniel.broker.rights import Rights, Role
from staniel.broker.status import StatusControl
from staniel.queues.queue import Queue
from staniel.queues.registry import Queues

if TYPE_CHECKING:
    from staniel.journal.group_commit import GroupCommit

DISK_FULL = "disk full, nothing can be stored until there is space"
NO_INODES = "disk full, nothing can be stored: no inodes are left on it, remove files"


class Actor(Protocol):
    """A client that puts or takes: a session, or an operation."""

    @property
    def status(self) -> StatusControl: ...

    @property
    def client_id(self) -> str: ...

    @property
    def refuse_reads(self) -> bool: ...

    @property
    def refuse_writes(self) -> bool: ...


def disk_full(group: GroupCommit) -> str:
    """Return why nothing can be stored."""
    return NO_INODES if group.ballast.lacks_inodes else DISK_FULL


def puts_are_refused(group: GroupCommit) -> str:
    """Return the text about refused puts for the log."""
    if group.ballast.lacks_inodes:
        return "no inodes are left on the disk: puts are refused until files are removed"
    return "puts are refused until there is space"


def read_refusal(actor: Actor, queue: Queue | None) -> str:
    """Return why this client may not take from `queue`; "" if it may. With `queue` None, check only what holds for all
    queues.
    """
    status = actor.status
    if not status.enforced.reads:
        return f"the server is {status.enforced.value.lower()}, reads are refused"
    if actor.refuse_reads:
        return "too many connections, this one may not read"
    return "" if queue is None else trouble(queue) or _white_list(actor, queue)


def crowd_refusal(limits: LimitsReached, client: str, queue: Queue, now_ms: int, *, opens: bool, waits: bool) -> str:
    """Return why this client may not open another item of `queue`, or wait for one: its address or the queue has
    reached a limit of open reads or waiters. Return "" if it may. A refusal is counted and logged.
    """
    if opens and len(queue.open_reads) >= queue.max_open_reads:
        limits.log_limit("max_open_reads", now_ms, client=client, queue=queue.name)
        return f"{len(queue.open_reads)} items of {queue.name} are open, no more can be (max_open_reads)"
    if waits and not len(queue.line) and queue.count_waiters() >= queue.config.max_waiters:
        limits.log_limit("max_waiters", now_ms, client=client, queue=queue.name)
        return f"{queue.count_waiters()} clients wait for {queue.name}, no more can (max_waiters)"
    return ""


def trouble(queue: Queue) -> str:
    """Return why no item of `queue` can be taken or shown: its journal cannot be read. Return "" if it can."""
    error = queue.line.read_error
    return "" if error is None else f"queue {queue.name} is not available: {why_unreadable(error)}"


def blocked_queues(queues: Queues) -> str:
    """Return a text about the queues that `flush_all` could not empty because they cannot be read; "" if there are
    none.
    """
    if not queues.blocked:
        return ""
    name = min(queues.blocked)
    more = f" and {len(queues.blocked) - 1} more" if len(queues.blocked) > 1 else ""
    return f"queue {name}{more} is not available: {queues.blocked[name]}; all others are empty"


def why_unreadable(error: OSError) -> str:
    """Return for clients which file cannot be read, without its folder, and why."""
    name = str(error.filename or "").rpartition("/")[2]
    return f"{name}: {error.strerror}" if name else str(error.strerror)


def flush_refusal(actor: Actor, queues: Iterable[Queue]) -> str:
    """Return why this client may not empty all of `queues`; "" if it may. A flush needs the right to write, and to
    take from each of them.
    """
    if why := write_refusal(actor, None):
        return why
    return next((why for queue in queues if queue.needs_check and (why := _white_list(actor, queue))), "")


def _white_list(actor: Actor, queue: Queue) -> str:
    wanted = queue.config.client_id_for_dequeue
    return f"reads of {queue.name} are for {wanted} only" if wanted not in ("", actor.client_id) else ""


def making_refusal(rights: Rights, queues: Queues, name: str) -> str:
    """Return why nothing may be put to `name`, a queue that does not exist; "" if something may. A put through an alias
    needs no right to the alias's targets.
    """
    is_there = name in queues.by_name or name in queues.aliases or name in queues.blocked
    return "" if rights.creates or is_there else f"{rights.who} may not create {name}"


def target_refusal(rights: Rights, queues: Queues, name: str) -> str:
    """Return why items may not be moved to `name`; "" if they may. A missing queue is created."""
    return rights.refusal(Role.OPERATE, name) or making_refusal(rights, queues, name)


def puts_paused(name: str) -> str:
    return f"puts to {name} are paused"


def write_refusal(actor: Actor, queue: Queue | None) -> str:
    """Return why this client may not write to `queue` (None: to any); "" if it may."""
    status = actor.status
    if not status.enforced.writes:
        return f"the server is {status.enforced.value.lower()}, writes are refused"
    if status.refusal:
        return status.refusal
    if actor.refuse_writes:
        return "too many connections, this one may not write"
    if queue is None:
        return ""
    if queue.puts_paused:
        return puts_paused(queue.name)
    wanted = queue.config.client_id_for_enqueue
    if wanted not in ("", actor.client_id) and "+" not in queue.name:
        return f"puts to {queue.name} are for {wanted} only"
    return ""
