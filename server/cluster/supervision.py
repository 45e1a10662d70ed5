"""The timers of a member: when it asks again, when it stands for election, and which members a leader takes out.

No rule of the protocol looks at a clock: what is early or late here costs time, nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

from staniel.broker.events import EventSink, Level
from staniel.cluster.effects import Refusal
from staniel.cluster.follower import FollowerState
from staniel.cluster.key import Key
from staniel.cluster.leader import PeerState
from staniel.cluster.member import RoleState
from staniel.server.cluster.member_file import is_ahead

if TYPE_CHECKING:
    from staniel.server.cluster.disk_calls import DiskCalls
    from staniel.server.cluster.driver import Driver
    from staniel.server.cluster.etcd_link import MemberEntry
    from staniel.server.cluster.leading import LeaderService

CONNECTED = (FollowerState.FOLLOWING, FollowerState.MARKING, FollowerState.COMPARING, FollowerState.COPYING)
RETRY_S = 0.3
TRIM_S = 1.0
GONE_S = 1.0  # a member of the set without a connection and a lease is taken out after this
STAND_S = 0.5  # the wait of a candidate whose leader's lease has ended
RANK_S = 0.3  # and more for each candidate before it, so that they do not all stand at once
VAIN_MAX = 3  # elections without service that double these waits
GREETING_S = 5.0  # a leader replies to a member's first words within this, or on the next connection
PROGRESS_LEASES = 3.0  # a member that joins gets further within this, or is disconnected
PROGRESS_BYTES = 256 << 10  # of a copy, in that time
AHEAD_LEASES = 2.0  # a leader that was killed lets others stand first: it would make all of them copy its spool. So
# does a member whose disk is full: it would refuse puts


class Supervision:
    """The timers of one member. `entries`: the members that are alive. `calls`: those of its disk. `service`: set once
    it leads. `lack_of_room` returns why its disk has no room for records, or "".
    """

    def __init__(
        self,
        driver: Driver,
        entries: dict[bytes, MemberEntry],
        lease_s: float,
        report: EventSink,
        calls: DiskCalls,
    ) -> None:
        self._driver = driver
        self._entries = entries
        self._lease_s = lease_s
        self._report = report
        self._calls = calls
        self.service: LeaderService | None = None
        self.has_entries = False
        self.lack_of_room: Callable[[], str] = str
        self._refused: tuple[bytes, int] | None = None
        """The leader and its epoch, if nothing listened where it listened at the last attempt."""
        self._retried_at = self._trimmed_at = 0.0
        self._unheard_since: float | None = None
        self._answered = 0
        self._greeting: tuple[int, float] | None = None
        """The connection on which a leader has not replied to this member's first words, and since when."""
        self._gone_since: dict[bytes, float] = {}
        self._former: bytes = b""
        """The leader that this member knew last, which is not itself."""
        self._progress: dict[int, tuple[tuple[PeerState, int, int], float]] = {}
        """Of each connection that joins or is copied to: how far that is, and since when."""
        self._lasts: deque[tuple[float, int]] = deque()
        self._on_disk: dict[object, tuple[object, float]] = {}
        """By who waits for the disk: the call or the sync that runs, and since when."""
        self._now = 0.0

    def note_connect(self, key: Key, *, is_refused: bool) -> None:
        """Note whether nothing listened where the leader of this key listens."""
        self._refused = (key.leader_id, key.epoch) if is_refused else None

    def begin_to_serve(self, service: LeaderService) -> None:
        """Note that this member serves. The leader before it begins anew, or is gone: puts wait for it no longer than
        it takes to have it leave the set, if the set is large enough without it. It returns once it follows.
        """
        self.service = service
        member = self._driver.member
        leader = member.leader
        if leader is None or self._former not in leader.members:
            return
        if self._former != self._driver.kept.member_id and len(leader.members) > member.core.config.min_in_sync:
            self._take_out(self._former, "it led before, and does not follow yet", Level.INFO)

    def look_after(self, now: float) -> None:
        """Look after everything. `now`: a monotonic time in seconds."""
        if now - self._now > self._lease_s / 2:  # this process was not run: what it has not heard is no sign
            self._unheard_since, self._answered = None, 0
            self._greeting = None
            self._gone_since.clear()
            self._progress.clear()
            self._lasts.clear()
        self._now = now
        self._note_disk(now)
        if now - self._retried_at >= RETRY_S:
            self._retried_at = now
            self._driver.member.retry()
            self._driver.carry_out()
        if self._driver.member.leader is not None:
            self._unheard_since = None
            self._look_at_followers(now)
            self._look_at_joining(now)
        else:
            key = self._driver.member.core.key
            self._former = key.leader_id if key is not None else self._former
            self._look_at_greeting(now)
            self._look_for_leader(now)
        if now - self._trimmed_at >= TRIM_S:
            self._trimmed_at = now
            self._driver.trim()

    def is_alive(self) -> bool:
        """Tell whether this member may keep its lease: its syncs come to an end, and it is not one that led and lets
        others stand first.
        """
        member = self._driver.member
        if is_ahead(self._driver.kept) and member.leader is None and member.follower is None:
            return False
        return all(self._now - since < self._lease_s / 2 for _, since in self._on_disk.values())

    def _note_disk(self, now: float) -> None:
        """Note what this member waits for: calls of any thread, and syncs that the kernel runs for the loop."""
        running = self._calls.running.copy()
        running["member"] = self._driver.file.running
        if self.service is not None:
            running["journals"] = self.service.running_sync
        known, self._on_disk = self._on_disk, {}
        for whose, call in running.items():
            if call is not None:
                before = known.get(whose)
                self._on_disk[whose] = before if before is not None and before[0] is call else (call, now)

    # --- a follower ---

    def _look_for_leader(self, now: float) -> None:
        member = self._driver.member
        if member.role is RoleState.STOPPED or member.core.key is None or not self.has_entries:
            self._unheard_since = None
            return
        if self._is_connected:
            assert member.follower is not None
            self._refused = None
            answered, self._answered = self._answered, member.follower.answered
            if member.core.key.leader_id in self._entries or answered != self._answered:
                self._unheard_since = None
                return
        if self._unheard_since is None:
            self._unheard_since = now
        if now - self._unheard_since >= self._patience_s():
            refusal = member.stand()
            if refusal is not Refusal.ASKING:  # then the key is being read: it stands at the next turn
                self._unheard_since = now
            if refusal is None:
                self._report(Level.INFO, "cluster.stands", epoch=member.core.key.epoch + 1)
            self._driver.carry_out()

    def _look_at_greeting(self, now: float) -> None:
        """End a connection on which the leader does not reply to the first words: another one may be replied to."""
        follower = self._driver.member.follower
        if follower is None or follower.state is not FollowerState.GREETING or follower.connection is None:
            self._greeting = None
        elif self._greeting is None or self._greeting[0] != follower.connection:
            self._greeting = follower.connection, now
        elif now - self._greeting[1] >= GREETING_S:
            self._driver.drop_link(follower.connection, "the leader does not reply to this member's first words")

    @property
    def _is_connected(self) -> bool:
        """True if the leader has taken this member's words, or is asked to."""
        follower = self._driver.member.follower
        return follower is not None and follower.state in CONNECTED

    def _patience_s(self) -> float:
        """Return how long to wait for a leader before this member stands itself. One whose lease goes on may take long
        to recover its spool. One that is connected and whose lease has ended may hang, or it cannot reach etcd: it
        goes on while it answers. Elections that led to no service double the wait.
        """
        core = self._driver.member.core
        key = core.key
        assert key is not None
        others = [member for member in key.members if member != core.id and member in self._entries]
        rank = RANK_S * sum([member < core.id for member in others])
        is_refused = self._refused == (key.leader_id, key.epoch)
        vain = max(0, key.epoch - core.kept.stream.last.epoch)  # epochs of which this member has no record
        times = 1 << min(vain, VAIN_MAX)
        if others and key.leader_id != core.id and key.leader_id in self._entries and not is_refused:
            return self._lease_s + rank if self._is_connected else inf
        if others and (is_ahead(core.kept) or self.lack_of_room()):
            return times * AHEAD_LEASES * self._lease_s
        if key.leader_id == core.id or not others:
            return rank
        return times * ((self._lease_s if self._is_connected else STAND_S) + rank)

    # --- a leader ---

    def _look_at_followers(self, now: float) -> None:
        leader = self._driver.member.leader
        if leader is None or not leader.first:
            return
        self._lasts.append((now, self._driver.member.core.last))
        ago = now - self._lease_s
        while len(self._lasts) > 1 and self._lasts[1][0] <= ago:
            self._lasts.popleft()
        expected = self._lasts[0][1] if self._lasts[0][0] <= ago else 0  # followers must have what was there then
        connected = {peer.id for peer in leader.peers.values()}
        others = leader.members - {self._driver.kept.member_id}
        for member_id in list(self._gone_since):
            if member_id not in others or member_id in connected:
                del self._gone_since[member_id]
        for member_id in sorted(others):
            if member_id not in connected:
                patience = self._lease_s / 2 if member_id in self._entries else GONE_S
                if now - self._gone_since.setdefault(member_id, now) >= patience:
                    self._take_out(member_id, "it is not connected")
            elif leader.acks.get(member_id, 0) < expected:
                self._take_out(member_id, "it does not keep up")
        self._driver.forget_written(min([leader.acks.get(member, 0) for member in connected], default=leader.answered))

    def _look_at_joining(self, now: float) -> None:
        """End the connection of a member that gets no further before it follows: the stream is kept for it."""
        leader = self._driver.member.leader
        known, self._progress = self._progress, {}
        for connection, peer in list(leader.peers.items()) if leader is not None else []:
            if peer.state is PeerState.FOLLOWING:
                continue
            compared = peer.heard + self._driver.copies.compared(connection)
            progress = peer.state, self._driver.links.sent_bytes(connection) // PROGRESS_BYTES, compared
            before, since = known.get(connection, (progress, now))
            if before != progress:
                since = now
            if now - since < PROGRESS_LEASES * self._lease_s:
                self._progress[connection] = progress, since
            else:
                self._report(Level.WARNING, "cluster.join_stuck", member=peer.id.hex(), state=peer.state.value)
                self._driver.drop_link(connection, "it gets no further")

    def _take_out(self, member_id: bytes, why: str, level: Level = Level.WARNING) -> None:
        leader = self._driver.member.leader
        if leader is None or member_id in leader.leaving:
            return
        if self._driver.member.take_out(member_id) is None:
            self._report(level, "cluster.member_out", member=member_id.hex(), why=why)
        self._driver.carry_out()
