"""The rules of docs/replication.md, each broken on purpose: the simulator must notice.

A mutant is a context manager that replaces right functions by wrong ones. test_mutants.py has the seed that finds each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import Any

import msgspec

from staniel.cluster import durable, leader
from staniel.cluster.core import AskKind, Core, MemberConfig, Policy
from staniel.cluster.durable import Appended, Copied, Fitness, Kept, Unsynced
from staniel.cluster.effects import Closing, Reason, Refusal, Send, Transact
from staniel.cluster.follower import Follower
from staniel.cluster.frames import HEAD
from staniel.cluster.key import Key
from staniel.cluster.leader import Leader, LeaderState, Peer, PeerState
from staniel.cluster.member import Member
from staniel.cluster.messages import Acknowledge, CopyEnds, Hello, Message, Records
from staniel.cluster.places import Place
from staniel.cluster.stream import Record, RecordKind, Run
from staniel.server.cluster.member_file import is_ahead
from staniel.server.cluster.supervision import Supervision
from tests.cluster import etcd, node
from tests.cluster.etcd import Etcd
from tests.cluster.node import Node
from tests.cluster.world import World

Mutant = Callable[[], Any]
MUTANTS: dict[str, tuple[Mutant, str]] = {}
"""By name: the context manager, and the profile in which it is found."""

ELSEWHERE = {"numbers_begin_anew": "a start numbers transactions from 1 again"}
"""Mutants of the model whose rule is that of any start, and its mutant in sim/mutants: here a record is opaque."""


def mutant(profile: str = "usual") -> Callable[[Mutant], Mutant]:
    """Register a mutant under the name of its function."""

    def register(make: Mutant) -> Mutant:
        MUTANTS[make.__name__] = make, profile  # type: ignore[attr-defined]
        return make

    return register


@contextmanager
def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replace `owner.name` by `make(the right one)` within this context."""
    right = owner.__dict__[name]
    setattr(owner, name, make(right))
    try:
        yield
    finally:
        setattr(owner, name, right)


@contextmanager
def all_of(*parts: Any) -> Iterator[None]:
    """Break what one rule is kept by in several places."""
    with ExitStack() as stack:
        for part in parts:
            stack.enter_context(part)
        yield


def constant(value: object) -> Callable[[Any], Any]:
    """Return a maker of a function that always returns `value`."""
    return lambda right: lambda *_, **__: value


def as_if_synced(right: Any) -> Any:
    """Make a method of a leader or follower that takes all that is written for synced."""

    def run(self: Any) -> Any:
        core, durable_number = self.core, self.core.durable
        core.durable = core.last
        try:
            return right(self)
        finally:
            core.durable = durable_number

    return run


# --- when a reply leaves ---


@mutant()
def answer_early() -> Any:
    return replaced(Leader, "waits_for", constant(frozenset()))


@mutant()
def answer_before_own_disk() -> Any:
    return replaced(Leader, "_answerable", as_if_synced)


@mutant()
def acknowledge_before_sync() -> Any:
    return replaced(Follower, "acknowledge", as_if_synced)


@mutant("power")
def place_before_data() -> Any:
    """Believe the head of an entry whatever its content is."""

    def make(right: Any) -> Any:
        def read_frame(data: bytes, at: int) -> Any:
            payload = right(data, at)
            if isinstance(payload, str) and len(data) - at >= HEAD.size:
                length = HEAD.unpack_from(data, at)[0]
                content = bytes(data[at + HEAD.size : at + HEAD.size + length])
                with suppress(msgspec.DecodeError):
                    if len(content) == length and isinstance(durable._decoder.decode(content), Appended):
                        return content
            return payload

        return read_frame

    return replaced(durable, "read_frame", make)


@mutant("late")
def look_without_round() -> Any:
    def make(right: Any) -> Any:
        def ask_round(self: Leader) -> Place | Refusal:
            return self._refuse_requests() or Place(self.epoch, self.answered)

        return ask_round

    return replaced(Leader, "ask_round", make)


@mutant("elections")
def held_replies_kept() -> Any:
    """Keep replies when a leader steps down, and know them by their numbers."""
    by_number = replaced(Node, "may_leave", lambda right: lambda self, held, answer: held.place.number <= answer.upto)
    return all_of(by_number, replaced(Member, "close_clients", constant(None)))


@mutant()
def min_when_written() -> Any:
    def make(right: Any) -> Any:
        def answerable(self: Leader) -> int:
            config = self.core.config
            self.core.config = MemberConfig(config.address, 1, config.policy)
            try:
                return int(right(self))
            finally:
                self.core.config = config

        return answerable

    return replaced(Leader, "_answerable", make)


# --- the set ---


@mutant()
def shrink_after_answer() -> Any:
    def make(right: Any) -> Any:
        def ask(self: Leader, kind: AskKind, key: Key) -> None:
            right(self, kind, key)
            if set(key.members) < self.members:
                self.core.key = key
                self.answer()

        return ask

    return replaced(Leader, "_ask", make)


def comparing(kind: AskKind, compares: Callable[[Etcd, Key], bool]) -> Any:
    """Have transactions of a kind compare something else than the revision."""

    def transact(right: Any) -> Any:
        def send(self: Core, asked: AskKind, key: Key) -> None:
            right(self, asked, key)
            if asked is kind:
                effect = self.effects[-1]
                assert isinstance(effect, Transact)
                self.effects[-1] = Transact(effect.ask, -1, key)

        return send

    def make(right: Any) -> Any:
        return lambda self, effect: compares(self, effect.key) if effect.revision == -1 else right(self, effect)

    return all_of(replaced(Core, "transact", transact), replaced(Etcd, "compares", make))


@mutant("etcd")
def change_compares_nothing() -> Any:
    return comparing(AskKind.CHANGE, lambda store, key: True)


@mutant("etcd")
def change_compares_epoch() -> Any:
    return comparing(AskKind.CHANGE, lambda store, key: store.key is not None and store.key.epoch == key.epoch)


def entering_if(enough: Callable[[Leader, Peer], bool]) -> Any:
    """Take a member in on other terms."""
    return replaced(Leader, "may_enter", lambda right: enough)


@mutant("joins")
def grow_early() -> Any:
    return entering_if(lambda self, peer: peer.state is PeerState.FOLLOWING and self.acks.get(peer.id, 0) > 0)


@mutant()
def grow_before_first_record() -> Any:
    return entering_if(
        lambda self, peer: peer.state is PeerState.FOLLOWING and self.acks.get(peer.id, 0) >= self.answered
    )


@mutant("etcd")
def grow_without_waiting() -> Any:
    return replaced(Leader, "waits_for", lambda right: lambda self: self.members - {self.core.id})


@mutant("lost end")
def acks_survive_repair() -> Any:
    forget = replaced(Leader, "forget", lambda right: lambda self, connection: self.peers.pop(connection, None))
    enough = entering_if(lambda self, peer: self.acks.get(peer.id, 0) >= max(self.first, self.answered))
    return all_of(forget, enough)


@mutant("etcd")
def ask_and_forget() -> Any:
    def make(right: Any) -> Any:
        def note_unanswered(self: Leader, kind: AskKind) -> None:
            self.asked = frozenset()

        return note_unanswered

    return replaced(Leader, "note_unanswered", make)


@mutant("etcd")
def asked_for_ever() -> Any:
    def make(right: Any) -> Any:
        def pursue_entry(self: Leader) -> None:
            if not self.asked:
                right(self)

        return pursue_entry

    unsettled = replaced(Leader, "note_unanswered", constant(None))

    def take_out(right: Any) -> Any:
        return lambda self, member: right(self, member) if member in self.members else None

    unable = replaced(Leader, "take_out", take_out)
    return all_of(unsettled, unable, replaced(Leader, "_pursue_entry", make))


# --- who leads ---


def any_leader() -> Any:
    """Believe a key whose leader is not in its set."""

    def may_lead(right: Any) -> Any:
        return lambda self, key: key.epoch > self.core.kept.promised and self._is_fit(key)

    def unchecked(right: Any) -> Any:
        return lambda value: value

    return all_of(
        replaced(Member, "_may_lead", may_lead),
        replaced(etcd, "decode_key", unchecked),
        replaced(etcd, "encode_key", unchecked),
    )


@mutant()
def elect_outside_set() -> Any:
    return all_of(any_leader(), replaced(Member, "_may_stand", constant(True)))


@mutant("etcd")
def elect_compares_epoch() -> Any:
    return comparing(AskKind.STAND, lambda store, key: store.key is not None and store.key.epoch + 1 == key.epoch)


@mutant("repairs")
def hand_over_outside_set() -> Any:
    def make(right: Any) -> Any:
        def hand_over(self: Leader, member_id: bytes, address: str) -> Refusal | None:
            if refusal := self._refuse_requests():
                return refusal
            self.heir = member_id, address
            self.enter(LeaderState.HANDING_OVER)
            self.pursue()
            return None

        return hand_over

    def pursue(right: Any) -> Any:
        def pursue_hand_over(self: Leader) -> None:
            assert self.heir is not None
            if self.answered == self.core.last:
                self._ask(AskKind.HAND_OVER, self.key.led_by(*self.heir))

        return pursue_hand_over

    return all_of(any_leader(), replaced(Leader, "hand_over", make), replaced(Leader, "_pursue_hand_over", pursue))


@mutant("late word")
def old_epoch_accepted() -> Any:
    """Believe a late word of a watch, and take the stream of the leader that it names."""

    def watched(right: Any) -> Any:
        def key_watched(self: Member, key: Key, revision: int) -> None:
            if self.role.value == "following" and self._has_read_key and key.leader_id != self.core.id:
                self._stop_following()
                self.core.key, self.core.revision = key, revision
                self._follow(key)
                return
            right(self, key, revision)

        return key_watched

    def follow(right: Any) -> Any:
        def send(self: Core, connection: int, body: Any) -> None:
            is_of_follower = isinstance(body, Hello | Acknowledge)
            epoch = self.key.epoch if self.key is not None and is_of_follower else self.kept.promised
            self.emit(Send(connection, Message(self.kept.cluster_id, self.id, epoch, body)))

        return send

    def refuse(right: Any) -> Any:
        def check(self: Member, message: Message) -> Closing | None:
            why = right(self, message)
            return None if why is Closing.OLD_EPOCH else why

        return check

    return all_of(
        replaced(Member, "key_watched", watched), replaced(Core, "send", follow), replaced(Member, "_refuse", refuse)
    )


@mutant()
def epoch_in_memory() -> Any:
    return replaced(Core, "promise", lambda right: lambda self, epoch: setattr(self.kept, "promised", epoch))


@mutant()
def resume_epoch() -> Any:
    def may_lead(right: Any) -> Any:
        return lambda self, key: key.epoch >= self.core.kept.promised and self._is_fit(key)

    def promise(right: Any) -> Any:
        return lambda self, epoch: right(self, epoch) if epoch > self.kept.promised else None

    return all_of(replaced(Member, "_may_lead", may_lead), replaced(Core, "promise", promise))


@mutant("old tail")
def acks_without_epoch() -> Any:
    """Count what was acknowledged to an earlier leadership of this process."""

    def make(right: Any) -> Any:
        def init(self: Leader, core: Core, *, is_ahead: bool = False) -> None:
            right(self, core, is_ahead=is_ahead)
            self.acks = core.__dict__.setdefault("acks", self.acks)

        return init

    forget = replaced(Leader, "forget", lambda right: lambda self, connection: self.peers.pop(connection, None))
    return all_of(replaced(Leader, "__init__", make), forget)


@mutant("lazy")
def power_cut_stands() -> Any:
    """Stand after a power cut that came while replies did not wait for the member's own disk."""
    return replaced(Kept, "has_lost_power", constant(False))


@mutant("lazy")
def acknowledge_lazily() -> Any:
    """Acknowledge what is written, where the policy says so to a leader."""

    def make(right: Any) -> Any:
        return lambda self: (as_if_synced(right) if self.core.config.policy is Policy.LAZY else right)(self)

    return replaced(Follower, "acknowledge", make)


@mutant("lazy")
def boot_in_memory() -> Any:
    """Do not write down that replies will not wait for the disk."""
    return replaced(Core, "note_unsynced", lambda right: lambda self: setattr(self.kept, "unsynced", self.boot_id))


@mutant("lazy")
def boot_noted_late() -> Any:
    """Write it down once replies may have left."""

    def begin(right: Any) -> Any:
        def begin_epoch(self: Leader, changes: tuple[bytes, ...]) -> None:
            right(self, changes)
            self.core.persist(Unsynced(self.core.boot_id))

        return begin_epoch

    return all_of(replaced(Core, "note_unsynced", constant(None)), replaced(Leader, "begin_epoch", begin))


@mutant("lazy")
def compacted_boot() -> Any:
    """Leave it out of the compacted file."""

    def make(right: Any) -> Any:
        def compacted(kept: Kept) -> bytes:
            unsynced, kept.unsynced = kept.unsynced, b""
            try:
                return bytes(right(kept))
            finally:
                kept.unsynced = unsynced

        return compacted

    return replaced(node, "compacted", make)


@mutant("lazy")
def short_in_company() -> Any:
    """Stand although records may be missing here that others of the set have."""
    return replaced(Member, "_is_fit", lambda right: lambda self, key: self.core.kept.fitness is not Fitness.HALF)


@mutant("lazy")
def short_leader_followed() -> Any:
    """Follow on a leader that may have lost the end, with files that have it."""

    def make(right: Any) -> Any:
        def begin_epoch(self: Leader, changes: tuple[bytes, ...]) -> None:
            self.is_ahead = False
            right(self, changes)

        return begin_epoch

    return replaced(Leader, "begin_epoch", make)


@mutant("lazy")
def led_by_word() -> Any:
    """Take the files for a leader's as soon as the member's file says that it leads."""
    return replaced(node, "has_led", lambda right: lambda fs, paths, kept: is_ahead(kept))


@mutant("lazy")
def place_of_a_leader() -> Any:
    """Keep the place of the files while the member leads."""
    return replaced(node, "forget_place", constant(None))


@mutant("lost-key")
def key_on_lease() -> Any:
    def make(right: Any) -> Any:
        def contradiction(self: Member, key: Key | None, revision: int, seen: int) -> Reason | None:
            if key is None and self.core.kept.cluster_id:
                mine = self.core.id
                self.core.key = None
                new = Key(self.core.kept.cluster_id, self.core.kept.promised + 1, mine, "", (mine,))
                if self.core.asking is None and self.leader is None:
                    self.core.transact(AskKind.INIT, new)
                return None
            return right(self, key, revision, seen)

        return contradiction

    return replaced(Member, "_contradiction", make)


# --- what a follower has ---


@mutant()
def match_by_length() -> Any:
    return replaced(leader, "last_common", lambda right: lambda ours, runs, last: min(ours.last.number, last))


@mutant()
def tail_kept() -> Any:
    def make(right: Any) -> Any:
        def take_records(self: Follower, body: Records) -> bool:
            last = self.core.kept.stream.last
            skipped = max(0, last.number - body.number)
            rows = tuple((max(epoch, last.epoch), kind, data) for epoch, kind, data in body.records[skipped:])
            if skipped:
                body = Records(last.epoch, last.number, rows, body.answered)
            return bool(right(self, body))

        return take_records

    return all_of(replaced(Follower, "cut_tail", constant(None)), replaced(Follower, "_take_records", make))


@mutant()
def recovery_unnumbered() -> Any:
    def make(right: Any) -> Any:
        def recover(self: Node, changes: list[bytes]) -> None:
            right(self, [])
            for change in changes:
                number = self.kept.stream.last.number + 1000
                self.files[number] = Record(Place(0, number), RecordKind.CHANGE, change)

        return recover

    return replaced(Node, "recover", make)


@mutant("repairs")
def repair_in_set() -> Any:
    return replaced(Leader, "must_leave_first", constant(False))


@mutant("repairs")
def mark_in_memory() -> Any:
    return replaced(Core, "mark", lambda right: lambda self, fitness: setattr(self.kept, "fitness", fitness))


@mutant("repairs")
def bulk_gap() -> Any:
    """Claim the place at which the copy ended: what was written meanwhile is never sent."""

    def send_piece(right: Any) -> Any:
        def send(self: Leader, connection: int, piece: int, data: bytes, is_last: bool) -> None:
            peer = self.peers.get(connection)
            if is_last and peer is not None and peer.state is PeerState.COPYING:
                peer.sent = self.core.last
            right(self, connection, piece, data, is_last)

        return send

    def end_copy(right: Any) -> Any:
        def end(self: Follower, body: CopyEnds) -> None:
            kept = self.core.kept
            if body.number > self.core.last:
                runs = [*kept.stream.runs]
                if kept.promised > kept.stream.last.epoch:
                    runs.append(Run(kept.promised, self.core.last + 1))
                self.core.persist(Copied(kept.promised, body.number, tuple(map(tuple, runs))))  # type: ignore[arg-type]
            right(self, body)

        return end

    return all_of(replaced(Leader, "send_piece", send_piece), replaced(Follower, "_end_copy", end_copy))


@mutant("trims")
def trimmed_under_followers() -> Any:
    """Give up records that followers still need, and go on."""

    def make(right: Any) -> Any:
        def trim(self: Member, number: int, must: int = 0) -> Any:
            if self.leader is None:
                return right(self, number)
            peers, self.leader.peers = self.leader.peers, {}
            upto = right(self, number)
            self.leader.peers = peers
            return upto

        return trim

    return replaced(Member, "trim", make)


@mutant("repairs")
def compared_by_size() -> Any:
    """Take what has the same name and size for the same."""

    def make(right: Any) -> Any:
        return lambda self, row, theirs: any(row[0] == other[0] for other in theirs)

    return replaced(Node, "is_same", make)


# --- a member's file ---


@mutant("rewrites")
def compacted_unsynced() -> Any:
    """Rename the compacted file before it is synced."""
    return replaced(Node, "rewrite_steps", constant(("write", "rename", "sync folder")))


@mutant("rewrites")
def compacted_name_unsynced() -> Any:
    """Write on in the compacted file before its name is synced."""
    return replaced(Node, "rewrite_steps", constant(("write", "sync", "rename")))


@mutant("rewrites")
def compacted_promise() -> Any:
    """Leave out of the compacted file what the member has promised."""

    def make(right: Any) -> Any:
        def compacted(kept: Kept) -> bytes:
            promised, kept.promised = kept.promised, 0
            try:
                return bytes(right(kept))
            finally:
                kept.promised = promised

        return compacted

    return replaced(node, "compacted", make)


@mutant("rot")
def damage_is_torn_end() -> Any:
    """Take a damaged entry for the torn end of the file, whatever follows it."""
    return replaced(durable, "next_whole", constant(0))


@mutant("full disks")
def full_disk_ignored() -> Any:
    """Go on after a write that the disk refuses."""
    return replaced(Node, "fail_write", constant(None))


@mutant("full disks")
def torn_end_kept() -> Any:
    """Write on behind the first part of an entry."""
    return replaced(Node, "cut_torn_end", constant(None))


@mutant("failed syncs")
def failed_sync_believed() -> Any:
    """Take what an earlier process could not sync for durable, because it can be read."""

    def make(right: Any) -> Any:
        def write_anew(self: Node) -> None:
            if self.lost_at is None:
                right(self)

        return write_anew

    return replaced(Node, "write_anew", make)


@mutant("failed syncs")
def failed_sync_unmarked() -> Any:
    """Stand after a sync of a leader's journals has failed, as if its files had what it answered."""
    return replaced(Node, "is_short", constant(False))


@mutant("failed syncs")
def failed_sync_of_deposed() -> Any:
    """Begin anew, deposed, beside a sync of the leader's journals, whose failure no one notes then."""
    return replaced(Node, "waits_for_syncs", lambda right: lambda self: self.leads)


@mutant("etcd restarts")
def etcd_forgets() -> Any:
    """Have an etcd that loses its last write in a power cut, although it has acknowledged it."""

    def make(right: Any) -> Any:
        def restart(self: Etcd) -> None:
            if self.past:
                self.value, self.mod_revision = self.past.pop()
                self.revision = self.mod_revision
            right(self)

        return restart

    return replaced(Etcd, "restart", make)


@mutant("leases")
def lease_of_a_hung_disk() -> Any:
    """Renew the lease of a member whose syncs do not end."""
    return replaced(Supervision, "_note_disk", constant(None))


# --- who is who ---


@mutant()
def set_of_names() -> Any:
    return replaced(World, "replace_disk", lambda right: lambda self, node: node.replace_disk(node.id))


@mutant("foreign")
def no_cluster_id() -> Any:
    def contradiction(right: Any) -> Any:
        def check(self: Member, key: Key | None, revision: int, seen: int) -> Reason | None:
            why = right(self, key, revision, seen)
            return None if why is Reason.OTHER_CLUSTER else why

        return check

    def refuse(right: Any) -> Any:
        def check(self: Member, message: Message) -> Closing | None:
            return right(self, msgspec.structs.replace(message, cluster_id=self.core.kept.cluster_id))  # type: ignore[no-any-return]

        return check

    return all_of(replaced(Member, "_contradiction", contradiction), replaced(Member, "_refuse", refuse))


# --- not for the servers to prevent: what it costs ---


@mutant("copies")
def old_copy_started() -> Any:
    return nullcontext()


@mutant("restore-1")
def etcd_restored_min_1() -> Any:
    return nullcontext()


@mutant("restore-2")
def etcd_restored_min_2() -> Any:
    return nullcontext()
