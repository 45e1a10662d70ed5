"""The timers of a member: when it asks again, when it stands for election, and which members a leader takes out.

No rule of the protocol looks at a clock: what is early or late here costs time, nothing else.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import TYPE_CHECKING

from staniel.broker.events import EventSink, Level
from staniel.cluster.follower import FollowerState
from staniel.cluster.member import RoleState
from staniel.server.cluster.member_file import is_ahead

if TYPE_CHECKING:
    from staniel.server.cluster.driver import Driver
    from staniel.server.cluster.etcd_link import MemberEntry
    from staniel.server.cluster.leading import LeaderService

CONNECTED = (FollowerState.FOLLOWING, FollowerState.MARKING, FollowerState.COPYING)
RETRY_S = 0.3
TRIM_S = 1.0
GONE_S = 1.0  # a member of the set without a connection and a lease is taken out after this
STAND_S = 0.5  # the wait of a candidate whose leader's lease has ended
RANK_S = 0.3  # and more for each candidate before it, so that they do not all stand at once
AHEAD_LEASES = 2.0  # a leader that was killed lets others stand first: it would make all of them copy its spool


class Supervision:
    """The timers of one member. `entries`: the members that are alive. `service`: set once it leads."""

    def __init__(self, driver: Driver, entries: dict[bytes, MemberEntry], lease_s: float, report: EventSink) -> None:
        self._driver = driver
        self._entries = entries
        self._lease_s = lease_s
        self._report = report
        self.service: LeaderService | None = None
        self.has_entries = False
        self.is_refused = False
        """True if nothing listens where the leader listened."""
        self._retried_at = self._trimmed_at = 0.0
        self._unheard_since: float | None = None
        self._answered = 0
        self._gone_since: dict[bytes, float] = {}
        self._lasts: deque[tuple[float, int]] = deque()
        self._syncing: object = None
        self._syncing_since = 0.0
        self._now = 0.0

    def look_after(self, now: float) -> None:
        """Look after everything. `now`: a monotonic time in seconds."""
        if now - self._now > self._lease_s / 2:  # this process was not run: what it has not heard is no sign
            self._unheard_since, self._answered = None, 0
            self._gone_since.clear()
            self._lasts.clear()
        self._now = now
        self._note_syncs(now)
        if now - self._retried_at >= RETRY_S:
            self._retried_at = now
            self._driver.member.retry()
            self._driver.carry_out()
        if self._driver.member.leader is not None:
            self._unheard_since = None
            self._look_at_followers(now)
        else:
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
        return self._syncing is None or self._now - self._syncing_since < self._lease_s / 2

    def _note_syncs(self, now: float) -> None:
        running: object = self._driver.file.running
        if running is None and self.service is not None:
            running = self.service.running_sync
        if running is None or running is not self._syncing:
            self._syncing, self._syncing_since = running, now

    # --- a follower ---

    def _look_for_leader(self, now: float) -> None:
        member = self._driver.member
        if member.role is RoleState.STOPPED or member.core.key is None or not self.has_entries:
            self._unheard_since = None
            return
        if self._is_connected:
            assert member.follower is not None
            self.is_refused = False
            answered, self._answered = self._answered, member.follower.answered
            if member.core.key.leader_id in self._entries or answered != self._answered:
                self._unheard_since = None
                return
        if self._unheard_since is None:
            self._unheard_since = now
        if now - self._unheard_since >= self._patience_s():
            self._unheard_since = now
            if member.stand() is None:
                self._report(Level.INFO, "cluster.stands", epoch=member.core.key.epoch + 1)
            self._driver.carry_out()

    @property
    def _is_connected(self) -> bool:
        """True if the leader has taken this member's words, or is asked to."""
        follower = self._driver.member.follower
        return follower is not None and follower.state in CONNECTED

    def _patience_s(self) -> float:
        """Return how long to wait for a leader before this member stands itself. One whose lease goes on may take long
        to recover its spool. One that is connected and whose lease has ended may hang, or it cannot reach etcd: it
        goes on while it answers.
        """
        core = self._driver.member.core
        assert core.key is not None
        others = [member for member in core.key.members if member != core.id and member in self._entries]
        if is_ahead(core.kept) and others:
            return AHEAD_LEASES * self._lease_s
        rank = RANK_S * sum([member < core.id for member in others])
        if core.key.leader_id == core.id or not others:
            return rank
        if self._is_connected:
            return self._lease_s + rank
        if core.key.leader_id not in self._entries or self.is_refused:
            return STAND_S + rank
        return inf

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

    def _take_out(self, member_id: bytes, why: str) -> None:
        leader = self._driver.member.leader
        if leader is None or member_id in leader.leaving:
            return
        if self._driver.member.take_out(member_id) is None:
            self._report(Level.WARNING, "cluster.member_out", member=member_id.hex(), why=why)
        self._driver.carry_out()
