"""A leader: it takes over, writes and answers, and looks after the in-sync set."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from staniel.cluster.core import AskKind, Core, Policy
from staniel.cluster.durable import ALL_FIXED, Appended, Trimmed
from staniel.cluster.effects import Answer, Closing, ReadPiece, Recover, Refusal, ServeClients, TakeSums
from staniel.cluster.key import MEMBERS_MAX, Key
from staniel.cluster.messages import (
    RECORD_BYTES_MAX,
    RECORDS_BYTES_MAX,
    RECORDS_MAX,
    Acknowledge,
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
from staniel.cluster.places import Place
from staniel.cluster.stream import RecordKind, Run, last_common


class PeerState(Enum):
    LEAVING = "leaving"  # it has said hello; if it needs a repair, it must be out of the set first
    FOLLOWING = "following"
    REPAIRING = "repairing"  # it was told to begin a repair, on a new connection
    COMPARING = "comparing"  # it was asked which files it has
    COPYING = "copying"


PEER_NEXT = {
    PeerState.LEAVING: (PeerState.FOLLOWING, PeerState.REPAIRING, PeerState.COMPARING),
    PeerState.FOLLOWING: (),
    PeerState.REPAIRING: (),
    PeerState.COMPARING: (PeerState.COPYING,),
    PeerState.COPYING: (PeerState.FOLLOWING,),
}
"""The states that may follow a state; `Peer.enter` asserts it. A new connection begins with the first."""


class Peer:
    """A follower, on its present connection. `begin`: the number behind which it follows; `sent`: that of the last
    record that it was sent; `heard`: in how many pieces it has told of its files.
    """

    def __init__(self, member_id: bytes, connection: int, hello: Hello) -> None:
        self.id = member_id
        self.connection = connection
        self.hello = hello
        self.state = PeerState.LEAVING
        self.common = 0
        self.begin = 0
        self.sent = 0
        self.told = 0
        self.heard = 0

    def enter(self, state: PeerState) -> None:
        """Change the state, as PEER_NEXT allows it."""
        assert state in PEER_NEXT[self.state], f"{state} after {self.state}"
        self.state = state


class LeaderState(Enum):
    PROMISING = "promising"  # the epoch is being synced
    RECOVERING = "recovering"  # the driver reads its spool
    SERVING = "serving"
    HANDING_OVER = "handing over"  # no requests any more


LEADER_NEXT = {
    LeaderState.PROMISING: (LeaderState.RECOVERING,),
    LeaderState.RECOVERING: (LeaderState.SERVING,),
    LeaderState.SERVING: (LeaderState.HANDING_OVER,),
    LeaderState.HANDING_OVER: (LeaderState.SERVING,),
}
"""The states that may follow a state; `Leader.enter` asserts it. Any ends when the leader is deposed."""


class Leader:
    """The part of a member that leads one epoch. `asked`: members of sets that it has proposed since it knows the key
    as it is, which etcd may have taken. `acks`: what ids have acknowledged in this epoch on their present
    connections. `is_ahead`: the files may have changes that no record has, so every follower must be repaired.
    """

    def __init__(self, core: Core, *, is_ahead: bool = False) -> None:
        self.core = core
        self.is_ahead = is_ahead
        self.state = LeaderState.PROMISING
        self.epoch = core.kept.promised
        self.first = 0
        self.peers: dict[int, Peer] = {}
        self.acks: dict[bytes, int] = {}
        self.asked: frozenset[bytes] = frozenset()
        self.leaving: set[bytes] = set()
        self.silent: dict[bytes, int] = {}
        """Members that were taken out because they did not acknowledge, and up to where they had: they return once
        they acknowledge more.
        """
        self.answered = 0
        self.round = 0
        self.heir: tuple[bytes, str] | None = None
        self.needs_settling = False
        core.fix(ALL_FIXED)  # records get into files at once from here on, and so does what has been followed
        if core.config.policy is Policy.LAZY:
            core.note_unsynced()
        self.awaited = core.sync()

    def enter(self, state: LeaderState) -> None:
        """Change the state, as LEADER_NEXT allows it."""
        assert state in LEADER_NEXT[self.state], f"{state} after {self.state}"
        self.state = state

    @property
    def key(self) -> Key:
        assert self.core.key is not None
        return self.core.key

    @property
    def members(self) -> frozenset[bytes]:
        """The set as this leader knows it."""
        return frozenset(self.key.members)

    def synced(self) -> None:
        """Go on with what waited for a sync."""
        if self.state is LeaderState.PROMISING and self.core.synced >= self.awaited:
            self.enter(LeaderState.RECOVERING)
            self.core.emit(Recover(self.core.last))
        self.answer()

    def begin_epoch(self, changes: tuple[bytes, ...]) -> None:
        """Write the first record of the epoch, then what recovery changes, and serve."""
        if self.state is not LeaderState.RECOVERING:
            return
        self.first = self.core.last + 1
        self._append([(RecordKind.EPOCH, self.core.id), *((RecordKind.CHANGE, change) for change in changes)])
        if self.is_ahead:
            self.core.persist(Trimmed(self.core.last))  # so no follower can go on from an earlier place
        self.enter(LeaderState.SERVING)
        self.core.emit(ServeClients())

    # --- writing and answering ---

    def write(self, kind: RecordKind, data: bytes) -> Place | Refusal:
        """Write a change for a client. Return the place that its reply waits for."""
        if refusal := self._refuse_requests():
            return refusal
        if len(data) > RECORD_BYTES_MAX:
            return Refusal.TOO_LARGE
        if kind is RecordKind.PUT and len(self.members) < self.core.config.min_in_sync:
            return Refusal.TOO_FEW_IN_SYNC
        self._append([(kind, data)])
        return self.core.kept.stream.last

    def record(self, kind: RecordKind, changes: Iterable[bytes]) -> None:
        """Write records of changes that the files have already."""
        if self.first and (records := [(kind, data) for data in changes]):
            self._append(records)

    def ask_round(self) -> Place | Refusal:
        """Return the place that a reply waits for which rests on no record: one that is not written yet."""
        if refusal := self._refuse_requests():
            return refusal
        self.round = self.core.last + 1
        return Place(self.epoch, self.round)

    def _refuse_requests(self) -> Refusal | None:
        if self.state is LeaderState.HANDING_OVER:
            return Refusal.HANDING_OVER
        return None if self.state is LeaderState.SERVING else Refusal.NOT_LEADER

    def end_turn(self) -> None:
        """Write an empty record if replies wait for a round and no other record was written since."""
        if self.round > self.core.last:
            self._append([(RecordKind.EMPTY, b"")])

    def _append(self, records: list[tuple[RecordKind, bytes]]) -> None:
        first = self.core.last + 1
        self.core.persist(*(Appended(self.epoch, first + at, kind, data) for at, (kind, data) in enumerate(records)))
        self.core.sync()
        self.stream_to_all()
        self.answer()

    def waits_for(self) -> frozenset[bytes]:
        """Return the ids, besides this member's, that must have acknowledged what is answered."""
        return (self.members | self.asked) - {self.core.id}

    def answer(self) -> None:
        """Answer up to the last record that every one of these has synced, and this member's own disk as its policy
        says.
        """
        if not self.first:
            return
        upto = self._answerable()
        if upto > self.answered and upto >= self.first:
            self.answered = upto
            self.core.emit(Answer(self.epoch, upto))
            self.stream_to_all()

    def _answerable(self) -> int:
        own = self.core.durable if self.core.config.policy is Policy.ALWAYS else self.core.last
        upto = min([own, *(self.acks.get(member, 0) for member in self.waits_for())])
        if len(self.members) < self.core.config.min_in_sync:
            behind = self.core.kept.stream.behind(max(self.answered, self.first - 1))
            puts = (record.place.number for record in behind if record.kind is RecordKind.PUT)
            upto = min(upto, next(puts, upto + 1) - 1)
        return upto

    # --- followers ---

    def greet(self, connection: int, member_id: bytes, hello: Hello) -> bool:
        """Take a follower's first words. Return False if this leader does not serve yet."""
        if not self.first or member_id == self.core.id:
            return False
        for old in [peer for peer in self.peers.values() if peer.id == member_id]:
            self.core.close(old.connection, Closing.SUPERSEDED)
            self.forget(old.connection)
        self.peers[connection] = peer = Peer(member_id, connection, hello)
        peer.common = last_common(self.core.kept.stream, [Run(*run) for run in hello.runs], hello.last)
        peer.sent = self.core.last
        self.place_peer(peer)
        return True

    def forget(self, connection: int) -> None:
        """Note that a connection has ended. What was acknowledged on it is void."""
        peer = self.peers.pop(connection, None)
        if peer is not None:
            self.acks.pop(peer.id, None)
            self.silent.pop(peer.id, None)

    def place_peer(self, peer: Peer) -> None:
        """Have a follower follow, or leave the set and be repaired."""
        stream = self.core.kept.stream
        can_cut = peer.common >= peer.hello.fixed and stream.has_behind(peer.common)
        if can_cut and not peer.hello.is_half_copied:
            peer.enter(PeerState.FOLLOWING)
            peer.sent = peer.begin = peer.common
            self.core.send(peer.connection, Welcome(peer.common, self.core.last))
            self.stream_to(peer)
        elif self.must_leave_first(peer):
            self.leaving.add(peer.id)
            self.pursue()
        elif peer.hello.is_half_copied:
            peer.enter(PeerState.COMPARING)
            self.core.send(peer.connection, TellFiles())
        else:
            peer.enter(PeerState.REPAIRING)
            self.core.send(peer.connection, NeedsRepair(peer.common))

    def must_leave_first(self, peer: Peer) -> bool:
        """Tell whether a member must be out of the set before its repair begins: etcd may count on it."""
        return peer.id in self.members | self.asked

    def take_sums(self, connection: int, body: OwnFiles) -> bool:
        """Take what a member has, and begin to copy the rest once it has told all. Return False if it was not asked."""
        peer = self.peers.get(connection)
        if peer is None or peer.state is not PeerState.COMPARING:
            return False
        peer.heard += 1
        self.core.emit(TakeSums(connection, body.data))
        if body.is_last:
            self._begin_copy(peer)
        return True

    def _begin_copy(self, peer: Peer) -> None:
        stream = self.core.kept.stream
        peer.enter(PeerState.COPYING)
        peer.sent = peer.begin = stream.last.number
        self.core.send(peer.connection, CopyBegins(*stream.last, newest_runs(stream.runs)))
        self.core.emit(ReadPiece(peer.connection, 0))

    def send_piece(self, connection: int, piece: int, data: bytes, is_last: bool) -> None:
        """Send a piece of the files, and ask for the next one. Behind the last one the stream goes on."""
        peer = self.peers.get(connection)
        if peer is None or peer.state is not PeerState.COPYING:
            return
        self.core.send(connection, Piece(data))
        if not is_last:
            self.core.emit(ReadPiece(connection, piece + 1))
            return
        self.core.send(connection, CopyEnds(self.core.last))
        peer.enter(PeerState.FOLLOWING)
        self.stream_to(peer)

    def stream_to_all(self) -> None:
        """Send each follower what it has not been sent."""
        for peer in self.peers.values():
            self.stream_to(peer)

    def stream_to(self, peer: Peer) -> None:
        """Send a follower the records that it has not been sent, and up to where this leader has answered."""
        if peer.state is not PeerState.FOLLOWING:
            return
        stream = self.core.kept.stream
        while peer.sent < stream.last.number or peer.told < self.answered:
            records: list[tuple[int, RecordKind, bytes]] = []
            size = 0
            for record in stream.behind(peer.sent):
                if records and (size + len(record.data) > RECORDS_BYTES_MAX or len(records) == RECORDS_MAX):
                    break
                records.append((record.place.epoch, record.kind, record.data))
                size += len(record.data)
            epoch = stream.epoch_of(peer.sent)
            self.core.send(peer.connection, Records(epoch, peer.sent, tuple(records), self.answered))
            peer.sent += len(records)
            peer.told = self.answered

    def take_acknowledgement(self, connection: int, body: Acknowledge) -> bool:
        """Count what a follower has, as far as it was sent. Return False if it was not."""
        peer = self.peers.get(connection)
        if peer is None or peer.state is not PeerState.FOLLOWING or body.number > peer.sent:
            return False
        if self.core.kept.stream.epoch_of(body.number) != body.epoch:
            return False
        self.acks[peer.id] = max(self.acks.get(peer.id, 0), body.number)
        if self.acks[peer.id] > self.silent.get(peer.id, 0):
            self.silent.pop(peer.id, None)
        self.answer()
        self.pursue()
        return True

    # --- the set ---

    def may_enter(self, peer: Peer) -> bool:
        """Tell whether a member has the first record of this epoch and all that is answered."""
        if peer.state is not PeerState.FOLLOWING or peer.id in self.silent:
            return False
        return self.acks.get(peer.id, 0) >= max(self.first, self.answered)

    def pursue(self) -> None:
        """Ask etcd for what is next, unless a question is open: one at a time."""
        if self.core.asking is not None or not self.first:
            return
        self.leaving &= self.members | self.asked
        if self.needs_settling:
            self._ask(AskKind.CHANGE, self.key)  # nothing but the revision changes: the older one is refused now
        elif self.leaving:
            self._ask(AskKind.CHANGE, self.key.with_members(self.members - self.leaving))
        elif self.state is LeaderState.HANDING_OVER:
            self._pursue_hand_over()
        else:
            self._pursue_entry()

    def _pursue_hand_over(self) -> None:
        assert self.heir is not None
        if self.heir[0] not in self.members:
            self.heir = None
            self.enter(LeaderState.SERVING)
            self.core.emit(ServeClients())
            self._pursue_entry()
        elif self.answered == self.core.last:
            self._ask(AskKind.HAND_OVER, self.key.led_by(*self.heir))
        else:
            self._pursue_entry()  # a put may be held for want of members

    def _pursue_entry(self) -> None:
        able = {peer.id for peer in self.peers.values() if self.may_enter(peer)} - self.members
        entering = frozenset(sorted(able)[: MEMBERS_MAX - len(self.members)])  # no member reads a larger key
        if entering:
            self.asked |= self.members | entering  # before etcd is asked
            self._ask(AskKind.CHANGE, self.key.with_members(self.members | entering))

    def _ask(self, kind: AskKind, key: Key) -> None:
        self.core.transact(kind, key)

    def note_unanswered(self, kind: AskKind) -> None:
        """Note that etcd may have taken, or may take, what was asked: another transaction settles it."""
        if kind in (AskKind.CHANGE, AskKind.HAND_OVER):
            self.needs_settling = True

    def note_key(self) -> None:
        """Go on with the key as it is: whatever was asked before is done, or refused."""
        self.asked = frozenset()
        self.needs_settling = False
        for peer in list(self.peers.values()):
            if peer.state is PeerState.LEAVING and peer.id not in self.members:
                self.place_peer(peer)
        self.answer()
        self.pursue()

    def take_out(self, member_id: bytes) -> Refusal | None:
        """Have a member leave the set that no longer acknowledges. Replies wait for it until etcd has said yes."""
        if member_id not in self.members | self.asked or member_id == self.core.id:
            return Refusal.NOT_IN_SET
        self.leaving.add(member_id)
        if (acknowledged := self.acks.get(member_id, 0)) < self.core.last:
            self.silent[member_id] = acknowledged
        self.pursue()
        return None

    def hand_over(self, member_id: bytes, address: str) -> Refusal | None:
        """Take no more requests; once all is answered, make a member of the set the leader."""
        if refusal := self._refuse_requests():
            return refusal
        if member_id not in self.members or member_id == self.core.id:
            return Refusal.NOT_IN_SET
        self.heir = member_id, address
        self.enter(LeaderState.HANDING_OVER)
        self.pursue()
        return None

    def kept_for_followers(self) -> int:
        """Return the number behind which records must be kept: what a follower has not acknowledged it may ask for
        again on its next connection.
        """
        return min([self.answered, *(self.needed_by(peer) for peer in self.peers.values())])

    def needed_by(self, peer: Peer) -> int:
        """Return the number behind which a follower needs the records."""
        if peer.state not in (PeerState.FOLLOWING, PeerState.COPYING):
            return self.core.last
        return max(peer.begin, self.acks.get(peer.id, 0))

    def let_go(self, number: int) -> None:
        """Close the connections of followers that need records up to this number, which will not be kept for them."""
        for peer in [peer for peer in self.peers.values() if self.needed_by(peer) < number]:
            self.core.close(peer.connection, Closing.TOO_FAR_BEHIND)
            self.forget(peer.connection)
