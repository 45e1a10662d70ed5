"""A member of a cluster: a state machine without I/O. Call an input, then carry out what `take_effects` returns, in
order.

The role follows from the key in etcd: this member leads the epoch of which the key names it, or follows the leader
that the key names. A member that waits knows no leader that it may follow. docs/replication.md has the rules and the
cases.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from staniel.cluster.core import AskKind, Core, MemberConfig
from staniel.cluster.durable import ALL_FIXED, Fitness, Joined, Kept, Trimmed, Unsynced
from staniel.cluster.effects import CloseClients, Closing, Effect, Reason, Refusal, Stop
from staniel.cluster.follower import Follower
from staniel.cluster.key import Key
from staniel.cluster.leader import Leader, LeaderState
from staniel.cluster.messages import Acknowledge, Hello, Message, OwnFiles
from staniel.cluster.places import Place
from staniel.cluster.stream import RecordKind

UNKNOWN_BOOT = bytes(16)


class RoleState(Enum):
    WAITING = "waiting"
    FOLLOWING = "following"
    LEADING = "leading"
    STOPPED = "stopped"


ROLE_NEXT = {
    RoleState.WAITING: (RoleState.FOLLOWING, RoleState.LEADING, RoleState.STOPPED),
    RoleState.FOLLOWING: (RoleState.WAITING, RoleState.STOPPED),
    RoleState.LEADING: (RoleState.WAITING, RoleState.STOPPED),
    RoleState.STOPPED: (),
}
"""The roles that may follow a role; `Member.enter` asserts it."""


class Member:
    """A member, from a start to the end of its process. `kept`: what its file holds. `has_items`: its spool has items,
    of which a member without a cluster has no records. `is_short`: answered records may be missing here, because a sync
    has failed. `is_ahead`: it led, and its files may have changes that no record has: to follow it must be repaired,
    and if it leads, the others must. `boot_id`: of its machine; another one than when it led without waiting for its
    disk means that answered records may be missing, too.
    """

    def __init__(
        self,
        config: MemberConfig,
        kept: Kept,
        *,
        has_items: bool = False,
        is_short: bool = False,
        is_ahead: bool = False,
        boot_id: bytes = UNKNOWN_BOOT,
    ) -> None:
        self.core = Core(config, kept, has_items, boot_id)
        self.role = RoleState.WAITING
        self.leader: Leader | None = None
        self.follower: Follower | None = None
        self._is_short = is_short
        self._is_ahead = is_ahead
        self._has_read_key = False

    def enter(self, role: RoleState) -> None:
        """Change the role, as ROLE_NEXT allows it."""
        assert role in ROLE_NEXT[self.role], f"{role} after {self.role}"
        self.role = role

    def take_effects(self) -> list[Effect]:
        """Return what is to be done, in order, and forget it."""
        effects, self.core.effects = self.core.effects, []
        return effects

    def start(self) -> None:
        """Begin, once the driver has cut files and the member's file back to what is whole."""
        kept = self.core.kept
        self.core.fix(ALL_FIXED if self._is_ahead else min(kept.fixed, self.core.last))
        has_lost_power = kept.has_lost_power(self.core.boot_id)
        if (self._is_short or has_lost_power) and kept.fitness is Fitness.WHOLE:
            self.core.mark(Fitness.SHORT)
        if has_lost_power:
            self.core.persist(Unsynced(b""))  # the mark says so from here on
        self.core.sync()
        self.core.read_key()

    def retry(self) -> None:
        """Try again what could not be done. The driver calls this from time to time."""
        if self.role is RoleState.STOPPED:
            return
        if self.leader is not None:
            self.leader.pursue()
        if self.follower is None or self.follower.connection is None:
            self.core.read_key()

    # --- etcd ---

    def key_read(self, number: int, key: Key | None, revision: int) -> None:
        """Take the answer to ReadKey."""
        ask = self.core.take_ask(number)
        if ask is None or self.role is RoleState.STOPPED:
            return
        if reason := self._contradiction(key, revision, ask.revision):
            self._stop(reason)
            return
        self._has_read_key = True
        self._take_key(key, revision)
        if self.follower is not None:
            self.follower.connect()

    def _contradiction(self, key: Key | None, revision: int, seen: int) -> Reason | None:
        """Return why what etcd says now cannot be. `seen`: the revision known when it was asked."""
        kept = self.core.kept
        if key is None:
            return Reason.NO_KEY if kept.cluster_id else None
        if kept.cluster_id and key.cluster_id != kept.cluster_id:
            return Reason.OTHER_CLUSTER
        if kept.cluster_id and (revision < seen or key.epoch < kept.promised):
            return Reason.KEY_WENT_BACK if revision < seen or revision >= self.core.revision else None
        if not kept.cluster_id and self.core.has_items and key.leader_id != self.core.id:
            return Reason.WOULD_OVERWRITE
        return None

    def key_watched(self, key: Key, revision: int) -> None:
        """Take what a watch says, which may be late."""
        if self._has_read_key and self.role is not RoleState.STOPPED and key.cluster_id == self.core.kept.cluster_id:
            self._take_key(key, revision)

    def transaction_taken(self, number: int, revision: int) -> None:
        """Note that a transaction took effect, and gave the key this revision."""
        ask = self.core.take_ask(number)
        if ask is not None and ask.key is not None and self.role is not RoleState.STOPPED:
            self._take_key(ask.key, revision)
            self._pursue()

    def transaction_refused(self, number: int, key: Key | None, revision: int) -> None:
        """Note that a transaction was refused, and what the key was by then."""
        ask = self.core.take_ask(number)
        if ask is None or self.role is RoleState.STOPPED:
            return
        if reason := self._contradiction(key, revision, ask.revision):
            self._stop(reason)
        else:
            self._take_key(key, revision)
            self._pursue()

    def _pursue(self) -> None:
        if self.leader is not None:
            self.leader.pursue()

    def ask_unanswered(self, number: int) -> None:
        """Note that no answer came in time. The transaction may have taken effect, or may yet."""
        ask = self.core.take_ask(number)
        if ask is not None and self.leader is not None:
            self.leader.note_unanswered(ask.kind)

    def _take_key(self, key: Key | None, revision: int) -> None:
        """Follow the key if it is newer than the one known, and see which role it gives this member."""
        if key is None or revision < self.core.revision:
            return
        is_news = revision > self.core.revision or self.core.key is None
        if self.leader is not None and (key.epoch > self.core.kept.promised or self.core.id not in key.members):
            self._step_down()
        if not self.core.kept.cluster_id:
            base = 1 if self.core.has_items else 0
            self.core.persist(Joined(key.cluster_id, base))
        self.core.note_key(key, revision)
        if is_news:
            self._follow_key(key)

    def _follow_key(self, key: Key) -> None:
        core, promised = self.core, self.core.kept.promised
        if self.leader is not None:
            self.leader.note_key()
            return
        if key.epoch < promised:
            return
        if self.follower is not None and key.epoch > promised:
            self._stop_following()
        if key.leader_id == core.id:
            if self._may_lead(key):
                self._lead(key)
        elif self.follower is None:
            self._follow(key)

    def _may_lead(self, key: Key) -> bool:
        """Tell whether this member may take the lead: an epoch is begun once, by a fit member of the set."""
        return key.epoch > self.core.kept.promised and self._is_fit(key) and self.core.id in key.members

    def _is_fit(self, key: Key) -> bool:
        """Tell whether this member may lead. Alone in the set it may although records may be missing at its end."""
        fitness = self.core.kept.fitness
        return fitness is Fitness.WHOLE or (fitness is Fitness.SHORT and key.members == (self.core.id,))

    def _lead(self, key: Key) -> None:
        self.enter(RoleState.LEADING)
        self.core.mark(Fitness.WHOLE)
        self.core.promise(key.epoch)
        self.leader = Leader(self.core, is_ahead=self._is_ahead and self.core.kept.fixed == ALL_FIXED)

    def _follow(self, key: Key) -> None:
        self.enter(RoleState.FOLLOWING)
        if key.epoch > self.core.kept.promised:
            self.core.promise(key.epoch)
        self.follower = Follower(self.core, key.leader_id)

    def _step_down(self) -> None:
        """End leading: clients first, before a byte is written for another leader. Once recovery has begun, the files
        may have changes that no record has, and the member is repaired before it follows.
        """
        assert self.leader is not None
        if self.leader.state is LeaderState.PROMISING and not (self.leader.is_ahead or self.core.has_items):
            self.core.fix(self.core.last)  # before CloseClients, which ends the process; there are no clients yet
        self._is_ahead = self.core.kept.fixed == ALL_FIXED
        self.close_clients()
        for connection in self.leader.peers:
            self.core.close(connection, Closing.DEPOSED)
        self.leader = None
        self.enter(RoleState.WAITING)

    def close_clients(self) -> None:
        """Close the connections of clients and drop their replies. A process ends with it, and begins anew."""
        self.core.emit(CloseClients())

    def _stop_following(self) -> None:
        assert self.follower is not None
        if self.follower.connection is not None:
            self.core.close(self.follower.connection, Closing.SUPERSEDED)
        self.follower = None
        self.enter(RoleState.WAITING)

    def _stop(self, reason: Reason) -> None:
        if self.leader is not None:
            self._step_down()
        if self.follower is not None:
            self._stop_following()
        self.enter(RoleState.STOPPED)
        self.core.emit(Stop(reason))

    # --- the disk ---

    def synced(self, number: int) -> None:
        """Note that the sync with this number has ended, and all before it."""
        self.core.note_synced(number)
        if self.leader is not None:
            self.leader.synced()
        if self.follower is not None:
            self.follower.synced()

    def recovered(self, changes: tuple[bytes, ...]) -> None:
        """Take what recovery changes at a take-over: further records of the epoch."""
        if self.leader is not None:
            self.leader.begin_epoch(changes)

    def files_summed(self, connection: int, piece: int, data: bytes, *, is_last: bool) -> None:
        """Take a piece of what the leader must know of the files."""
        if self.follower is not None:
            self.follower.send_sums(connection, piece, data, is_last)

    def piece_read(self, connection: int, piece: int, data: bytes, *, is_last: bool) -> None:
        """Take a piece of the files for a member that copies them."""
        if self.leader is not None:
            self.leader.send_piece(connection, piece, data, is_last)

    def trim(self, number: int, must: int = 0) -> int:
        """Stop keeping the records up to this number, whose effect is synced in files, as far as no follower needs
        them. Followers that need those up to `must` are disconnected. Return the number up to which they are gone.
        """
        stream = self.core.kept.stream
        if self.leader is not None:
            self.leader.let_go(min(must, self.leader.answered))
            number = min(number, self.leader.kept_for_followers())
        elif self.follower is not None:
            number = min(number, self.follower.answered)
        else:
            number = 0
        if number > stream.base.number and self.core.kept.fitness is Fitness.WHOLE:
            self.core.persist(Trimmed(number))
        return stream.base.number

    # --- other members ---

    def connected(self, connection: int) -> None:
        """Note that the connection that Connect asked for is there."""
        if self.follower is None or not self.follower.greet(connection):
            self.core.close(connection, Closing.SUPERSEDED)

    def disconnected(self, connection: int) -> None:
        """Note that a connection between members has ended."""
        if self.leader is not None:
            self.leader.forget(connection)
        if self.follower is not None and self.follower.connection == connection:
            self.follower.lose_connection()

    def received(self, connection: int, message: Message) -> None:
        """Take a message of another member."""
        if self.role is not RoleState.STOPPED:
            why = self._refuse(message) or self._take_message(connection, message)
            if why is not None:
                self.core.close(connection, why)
                self.disconnected(connection)

    def _refuse(self, message: Message) -> Closing | None:
        """Refuse a message of another cluster or of an older epoch. A higher epoch is promised before anything is done
        with it, and only the key says whose it is: the sender comes again.
        """
        if message.cluster_id != self.core.kept.cluster_id:
            return Closing.OTHER_CLUSTER
        if message.epoch < self.core.kept.promised:
            return Closing.OLD_EPOCH
        if message.epoch > self.core.kept.promised:
            if self.leader is not None:
                self._step_down()
            self.core.read_key()
            return Closing.HIGHER_EPOCH
        return None

    def _take_message(self, connection: int, message: Message) -> Closing | None:
        body = message.body
        if self.follower is not None and self.follower.connection == connection:
            is_leader = message.sender == self.follower.leader_id
            return None if is_leader and self.follower.receive(body) else Closing.UNEXPECTED
        if self.leader is None:
            return Closing.NOT_LEADER
        if isinstance(body, Hello):
            return None if self.leader.greet(connection, message.sender, body) else Closing.NOT_LEADER
        if isinstance(body, Acknowledge) and self.leader.take_acknowledgement(connection, body):
            return None
        if isinstance(body, OwnFiles) and self.leader.take_sums(connection, body):
            return None
        return Closing.UNEXPECTED

    # --- clients ---

    def write(self, data: bytes, kind: RecordKind = RecordKind.CHANGE) -> Place | Refusal:
        """Write a record for a client. Its reply waits for Answer to reach the place."""
        return self.leader.write(kind, data) if self.leader is not None else Refusal.NOT_LEADER

    def record(self, changes: Iterable[bytes], kind: RecordKind) -> None:
        """Write records of changes that the files of a leader have already, so that none is refused. Replies that rest
        on them wait for Answer to reach the last one.
        """
        if self.leader is not None:
            self.leader.record(kind, changes)

    def note_clean_end(self) -> None:
        """Note that the files of a leader are what its records say, and nothing will change them in this process."""
        self.core.fix(self.core.last)

    def ask_round(self) -> Place | Refusal:
        """Return the place that a reply waits for which rests on no record. Call `end_turn` before the next sync."""
        return self.leader.ask_round() if self.leader is not None else Refusal.NOT_LEADER

    def end_turn(self) -> None:
        """End a turn of the driver: write the empty record that rounds wait for, if no other one was written."""
        if self.leader is not None:
            self.leader.end_turn()

    # --- operators, and the driver's timers ---

    def init(self, cluster_id: bytes) -> Refusal | None:
        """Make the cluster, with this member alone in the set."""
        if self.core.kept.cluster_id:
            return Refusal.HAS_CLUSTER
        if not self._has_read_key:
            return Refusal.NO_KEY
        if self.core.key is not None:
            return Refusal.KEY_EXISTS
        if self.core.asking is not None:
            return Refusal.ASKING
        key = Key(cluster_id, 1, self.core.id, self.core.config.address, (self.core.id,))
        self.core.transact(AskKind.INIT, key)
        return None

    def stand(self, *, although_unfit: bool = False) -> Refusal | None:
        """Ask etcd for the lead, because the leader is not heard of. `although_unfit`: by an operator's order, where
        all members of the set may lack answered records.
        """
        key = self.core.key
        if key is None or key.epoch < self.core.kept.promised or not self._has_read_key:
            return Refusal.NO_KEY
        if self.leader is not None or self.core.asking is not None or self.role is RoleState.STOPPED:
            return Refusal.ASKING
        if not self._may_stand(key):
            return Refusal.NOT_IN_SET
        if although_unfit and self.core.kept.fitness is Fitness.SHORT:
            self.core.mark(Fitness.WHOLE)
        if not self._is_fit(key):
            return Refusal.UNFIT
        self.core.transact(AskKind.STAND, key.led_by(self.core.id, self.core.config.address))
        return None

    def _may_stand(self, key: Key) -> bool:
        """Tell whether the set has this member."""
        return self.core.id in key.members

    def take_out(self, member_id: bytes) -> Refusal | None:
        """Have a member leave the set: it has not acknowledged for too long."""
        return self.leader.take_out(member_id) if self.leader is not None else Refusal.NOT_LEADER

    def hand_over(self, member_id: bytes, address: str) -> Refusal | None:
        """Move the lead to another member of the set."""
        return self.leader.hand_over(member_id, address) if self.leader is not None else Refusal.NOT_LEADER

    @property
    def is_serving(self) -> bool:
        """True if requests of clients are taken."""
        return self.leader is not None and self.leader.state is LeaderState.SERVING
