"""A follower: it joins a leader, takes its records, acknowledges them, and is repaired where it must be."""

from __future__ import annotations

from enum import Enum

from staniel.cluster.core import Core
from staniel.cluster.durable import Appended, Copied, Cut, Fitness
from staniel.cluster.effects import Apply, Closing, Connect, MoveTail, SumFiles, WritePiece
from staniel.cluster.messages import (
    Acknowledge,
    Bodies,
    CopyBegins,
    CopyEnds,
    Hello,
    NeedsRepair,
    OwnFiles,
    Piece,
    Records,
    TellFiles,
    Welcome,
    newest_runs,
)


class FollowerState(Enum):
    PROMISING = "promising"  # the epoch is being synced
    CONNECTING = "connecting"
    GREETING = "greeting"  # it has said its last place
    FOLLOWING = "following"
    MARKING = "marking"  # the mark unfit is being synced, before a repair
    COMPARING = "comparing"  # it sums its files for the leader
    COPYING = "copying"  # pieces of files are coming


FOLLOWER_NEXT = {
    FollowerState.PROMISING: (FollowerState.CONNECTING,),
    FollowerState.CONNECTING: (FollowerState.GREETING,),
    FollowerState.GREETING: (
        FollowerState.FOLLOWING, FollowerState.MARKING, FollowerState.COMPARING, FollowerState.CONNECTING,
    ),
    FollowerState.FOLLOWING: (FollowerState.CONNECTING,),
    FollowerState.MARKING: (FollowerState.CONNECTING,),
    FollowerState.COMPARING: (FollowerState.COPYING, FollowerState.CONNECTING),
    FollowerState.COPYING: (FollowerState.FOLLOWING, FollowerState.CONNECTING),
}  # fmt: skip
"""The states that may follow a state; `Follower.enter` asserts it. A lost connection leads to CONNECTING."""


class Follower:
    """The part of a member that follows one leader in one epoch. `whole_at`: the number that must be synced here before
    anything is acknowledged, while the mark `unfit` is set.
    """

    def __init__(self, core: Core, leader_id: bytes) -> None:
        self.core = core
        self.leader_id = leader_id
        self.state = FollowerState.PROMISING
        self.awaited = core.sync()
        self.connection: int | None = None
        self.whole_at = 0
        self.acknowledged = 0
        self.answered = 0
        """Records up to here are answered and applied."""

    def enter(self, state: FollowerState) -> None:
        """Change the state, as FOLLOWER_NEXT allows it."""
        assert state in FOLLOWER_NEXT[self.state], f"{state} after {self.state}"
        self.state = state

    def synced(self) -> None:
        """Go on with what waited for a sync."""
        if self.core.synced >= self.awaited:
            if self.state is FollowerState.PROMISING:
                self.connect()
            elif self.state is FollowerState.MARKING:
                self.reconnect(Closing.REPAIR)
        self.acknowledge()

    def connect(self) -> None:
        """Connect, once the epoch is promised."""
        if self.state is FollowerState.PROMISING and self.core.synced < self.awaited:
            return
        if self.connection is None and self.state is not FollowerState.MARKING:
            if self.state is not FollowerState.CONNECTING:
                self.enter(FollowerState.CONNECTING)
            self.core.emit(Connect(self.leader_id))

    def reconnect(self, why: Closing) -> None:
        """Begin a new connection."""
        if self.connection is not None:
            self.core.close(self.connection, why)
        self.lose_connection()
        self.core.emit(Connect(self.leader_id))

    def lose_connection(self) -> None:
        """Note that there is no connection. A mark that is being synced is waited for."""
        self.connection = None
        waits = (FollowerState.PROMISING, FollowerState.MARKING, FollowerState.CONNECTING)
        is_marked = self.state is FollowerState.MARKING and self.core.synced >= self.awaited
        if self.state not in waits or is_marked:
            self.enter(FollowerState.CONNECTING)

    def greet(self, connection: int) -> bool:
        """Say the last place on a new connection. Return False if none was asked for."""
        if self.state is not FollowerState.CONNECTING:
            return False
        self.connection, self.acknowledged = connection, 0
        self.enter(FollowerState.GREETING)
        kept = self.core.kept
        runs = newest_runs(kept.stream.runs)
        fixed = max(kept.fixed, self.answered)
        self.core.send(connection, Hello(runs, self.core.last, fixed, kept.fitness is Fitness.HALF))
        return True

    def receive(self, body: Bodies) -> bool:
        """Take a message of the leader. Return False if it does not fit what was said before."""
        state = self.state
        match body:
            case Welcome() if state is FollowerState.GREETING:
                return self._begin_following(body)
            case NeedsRepair() if state is FollowerState.GREETING:
                return self._begin_repair(body)
            case TellFiles() if state is FollowerState.GREETING:
                return self._begin_comparison()
            case CopyBegins() if state is FollowerState.COMPARING:
                return self._begin_copy(body)
            case Piece() if state is FollowerState.COPYING:
                self.core.emit(WritePiece(body.data))
            case CopyEnds() if state is FollowerState.COPYING and body.number >= self.core.last:
                self._end_copy(body)
            case Records() if state is FollowerState.FOLLOWING:
                return self._take_records(body)
            case _:
                return False
        return True

    def _begin_following(self, welcome: Welcome) -> bool:
        kept = self.core.kept
        if not max(kept.fixed, self.answered) <= welcome.common <= self.core.last or kept.fitness is Fitness.HALF:
            return False
        self.cut_tail(welcome.common)
        self._await_whole(welcome.last)
        self.acknowledge()
        return True

    def cut_tail(self, common: int) -> None:
        """Cut off the records that the leader does not have: they are in the log alone."""
        stream = self.core.kept.stream
        if common < stream.base.number:
            return
        if common < self.core.last:
            self.core.persist(Cut(common))

    def _begin_repair(self, body: NeedsRepair) -> bool:
        """Mark the spool before anything in it changes."""
        self.core.mark(Fitness.HALF)
        self.awaited = self.core.sync()
        self.core.emit(MoveTail(min(body.common, self.core.last)))
        self.enter(FollowerState.MARKING)
        return True

    def _begin_comparison(self) -> bool:
        """Sum the files. They are marked, and so no record changes them until they are copied."""
        if self.core.kept.fitness is not Fitness.HALF:
            return False
        assert self.connection is not None
        self.enter(FollowerState.COMPARING)
        self.core.emit(SumFiles(self.connection, 0))
        return True

    def send_sums(self, connection: int, piece: int, data: bytes, is_last: bool) -> None:
        """Tell the leader a piece of what the files are, and have the next one summed."""
        if self.state is not FollowerState.COMPARING or connection != self.connection:
            return
        self.core.send(connection, OwnFiles(data, is_last))
        if not is_last:
            self.core.emit(SumFiles(connection, piece + 1))

    def _begin_copy(self, body: CopyBegins) -> bool:
        """Give up the stream that was kept for the leader's, from the place at which the copy begins."""
        kept = self.core.kept
        runs = [*body.runs, (body.epoch, body.number)]
        is_ascending = runs == sorted(runs) and all(epoch <= kept.promised for epoch, _ in runs)
        if kept.fitness is not Fitness.HALF or not is_ascending:
            return False
        self.core.persist(Copied(body.epoch, body.number, body.runs))
        self.answered = 0
        self.enter(FollowerState.COPYING)
        return True

    def _end_copy(self, body: CopyEnds) -> None:
        """Follow from where the copy began. The files have effects up to where it ended."""
        self.core.fix(body.number)
        self._await_whole(body.number)

    def _await_whole(self, number: int) -> None:
        self.whole_at = number
        self.enter(FollowerState.FOLLOWING)
        self.awaited = self.core.sync()

    def _take_records(self, body: Records) -> bool:
        last = self.core.kept.stream.last
        if (body.epoch, body.number) != last:
            return False
        records = body.places()
        epochs = [last.epoch, *(record.place.epoch for record in records)]
        if records and (epochs != sorted(epochs) or epochs[1] < 1 or epochs[-1] > self.core.kept.promised):
            return False
        if records:
            self.core.persist(
                *(Appended(record.place.epoch, record.place.number, record.kind, record.data) for record in records)
            )
            if self.core.kept.fitness is Fitness.HALF:  # the copy may have the effect of a part of these
                self.core.emit(Apply(min(self.whole_at, self.core.last)))
            self.core.sync()
        answered = min(body.answered, self.core.last)
        if answered > self.answered:
            self.answered = answered
            self.core.emit(Apply(answered))
        self.acknowledge()
        return True

    def acknowledge(self) -> None:
        """Say up to where everything is synced here, whatever the leader's policy."""
        core = self.core
        if self.state is not FollowerState.FOLLOWING or self.connection is None or not self._is_whole():
            return
        if core.durable > self.acknowledged:
            self.acknowledged = core.durable
            core.send(self.connection, Acknowledge(core.kept.stream.epoch_of(core.durable), core.durable))

    def _is_whole(self) -> bool:
        """Remove the mark `unfit` once the leader's records are synced. Tell whether it is gone, durably."""
        core = self.core
        if core.synced < self.awaited:
            return False
        if core.kept.fitness is not Fitness.WHOLE and core.durable >= self.whole_at:
            core.mark(Fitness.WHOLE)
            self.awaited = core.sync()
            return False
        return core.kept.fitness is Fitness.WHOLE
