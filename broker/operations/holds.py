"""The retention holds of a server: their creation, moves and drops, and their limits. The rules are those of
`journal/holds.py`; `journal/kept_files.py` keeps the files.

A change is decided on the present holds, written and synced by a background task, then applied and acknowledged.
Changes follow each other. No background task removes files meanwhile, because tasks run one at a time; what the hub
removes before a creation is applied, it removes before the creation is acknowledged. Kept files are removed when the
change that gives them up is durable.

A hold whose files exceed its limit is dropped within a second. It stays in the list until it is created again or
dropped by its holder, which must learn that files are missing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct, structs

from staniel.broker.events import EventSink, Level, RateLimitedSink
from staniel.journal.background import CallbackTask, TaskQueue
from staniel.journal.disk.fs import FULL_ERRNOS, is_missing, is_there
from staniel.journal.disk.refusals import described, remedy_in_service
from staniel.journal.holds import (
    CMDLOG,
    HOLDS_MAX,
    FilePlace,
    Hold,
    HoldState,
    dropped,
    hold_error,
    holds_queue,
    kept_name,
    move_error,
    place_of,
)
from staniel.journal.kept_files import FileKeeper
from staniel.journal.own_files import KeptFile
from staniel.journal.spool import Spool
from staniel.queues.calendar import Calendar
from staniel.queues.names import family_of
from staniel.queues.registry import Queues

if TYPE_CHECKING:
    from staniel.journal.workq.log import CmdLog  # loads what a server without jobs does not need

REMEDY = "make the spool's own folder writable for this user, on the journals' file system, one with hard links"


class HoldRefused(Exception):
    """The refusal of a change of holds; nothing has changed. `status`: that of an HTTP reply."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class HoldView(Struct, frozen=True):
    """A hold as operators see it. `age_ms`: the time since it was created or last moved. `files`, `bytes`: those that
    are kept for it and that the server needs no more. `passed`: the last file that the holder has wholly read, by
    queue.
    """

    name: str
    queues: list[str]
    max_bytes: int
    created_at_ms: int
    age_ms: int
    bytes: int
    files: int
    passed: dict[str, str]
    state: HoldState
    why: str


Change = Callable[[tuple[Hold, ...]], tuple[Hold, ...]]
"""A change of the holds. Raises HoldRefused."""
Then = Callable[[HoldRefused | None, int], None]


class HoldFigure(Struct, frozen=True):
    """A hold in one line, for displays: see HoldView. Times are the wall clock's."""

    name: str
    state: HoldState
    bytes: int
    max_bytes: int
    moved_ms: int


class Asked(NamedTuple):
    """A change that waits for earlier ones, and its asker."""

    change: Change
    then: Then
    tries: bool
    frees: bool


class SaveHolds(CallbackTask):
    """A task that makes `holds` durable, then removes the kept files that none of them needs."""

    def __init__(
        self, keeper: FileKeeper, holds: tuple[Hold, ...], then: Callable[[OSError | None, int], None], *, tries: bool
    ) -> None:
        super().__init__(then)
        self._keeper, self._holds, self._tries = keeper, holds, tries

    def work(self) -> None:
        if self._tries:
            with_jobs = any(holds_queue(hold, CMDLOG) for hold in self._holds)
            self._keeper.try_links(with_jobs=with_jobs)
            self._keeper.clear_for(self._holds)
        self._keeper.save(self._holds)
        self._keeper.prune(self._holds)


class Holds:
    """All retention holds of a server. `cmdlog` is set by the broker: the command log, if jobs are served."""

    def __init__(self, spool: Spool, queues: Queues, tasks: TaskQueue, calendar: Calendar, report: EventSink) -> None:
        self.keeper = spool.keeper
        self.cmdlog: CmdLog | None = None
        self.dropped_at_limit = 0
        self._spool, self._queues, self._tasks, self._calendar = spool, queues, tasks, calendar
        self._report, self._rate_limited = report, RateLimitedSink(report)
        self._waiting: deque[Asked] = deque()
        self._is_changing = False
        self._is_at_limits = False  # holds are being dropped at their limits
        if self.keeper.damage:
            hint = "there are no holds now; create them again, which removes what was kept until now"
            report(Level.ERROR, "holds.damaged", file=self.keeper.path, why=self.keeper.damage, hint=hint)

    def __len__(self) -> int:
        return len(self.keeper.holds)

    @property
    def kept(self) -> KeptFile:
        """The file, while there are holds."""
        keeper = self.keeper
        return KeptFile(
            keeper.path,
            lambda: bool(keeper.holds) and not self._is_changing and is_missing(self._spool.fs, keeper.path, 1),
            lambda: keeper.save(keeper.holds),
        )

    def views(self, now_ms: int) -> list[HoldView]:
        """Return all holds by name."""
        views = []
        for hold in sorted(self.keeper.holds, key=lambda hold: hold.name):
            files, size = self.keeper.totals(hold.name)
            age_ms = max(0, now_ms - self._calendar.moment_ms(hold.moved_at_ms, now_ms))
            views.append(
                HoldView(
                    name=hold.name,
                    queues=hold.queues,
                    max_bytes=hold.max_bytes,
                    created_at_ms=hold.created_at_ms,
                    age_ms=age_ms,
                    bytes=size,
                    files=files,
                    passed=hold.passed,
                    state=hold.state,
                    why=hold.why,
                )
            )
        return views

    def figures(self) -> list[HoldFigure]:
        """Return all holds by name, as displays show them."""
        return [
            HoldFigure(hold.name, hold.state, self.keeper.totals(hold.name)[1], hold.max_bytes, hold.moved_at_ms)
            for hold in sorted(self.keeper.holds, key=lambda hold: hold.name)
        ]

    def create(self, name: str, queues: list[str], max_bytes: int, now_ms: int, then: Then) -> None:
        """Create a hold. The same again changes nothing, but another limit replaces that of the hold. A dropped hold
        begins anew.
        """

        def change(holds: tuple[Hold, ...]) -> tuple[Hold, ...]:
            if why := hold_error(name, queues, max_bytes):
                raise HoldRefused(400, why)
            old = next((hold for hold in holds if hold.name == name), None)
            if old is not None and old.state is HoldState.ACTIVE:
                if old.queues != queues:
                    raise HoldRefused(409, f"there is a hold {name} of other queues: {' '.join(old.queues)}")
                return _replaced(holds, structs.replace(old, max_bytes=max_bytes))
            if old is None and len(holds) >= HOLDS_MAX:
                raise HoldRefused(409, f"there are {len(holds)} holds: drop one of them")
            wall_ms = self._calendar.wall_ms(now_ms)
            return _replaced(holds, Hold(name, queues, max_bytes, wall_ms, wall_ms))

        self._ask(change, then, tries=True)

    def move(self, name: str, passed: dict[str, str], now_ms: int, then: Then) -> None:
        """Let a hold pass these files."""

        def change(holds: tuple[Hold, ...]) -> tuple[Hold, ...]:
            hold = _find(holds, name)
            try:
                why = move_error(hold, passed, partial(self._is_sealed, hold))
            except OSError as error:
                raise HoldRefused(503, f"the spool cannot be read: {described(error)}") from error
            if why:
                raise HoldRefused(409, why)
            named = {queue: place.name for queue, file in passed.items() if (place := place_of(file)) is not None}
            earlier = {queue: file for queue, file in hold.passed.items() if queue in passed or self._has_files(queue)}
            wall_ms = self._calendar.wall_ms(now_ms)
            return _replaced(holds, structs.replace(hold, passed={**earlier, **named}, moved_at_ms=wall_ms))

        self._ask(change, then, frees=True)

    def drop(self, name: str, then: Then) -> None:
        """Remove a hold, and the files that were kept for it alone."""

        def change(holds: tuple[Hold, ...]) -> tuple[Hold, ...]:
            gone = _find(holds, name)
            return tuple(hold for hold in holds if hold is not gone)

        self._ask(change, then, frees=True)

    def check_limits(self, now_ms: int) -> None:
        """Drop the holds whose files exceed their limits. Called each second."""
        if self._is_at_limits or not self._find_over(self.keeper.holds):
            return
        self._is_at_limits = True
        over: dict[str, int] = {}

        def change(holds: tuple[Hold, ...]) -> tuple[Hold, ...]:
            over.update(self._find_over(holds))  # a move that was asked for earlier may have made room
            return tuple(self._dropped(hold, over[hold.name]) if hold.name in over else hold for hold in holds)

        def then(refused: HoldRefused | None, now_ms: int) -> None:
            self._is_at_limits = False
            for name, size in over.items() if refused is None else ():
                self.dropped_at_limit += 1
                hint = "its holder has missed files; let it catch up from the queues, then create the hold again"
                self._report(Level.ERROR, "hold.dropped", hold=name, bytes=size, why="max_bytes is exceeded", hint=hint)
            if refused is not None:
                hint = "the server tries again each second; its files take more room meanwhile"
                why = refused.why
                self._rate_limited(Level.WARNING, "hold.undropped", now_ms, hold=next(iter(over)), why=why, hint=hint)

        self._ask(change, then, frees=True)

    def _find_over(self, holds: tuple[Hold, ...]) -> dict[str, int]:
        """Return the bytes that are kept for each active hold beyond its limit. Those of a dropped one are there if the
        system has refused to remove them.
        """
        sizes = [(hold, self.keeper.totals(hold.name)[1]) for hold in holds if is_active(hold)]
        return {hold.name: size for hold, size in sizes if 0 < hold.max_bytes < size}

    def _dropped(self, hold: Hold, size: int) -> Hold:
        return dropped(hold, f"its files had {size:,} bytes, and max_bytes is {hold.max_bytes:,}")

    def _ask(self, change: Change, then: Then, *, tries: bool = False, frees: bool = False) -> None:
        """Carry out `change` after the earlier ones. `tries`: check first that files can be kept. `frees`: it makes
        room, so on a full disk it may use the reserve.
        """
        self._waiting.append(Asked(change, then, tries, frees))
        if not self._is_changing:
            self._begin_next(0)

    def _begin_next(self, now_ms: int) -> None:
        while self._waiting:
            asked = self._waiting.popleft()
            try:
                holds = asked.change(self.keeper.holds)
            except HoldRefused as refused:
                asked.then(refused, now_ms)
                continue
            if holds == self.keeper.holds:
                asked.then(None, now_ms)
                continue
            self._submit(asked, holds)
            return

    def _submit(self, asked: Asked, holds: tuple[Hold, ...]) -> None:
        self._is_changing = True
        self._tasks.submit(SaveHolds(self.keeper, holds, partial(self._saved, asked, holds), tries=asked.tries))

    def _saved(self, asked: Asked, holds: tuple[Hold, ...], error: OSError | None, now_ms: int) -> None:
        self._is_changing = False
        if error is not None and error.errno in FULL_ERRNOS and asked.frees and self._spool.group.make_room():
            self._submit(asked._replace(frees=False), holds)
            return
        if error is None:
            self.keeper.adopt(holds)
            asked.then(None, now_ms)
        else:
            why = f"the holds cannot be stored: {described(error)}"
            asked.then(HoldRefused(503, f"{why}; {remedy_in_service(error, REMEDY)}"), now_ms)
        self._begin_next(now_ms)

    def _is_sealed(self, hold: Hold, place: FilePlace) -> bool:
        """Tell whether there is such a sealed file: kept for the hold, or in its place. Raises OSError if the disk
        cannot say.
        """
        if kept_name(hold.name, place.name) in self.keeper.kept:
            return True
        if place.queue == CMDLOG:
            sealed = self.cmdlog.sealed() if self.cmdlog is not None else []
            return any(segment.number == place.number for segment in sealed)
        family = self._spool.streams.families.get(place.queue)
        if family is not None and place.number >= family.writer.next_item()[0]:
            return False
        # The server may need it no more: it is about to be removed, or the system refuses that.
        return any(is_there(self._spool.fs, f"{self._spool.folder}/{place.name}{suffix}") for suffix in ("", ".pack"))

    def _has_files(self, queue: str) -> bool:
        """Tell whether `queue` has files, or may have some that are not served."""
        name = family_of(queue)
        is_there = queue == CMDLOG or name in self._spool.streams.families or self._queues.find(queue) is not None
        return is_there or name in self._queues.blocked or queue in self._queues.blocked or self.keeper.has_kept(queue)


def is_active(hold: Hold | HoldView | HoldFigure) -> bool:
    return hold.state is HoldState.ACTIVE


def _find(holds: tuple[Hold, ...], name: str) -> Hold:
    """Return a hold. Raises HoldRefused."""
    for hold in holds:
        if hold.name == name:
            return hold
    raise HoldRefused(404, f"there is no hold {name}")


def _replaced(holds: tuple[Hold, ...], hold: Hold) -> tuple[Hold, ...]:
    """Return `holds` with `hold` in the place of the one of its name, or after the others."""
    if any(other.name == hold.name for other in holds):
        return tuple(hold if other.name == hold.name else other for other in holds)
    return (*holds, hold)
