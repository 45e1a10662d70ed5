"""Retention holds in a history: what is asked of them, and the promise that every file that an active hold has not
passed is there with its records.

The ledger looks at the disk alone, after each turn and after each accident. It knows sealed files by their names, and
each one's bytes from the first look at it. A change that was asked for and not answered may have happened or not.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import Any

from staniel.broker.broker import LOOK_MS
from staniel.broker.operations.holds import HoldRefused
from staniel.journal.disk.fs import is_there
from staniel.journal.disk.quarantine import UNDECODABLE
from staniel.journal.holds import CMDLOG, Hold, HoldState, holds_queue, kept_place, needs, place_of, read_holds
from staniel.journal.kestrel import files as kestrel_files
from staniel.sim.disk.disk import Disk
from staniel.sim.history import History, SeedPlan
from staniel.sim.jobs.run import JobRun
from staniel.sim.queues.promises import Accident
from staniel.sim.queues.run import QueueRun
from staniel.sim.violations import Kind, Violation
from staniel.sim.world import World

NAMES = ("one", "two")
GLOBS = (["*"], ["a", "f*", ".cmdlog"], ["b", "c", "d", "e", "g"])
LIMITS = (0, 0, 0, 600, 3000)
KEPT_FOLDERS = 2  # the first of the folders of a ledger
OVER_TURNS = 12  # after the server has looked, until a hold beyond its limit is dropped
Files = dict[str, bytes]


class HoldLedger:
    """The holds of a history, as asked for and as answered. `jobs`: the folder of the command log. `streams`: the
    queues in libkestrel's format.
    """

    def __init__(self, jobs: str, streams: Iterable[str]) -> None:
        self._streams = {CMDLOG, *streams}
        self._folders = ["s/.staniel/kept", f"{jobs}/.staniel-kept", "s", jobs]
        self.sure: dict[str, Hold] = {}  # answered, with what they have passed at least
        self._perhaps: dict[str, dict[str, str]] = {}  # what they may have passed: moves that were asked for
        self._unsure: Counter[str] = Counter()  # how many requests without an answer may create or drop each hold
        self._owed: dict[str, Files] = {}  # by hold
        self._durable: set[tuple[str, str]] = set()
        self._current: Files = {}  # the current files of Kestrel's queues, at the last look
        self._over: dict[str, tuple[int, int]] = {}  # beyond their limits: when the server looked, since when
        self._began: dict[str, int] = {}  # in which turn each was created
        self._turns = 0
        self.log: Callable[[str], None] = lambda text: None

    # requests

    def ask(self, rng: Random, world: World) -> None:
        """Ask for one change. Raises JournalFailure."""
        name, draw, holds = rng.choice(NAMES), rng.random(), world.broker.file_holds
        if name not in self.sure or draw < 0.1:
            self._ask_creation(rng, world, name)
        elif draw < 0.18:
            self._unsure[name] += 1
            self.log(f"drop {name}")
            holds.drop(name, partial(self._dropped, name))
        else:
            self._ask_move(rng, world, name)

    def begin_anew(self, rng: Random, world: World) -> None:
        """Drop a hold that has kept files, and create another of its name."""
        for name in self.sure:
            if self._files(world.disk, name)[1]:
                self._unsure[name] += 1
                self.log(f"drop {name}")
                world.broker.file_holds.drop(name, partial(self._dropped, name))
                self._ask_creation(rng, world, name)
                return

    def _ask_creation(self, rng: Random, world: World, name: str) -> None:
        queues, most = rng.choice(GLOBS), rng.choice(LIMITS)
        self._unsure[name] += 1
        self.log(f"hold {name} {queues} {most}")
        world.broker.file_holds.create(name, queues, most, world.now_ms, partial(self._created, world, name))

    def _ask_move(self, rng: Random, world: World, name: str) -> None:
        hold, is_back = self.sure[name], rng.random() < 0.2
        files, kept = self._files(world.disk, name)
        sealed = [file for file in files if not self._is_newest(file, files, kept)]
        if is_back and hold.passed:
            sealed = [f"{queue}.1" for queue in hold.passed if queue != CMDLOG]
        if not sealed:
            return
        file = rng.choice(sealed)
        place = place_of(file)
        assert place is not None
        if needs(hold, place):
            self._perhaps.setdefault(name, {})
            before = place_of(self._perhaps[name].get(place.queue, ""))
            if before is None or before.number < place.number:
                self._perhaps[name][place.queue] = file
        elif not is_back:
            return
        self.log(f"move {name} past {file}")
        then = partial(self._moved, name, place.queue, file)
        world.broker.file_holds.move(name, {place.queue: file}, world.now_ms, then)

    def _created(self, world: World, name: str, refused: HoldRefused | None, now_ms: int) -> None:
        self.log(f"hold {name}: {refused.why if refused else 'created'}")
        self._unsure[name] -= 1
        self._forgive()
        present = {hold.name: hold for hold in world.broker.file_holds.keeper.holds}
        if refused is None and name in present:
            if name not in self.sure or present[name].created_at_ms != self.sure[name].created_at_ms:
                self._perhaps.pop(name, None)
                self._check_begins_without(name, world.disk)
            self.sure[name] = present[name]
            self._began[name] = self._turns
            self._over.pop(name, None)

    def _check_begins_without(self, name: str, disk: Disk) -> None:
        """Check that a new hold does not take over what was kept for a former one of its name. Raises Violation."""
        for folder in self._folders[:KEPT_FOLDERS]:
            for kept in _names(disk, folder):
                if kept.startswith(f"{name}~") and kept_place(kept) is not None:
                    raise Violation(Kind.HOLD, f"{kept} was kept for a former hold, and {name} has just been created")

    def _moved(self, name: str, queue: str, file: str, refused: HoldRefused | None, now_ms: int) -> None:
        self.log(f"move {name} past {file}: {refused.why if refused else 'moved'}")
        hold, place = self.sure.get(name), place_of(file)
        if refused is not None or hold is None or place is None:
            return
        before = place_of(hold.passed.get(queue, ""))
        if before is not None and place.number < before.number:
            raise Violation(Kind.HOLD, f"{name} moves back from {before.name} to {file}")
        hold.passed[queue] = file

    def _dropped(self, name: str, refused: HoldRefused | None, now_ms: int) -> None:
        self.log(f"drop {name}: {refused.why if refused else 'dropped'}")
        self._unsure[name] -= 1
        if refused is None:
            self._forget(name)

    def _forgive(self) -> None:
        """Forget the files that no hold needs any more: a later hold cannot ask for them."""
        for hold, owed in self._owed.items():
            self._owed[hold] = {name: data for name, data in owed.items() if self._is_owed(hold, name)}

    def _forget(self, name: str) -> None:
        self.sure.pop(name, None)
        self._perhaps.pop(name, None)
        self._over.pop(name, None)

    # the promise

    def check_turn(self, world: World, *, has_faults: bool) -> None:
        """Check the disk of a server at work. Raises Violation."""
        self._turns += 1
        self._note_limits(world)
        disk = world.disk
        self._check_owed(disk)
        if not has_faults:
            self._check_current(disk)
            self._check_apart(disk)
        self._note_current(disk)
        self._forgive()
        self._durable.clear()
        for hold in self.sure:
            files, kept = self._files(disk, hold)
            owed = self._owed.setdefault(hold, {})
            for name, data in files.items():
                if name not in owed and self._is_owed(hold, name) and not self._is_newest(name, files, kept):
                    owed[name] = data
            # No power loss may change these: files of Kestrel's format are synced before they are sealed.
            self._durable |= {(hold, name) for name in owed if name in kept or self._is_kestrel(name)}
            if not has_faults:
                self._check_limit(hold, world, files, kept)

    def check_left(self, disk: Disk, *, is_power: bool) -> None:
        """Check what an accident has left. Raises Violation."""
        stored = {hold.name: hold for hold in _holds_of(disk)}
        for name, hold in self.sure.items():
            if self._unsure[name]:
                continue
            if name not in stored:
                raise Violation(Kind.HOLD, f"the hold {name} is gone")
            left = stored[name]
            if left.state is HoldState.DROPPED:
                if not left.max_bytes:
                    raise Violation(Kind.HOLD, f"the hold {name} without a limit was dropped: {left.why}")
                continue
            for queue, file in hold.passed.items():
                wanted, place = place_of(file), place_of(left.passed.get(queue, ""))
                assert wanted is not None
                queues = {other.queue for other in map(place_of, self._files(disk, name)[0]) if other is not None}
                if (place is None or place.number < wanted.number) and queue in queues:
                    raise Violation(Kind.HOLD, f"the hold {name} has moved back in {queue}: {left.passed}, not {file}")
        dropped = {name for name, hold in stored.items() if hold.state is HoldState.DROPPED}
        for name in dropped & self.sure.keys():
            self._forget(name)
        self._check_owed(disk, is_power=is_power)

    def resume_from(self, disk: Disk) -> None:
        """Go on from what an accident has left."""
        self._began = dict.fromkeys(NAMES, -1)
        self.sure = {hold.name: hold for hold in _holds_of(disk) if hold.state is HoldState.ACTIVE}
        self._unsure.clear()
        self._perhaps.clear()
        self._over.clear()
        self._current.clear()
        # A power loss may have cut segments that nothing promised to sync, and brought one back as the newest one.
        for hold in list(self._owed):
            files, kept = self._files(disk, hold)
            self._owed[hold] = {
                name: data
                for name, data in self._owed[hold].items()
                if self._is_owed(hold, name) and files.get(name) == data and not self._is_newest(name, files, kept)
            }

    def _check_owed(self, disk: Disk, *, is_power: bool = False) -> None:
        for hold, owed in self._owed.items():
            files, _ = self._files(disk, hold)
            for name, data in owed.items():
                may_be_cut = is_power and (hold, name) not in self._durable
                if self._is_owed(hold, name) and files.get(name) != data and not may_be_cut:
                    what = "is gone" if name not in files else f"has {len(files[name])} bytes, not {len(data)}"
                    raise Violation(Kind.HOLD, f"{name} {what}, and the hold {hold} has not passed it")

    def _is_kestrel(self, name: str) -> bool:
        place = place_of(name)
        assert place is not None
        return place.queue not in self._streams

    def _is_owed(self, hold_name: str, name: str) -> bool:
        hold, place = self.sure.get(hold_name), place_of(name)
        assert place is not None
        if hold is None or self._unsure[hold_name]:
            return False
        return needs(hold, place) and place.number > self._perhaps_passed(hold, place.queue)

    def _perhaps_passed(self, hold: Hold, queue: str) -> int:
        place = place_of(self._perhaps.get(hold.name, {}).get(queue, ""))
        return -1 if place is None else place.number

    def _check_current(self, disk: Disk) -> None:
        """Check that what a current file of Kestrel's had is there: still, or in a sealed file."""
        for hold_name, hold in self.sure.items():
            if self._unsure[hold_name]:
                continue
            files, _ = self._files(disk, hold_name)
            for queue, data in self._current.items():
                is_passed = queue in self._perhaps.get(hold_name, {})
                if is_passed or not holds_queue(hold, queue) or self._began[hold_name] >= self._turns - 1:
                    continue
                texts = [content for name, content in files.items() if name.startswith(f"{queue}.")]
                now = _read(disk, f"s/{queue}")
                if not now.startswith(data) and not any(text.startswith(data) for text in texts):
                    raise Violation(Kind.HOLD, f"the current file of {queue} was rewritten, and {hold_name} lacks it")

    def _check_apart(self, disk: Disk) -> None:
        """Check that no kept file is still in its place, where it is counted already. Raises Violation."""
        for folder in self._folders[:KEPT_FOLDERS]:
            for name in _names(disk, folder):
                kept = kept_place(name)
                places = [f"{other}/{kept[1].name}" for other in self._folders[KEPT_FOLDERS:]] if kept else []
                if any(is_there(disk, place) and disk.is_one_file(f"{folder}/{name}", place) for place in places):
                    raise Violation(Kind.HOLD, f"{name} counts as kept, and is the file in its place")

    def _note_current(self, disk: Disk) -> None:
        queues = [name for name in _names(disk, "s") if kestrel_files.parse(name).queue == name]
        self._current = {queue: _read(disk, f"s/{queue}") for queue in queues}

    def _note_limits(self, world: World) -> None:
        """Note which holds the server has dropped at their limits. Raises Violation."""
        for hold in _holds_of(world.disk):
            if hold.state is HoldState.DROPPED and hold.name in self.sure:
                if not hold.max_bytes:
                    raise Violation(Kind.HOLD, f"the hold {hold.name} without a limit was dropped: {hold.why}")
                self.log(f"{hold.name} is dropped: {hold.why}")
                self._forget(hold.name)

    def _check_limit(self, name: str, world: World, files: Files, kept: set[str]) -> None:
        hold = self.sure[name]
        size = sum([len(files[file]) for file in kept if (place := place_of(file)) is not None and needs(hold, place)])
        if not 0 < hold.max_bytes < size:
            self._over.pop(name, None)
            return
        turn, since_ms = self._over.get(name, (0, world.now_ms))
        if not turn and world.now_ms - since_ms > LOOK_MS:
            turn = self._turns
        self._over[name] = turn, since_ms
        if turn and self._turns - turn > OVER_TURNS:
            raise Violation(Kind.LIMIT, f"{name} keeps {size} bytes, not {hold.max_bytes}")

    # the disk

    def _files(self, disk: Disk, hold: str) -> tuple[Files, set[str]]:
        """Return the sealed files of a hold, and the newest segments, by name: kept ones in place of those that
        replaced them. And the names of the kept ones.
        """
        files: Files = {}
        kept: set[str] = set()
        for folder in self._folders:
            for given in _names(disk, folder):
                is_kept = given.startswith(f"{hold}~")
                place = place_of(given.removeprefix(f"{hold}~") if is_kept else given)
                if place is not None and place.name not in files:
                    files[place.name] = _read(disk, f"{folder}/{given}")
                    if is_kept:
                        kept.add(place.name)
        return files, kept

    def _is_newest(self, name: str, files: Files, kept: set[str]) -> bool:
        """Tell whether records may still be added to the file: it is the newest segment of its queue."""
        place = place_of(name)
        assert place is not None
        if name in kept or place.queue not in self._streams:
            return False
        numbers = [other.number for other in map(place_of, files) if other is not None and other.queue == place.queue]
        return place.number == max(numbers)


def _holds_of(disk: Disk) -> list[Hold]:
    try:
        return read_holds(disk, "s")
    except UNDECODABLE as error:
        raise Violation(Kind.HOLD, f"the file with the holds is damaged: {error}") from error


def _read(disk: Disk, path: str) -> bytes:
    return disk.read(path, 0, 1 << 20) if is_there(disk, path) else b""


def _names(disk: Disk, folder: str) -> list[str]:
    try:
        return [name for name, is_file in disk.list(folder) if is_file]
    except (FileNotFoundError, NotADirectoryError):
        return []


class WithHolds(History):
    """A history in which holds are created, moved and dropped."""

    workload: Any
    jobs = "s/.staniel/cmdlog"

    def begin_life(self) -> None:
        super().begin_life()
        if not hasattr(self, "ledger"):
            self.ledger = HoldLedger(self.jobs, getattr(self.workload, "streams", ()))
        self.ledger.log = lambda text: self.end_life()[0].append(("hold", "", text))

    def make_request(self) -> None:
        if self.rng.randrange(1000) < self.profile.holds:
            self.ledger.ask(self.rng, self.world)
        else:
            super().make_request()

    def _refuse_removals(self, rng: Random) -> None:
        """Let the disk also refuse to keep files, or to remove what no hold needs any more."""
        super()._refuse_removals(rng)
        if rng.random() < 0.6:
            verb, path = rng.choice((("remove", "/.staniel/kept/"), ("remove", "/.staniel/kept/"), ("link", "/s/")))
            number = rng.choice((errno.EACCES, errno.EPERM, errno.ENOSPC))
            self.disk.fail(verb, path, number, after=rng.randrange(3), times=rng.choice((3, 30, 100)))
            if verb == "remove":
                self.ledger.begin_anew(rng, self.world)

    def settled(self) -> None:
        super().settled()
        self.ledger.check_turn(self.world, has_faults=self.has_faults)

    def content_of(self, disk: Disk) -> Any:
        self.ledger.check_left(disk, is_power=self.is_cut or disk is not self.disk)
        return super().content_of(disk)

    def _break(self, accident: Accident) -> Accident:
        worst = super()._break(accident)
        self.is_cut = worst is not Accident.KILL
        return worst

    def _crash_in_recovery(self) -> None:
        super()._crash_in_recovery()
        self.is_cut = True

    is_cut = False
    """True if the present disk may have lost what was not synced."""

    def go_on_from(self, judged: Any) -> None:
        super().go_on_from(judged)
        self.ledger.resume_from(self.disk)


class HoldQueueRun(WithHolds, QueueRun):
    """A seed of a profile with holds of queues."""


class HoldJobRun(WithHolds, JobRun):
    """A seed of a profile with holds of the command log."""

    def __init__(self, seed_plan: SeedPlan) -> None:
        super().__init__(seed_plan)
        self.jobs = self.workload.folder
