"""The log tells each kind of reason that health tells: when it begins with the same text and mend, and when it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from staniel.broker.admin import health as of_health
from staniel.broker.admin.health import DAY_MS
from staniel.broker.admin.last_backup import LastBackup
from staniel.broker.admin.reasons import HealthReason, ReasonName, Severity
from staniel.broker.admin.watch import ROUND_MS, SYNC_HANGS_MS, Watch
from staniel.broker.broker import Broker
from staniel.broker.wall_clock import WallClock
from staniel.journal.group_commit import GroupCommit
from staniel.journal.holds import Hold, HoldState
from tests.support.world import World

# The server ends with these, and looks at nothing any more: events of its end tell them (docs/events.md).
OF_THE_END = {ReasonName.STOPPING: "server.stopped", ReasonName.SYNC_FAILED: "server.failed"}
DROPPED = Hold("h", ["*"], 9, 0, 0, state=HoldState.DROPPED, why="it was full")
Holds = Callable[[World], AbstractContextManager[Any]]


@contextmanager
def changed(owner: Any, name: str, value: object) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, value)
        yield


@contextmanager
def has_hold(world: World, hold: Hold, size: int = 0) -> Iterator[None]:
    keeper = world.broker.spool.keeper
    with changed(keeper, "holds", (hold,)), changed(keeper, "totals", lambda name: (1, size)):
        yield


def by_look(reason: ReasonName) -> Holds:
    """A reason of a queue that the watch finds by looking at it."""
    return lambda world: changed(Watch, "_check_queue", lambda watch, name, now_ms: watch._set(name, (reason,)))


def is_dead_letter_queue(world: World) -> AbstractContextManager[None]:
    return changed(Watch, "_check_queue", lambda watch, name, now_ms: watch._dead.update({name: None}))


@contextmanager
def says(world: World, begin: str, end: str) -> Iterator[None]:
    client = world.client()
    client.says(begin)
    yield
    client.says(end)


@contextmanager
def is_blocked(world: World) -> Iterator[None]:
    world.broker.queues.blocked["b"] = "its file is a folder"
    yield
    del world.broker.queues.blocked["b"]


@contextmanager
def cannot_read(world: World) -> Iterator[None]:
    queue = world.broker.queues.by_name["q"]
    queue.line.read_error = OSError(5, "Input/output error")
    yield
    queue.line.read_error = None


def of_member(name: ReasonName, world: World) -> AbstractContextManager[None]:
    reason = HealthReason(name, Severity.WARNING, "the member is not well", "mend it")
    of_world = SimpleNamespace(reasons=lambda: [reason])
    return changed(world.broker.health, "membership", of_world)


COPIES = SimpleNamespace(
    count=2,
    bytes=5,
    folder="spool/.staniel/damaged",
    age_ms=lambda wall_ms: 8 * DAY_MS,
    list_copies=lambda now_ms: None,
    are_to_be_looked_at=lambda now_ms, total: True,
)
HELD: dict[ReasonName, Holds] = {
    ReasonName.STATUS: lambda world: says(world, "status readonly", "status up"),
    ReasonName.DISK_FULL: lambda world: changed(GroupCommit, "is_full", True),
    ReasonName.DISK_LOW: lambda world: changed(world.broker.spool.fs, "free_bytes", lambda folder: (1, 1 << 40)),
    ReasonName.DISK_FILLING: lambda world: changed(
        Watch, "_look_at_disk", lambda watch, now_ms: setattr(watch, "fills_in_ms", 60_000)
    ),
    ReasonName.SYNCS_SLOW: lambda world: changed(
        Watch, "_look_at_syncs", lambda watch, now_ms: setattr(watch, "sync_hangs_ms", SYNC_HANGS_MS)
    ),
    ReasonName.QUEUES_BLOCKED: is_blocked,
    ReasonName.QUEUES_UNREADABLE: cannot_read,
    ReasonName.JOBS_UNREADABLE: lambda world: changed(world.broker.workq, "trouble", "Input/output error"),
    ReasonName.QUEUE_FULL: by_look(ReasonName.QUEUE_FULL),
    ReasonName.QUEUE_FILLING: by_look(ReasonName.QUEUE_FILLING),
    ReasonName.QUEUE_GROWS: by_look(ReasonName.QUEUE_GROWS),
    ReasonName.READS_HELD: by_look(ReasonName.READS_HELD),
    ReasonName.QUEUE_NOT_READ: by_look(ReasonName.QUEUE_NOT_READ),
    ReasonName.DEAD_LETTERS: is_dead_letter_queue,
    ReasonName.QUEUES_PAUSED: lambda world: says(world, "pause q", "resume q"),
    ReasonName.CONNECTIONS_FULL: lambda world: changed(world.broker.limits, "max_connections", 1),
    ReasonName.CERTIFICATE_EXPIRES: lambda world: changed(world.broker.health.server, "certificate_ends_ms", 1),
    ReasonName.CLOCK_APART: lambda world: changed(WallClock, "is_apart", True),
    ReasonName.SECRETS_READABLE: lambda world: changed(world.broker.health.server, "exposed_files", ["/etc/token"]),
    ReasonName.NETWORK_OPEN: lambda world: changed(of_health, "is_unguarded", lambda config: True),
    ReasonName.FILE_SYSTEM: lambda world: changed(
        world.broker.health.disk, "file_systems", {"spool": SimpleNamespace(text="NFS may lose what was synced")}
    ),
    ReasonName.DAMAGE: lambda world: changed(world.broker.damages, "count", 2),
    ReasonName.COPIES_KEPT: lambda world: changed(world.broker.watch, "copies", COPIES),
    ReasonName.READ_KEPT: lambda world: changed(Watch, "is_read_kept", True),
    ReasonName.REMOVALS_REFUSED: lambda world: changed(Broker, "refused_removals", 3),
    **{
        name: partial(of_member, name)
        for name in (
            ReasonName.NOT_LEADER,
            ReasonName.SET_TOO_SMALL,
            ReasonName.MEMBERS_MISSING,
            ReasonName.UNFIT,
            ReasonName.ETCD_UNREACHABLE,
            ReasonName.ETCD_RESTORED,
        )
    },
    ReasonName.HOLD_DROPPED: lambda world: has_hold(
        world, Hold("h", ["*"], 9, 0, 0, state=HoldState.DROPPED, why="it was full")
    ),
    ReasonName.HOLD_FILLING: lambda world: has_hold(world, Hold("h", ["*"], 100, 0, 0), 95),
    ReasonName.BACKUP_OLD: lambda world: changed(LastBackup, "is_old", lambda last, now_ms, age_ms_max: True),
}


def test_every_kind_of_reason_has_a_line() -> None:
    assert set(HELD) | set(OF_THE_END) == set(ReasonName)


@pytest.mark.pure  # patches classes
@pytest.mark.parametrize("kind", HELD, ids=lambda kind: kind.value)
def test_the_log_tells_when_a_reason_begins_and_ends_as_health_does(kind: ReasonName) -> None:
    world = World("workq.port = 0\n")
    world.client().puts("x", "q")
    world.broker.watch.begin_rounds(world.now_ms)
    _two_rounds(world)
    assert world.reported("health.warning") == []
    with HELD[kind](world):
        _two_rounds(world)
        world.broker.watch.may_look = True
        (told,) = [each for each in world.broker.health.check(world.now_ms).reasons if each.name is kind]
        (line,) = world.reported("health.warning")
        hints = [fields["hint"] for event, fields in world._details if event == "health.warning"]
        assert (line["reason"], line["why"], hints) == (kind.value, told.text, [told.mend])
        assert line.get("queue", "") == "".join(told.queues)
        assert _verb(told.text), told.text
        _two_rounds(world)
        assert len(world.reported("health.warning")) == 1 and world.reported("health.ended") == []
    _two_rounds(world)
    (ended,) = world.reported("health.ended")
    assert (ended["reason"], ended["why"]) == (kind.value, told.text)
    assert len(world.reported("health.warning")) == 1


def _two_rounds(world: World) -> None:
    for _ in range(2):
        world.turn(ROUND_MS)


VERBS = {"is", "are", "can", "cannot", "has", "have", "was", "holds", "grows", "keep", "keeps", "took", "stay", "reach"}
VERBS |= {"refuses", "could", "expires", "may"}


def _verb(text: str) -> set[str]:
    """A text is a sentence: "queue mails is paused", never "queue mails paused"."""
    return VERBS & set(text.replace(":", " ").replace(",", " ").split())
