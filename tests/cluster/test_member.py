"""A member by itself: what it refuses, when it stops, what it does first, and that no message of a peer breaks it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staniel.cluster.core import MemberConfig, Policy
from staniel.cluster.durable import (
    ALL_FIXED,
    Appended,
    Copied,
    Created,
    Entries,
    Fitness,
    Fixed,
    Joined,
    Kept,
    Marked,
    Promised,
    Seen,
    Unsynced,
)
from staniel.cluster.effects import (
    Answer,
    Close,
    CloseClients,
    Closing,
    Effect,
    Persist,
    ReadKey,
    Reason,
    Recover,
    Refusal,
    Send,
    Stop,
    Sync,
    Transact,
)
from staniel.cluster.key import MEMBERS_MAX, Key, decode_key, encode_key
from staniel.cluster.leader import LeaderState
from staniel.cluster.member import Member, RoleState
from staniel.cluster.messages import RECORD_BYTES_MAX, Acknowledge, Hello, Message, NeedsRepair, Records, Welcome
from staniel.cluster.places import Place
from staniel.cluster.stream import RecordKind
from tests.cluster.test_codecs import BODIES

A, B, OTHER = b"a" * 16, b"b" * 16, b"o" * 16
CLUSTER = b"c" * 16
PUT = RecordKind.PUT


class Driver:
    """A driver that lets each sync end at once, and notes all effects."""

    def __init__(self, *entries: Entries, member_id: bytes = A, min_in_sync: int = 1, **how: bool) -> None:
        kept = Kept()
        for entry in (Created(member_id), *entries):
            assert kept.apply(entry)
        self.member = Member(MemberConfig("a:22133", min_in_sync), kept, **how)
        self.effects: list[Effect] = []
        self.member.start()
        self.carry_out()

    def carry_out(self) -> list[Effect]:
        """Carry out what can be done at once; return all effects of this turn."""
        turn: list[Effect] = []
        self.member.end_turn()
        while effects := self.member.take_effects():
            turn += effects
            for effect in effects:
                if isinstance(effect, Sync):
                    self.member.synced(effect.number)
                elif isinstance(effect, Recover):
                    self.member.recovered(())
            self.member.end_turn()
        self.effects += turn
        return turn

    def last(self, kind: type[Effect]) -> Effect:
        return next(effect for effect in reversed(self.effects) if isinstance(effect, kind))

    def read(self, key: Key | None, revision: int) -> list[Effect]:
        """Answer the question that is open with this key."""
        effect = self.last(ReadKey)
        assert isinstance(effect, ReadKey)
        self.member.key_read(effect.ask, key, revision)
        return self.carry_out()

    def take(self, revision: int) -> list[Effect]:
        """Let etcd take the transaction that is open."""
        effect = self.last(Transact)
        assert isinstance(effect, Transact)
        self.member.transaction_taken(effect.ask, revision)
        return self.carry_out()

    def hear(self, body: object, epoch: int, connection: int = 7, sender: bytes = B) -> list[Effect]:
        """Receive a message of the other member."""
        self.member.received(connection, Message(CLUSTER, sender, epoch, body))  # type: ignore[arg-type]
        return self.carry_out()


def key(epoch: int, leader: bytes, *members: bytes, cluster: bytes = CLUSTER) -> Key:
    return Key(cluster, epoch, leader, "x:1", tuple(sorted(members)))


def leading(*others: bytes, min_in_sync: int = 1) -> Driver:
    """Return a leader of epoch 1 whose set has these others."""
    driver = Driver(min_in_sync=min_in_sync)
    driver.read(None, 0)
    assert driver.member.init(CLUSTER) is None
    driver.carry_out()
    driver.take(1)
    if others:
        driver.member.key_watched(key(1, A, A, *others), 2)
        driver.carry_out()
    return driver


def following() -> Driver:
    """Return a follower of b in epoch 1, connected."""
    driver = Driver()
    driver.read(key(1, B, A, B), 1)
    driver.member.connected(7)
    driver.carry_out()
    driver.hear(Welcome(0, 1), 1)
    return driver


JOINED = (Joined(CLUSTER, 0), Promised(4), Seen(9))


@pytest.mark.parametrize(
    ("found", "revision", "reason"),
    [
        (None, 0, Reason.NO_KEY),
        (key(5, A, A, cluster=OTHER), 12, Reason.OTHER_CLUSTER),
        (key(3, A, A), 12, Reason.KEY_WENT_BACK),
        (key(5, A, A), 8, Reason.KEY_WENT_BACK),
    ],
)
def test_a_member_stops_where_etcd_cannot_be_its_own(found: Key | None, revision: int, reason: Reason) -> None:
    driver = Driver(*JOINED)
    assert driver.read(found, revision) == [Stop(reason)] and driver.member.role is RoleState.STOPPED
    assert driver.member.write(b"") is Refusal.NOT_LEADER and driver.hear(Acknowledge(1, 1), 9) == []


def test_a_spool_with_items_and_no_cluster_is_not_overwritten() -> None:
    assert Driver(has_items=True).read(key(1, B, B), 1) == [Stop(Reason.WOULD_OVERWRITE)]
    assert Driver(has_items=False).read(key(1, B, B), 1) != [Stop(Reason.WOULD_OVERWRITE)]


def test_a_start_makes_no_key() -> None:
    driver = Driver()
    driver.read(None, 0)
    driver.member.retry()
    driver.carry_out()
    assert not [effect for effect in driver.effects if isinstance(effect, Transact)]


def test_init_makes_the_key_once_with_this_spool_alone() -> None:
    driver = Driver()
    assert driver.member.init(CLUSTER) is Refusal.NO_KEY
    driver.read(None, 0)
    assert driver.member.init(CLUSTER) is None and driver.member.init(CLUSTER) is Refusal.ASKING
    driver.carry_out()
    assert driver.last(Transact) == Transact(2, 0, Key(CLUSTER, 1, A, "a:22133", (A,)))
    driver.take(1)
    assert driver.member.is_serving and driver.member.init(CLUSTER) is Refusal.HAS_CLUSTER
    other = Driver(member_id=B)
    other.read(key(1, A, A), 1)
    assert other.member.init(CLUSTER) is Refusal.HAS_CLUSTER


def test_an_epoch_is_synced_before_its_first_record_and_answered_after_it() -> None:
    driver = Driver()
    driver.read(None, 0)
    driver.member.init(CLUSTER)
    driver.carry_out()
    kinds = [type(effect).__name__ for effect in driver.take(1)]
    assert kinds.index("Sync") < kinds.index("Recover") < kinds.index("ServeClients") < kinds.index("Answer")


def test_a_restarted_leader_stands_again() -> None:
    driver = Driver(*JOINED)
    driver.read(key(4, A, A), 9)
    assert driver.member.role is RoleState.WAITING and driver.member.write(b"") is Refusal.NOT_LEADER
    assert driver.member.stand() is None
    driver.carry_out()
    driver.take(10)
    assert driver.member.is_serving and driver.member.core.kept.promised == 5


@pytest.mark.parametrize(
    ("entries", "seen", "refusal"),
    [
        ((), key(4, B, A, B), None),
        ((), key(4, B, B), Refusal.NOT_IN_SET),
        ((Marked(Fitness.SHORT),), key(4, B, A, B), Refusal.UNFIT),
        ((Marked(Fitness.SHORT),), key(4, A, A), None),
        ((Marked(Fitness.HALF),), key(4, A, A), Refusal.UNFIT),
    ],
)
def test_only_a_fit_member_of_the_set_stands(entries: tuple[Entries, ...], seen: Key, refusal: Refusal | None) -> None:
    driver = Driver(*JOINED, *entries)
    assert driver.member.stand() is Refusal.NO_KEY
    driver.read(seen, 9)
    assert driver.member.stand() is refusal


def test_an_operator_may_let_a_short_member_stand_and_never_a_half_copied_one() -> None:
    for fitness, refusal in ((Fitness.SHORT, None), (Fitness.HALF, Refusal.UNFIT)):
        driver = Driver(*JOINED, Marked(fitness))
        driver.read(key(4, B, A, B), 9)
        assert driver.member.stand(although_unfit=True) is refusal


def test_replies_wait_for_the_set_and_for_a_member_that_was_proposed() -> None:
    driver = leading(B)
    driver.hear(Hello((), 0, 0, False), 1)
    driver.hear(Acknowledge(1, 1), 1)
    place = driver.member.write(b"x", PUT)
    assert isinstance(place, Place)
    assert not [effect for effect in driver.carry_out() if isinstance(effect, Answer)]
    assert Answer(1, place.number) in driver.hear(Acknowledge(1, place.number), 1)


def test_a_look_waits_for_a_record_that_is_written_after_it() -> None:
    driver = leading()
    before = driver.member.core.last
    place = driver.member.ask_round()
    assert place == Place(1, before + 1) and driver.member.core.last == before
    assert Answer(1, before + 1) in driver.carry_out() and driver.member.core.last == before + 1
    assert driver.carry_out() == []


def test_a_set_has_no_more_members_than_a_key_can_have() -> None:
    others = [bytes([number]) * 16 for number in range(1, MEMBERS_MAX)]
    driver = leading(*others[1:])
    for connection, other in enumerate([others[0], B], 7):
        driver.hear(Hello((), 0, 0, False), 1, connection, other)
        driver.hear(Acknowledge(1, driver.member.core.last), 1, connection, other)
    assert not [effect for effect in driver.take(3) if isinstance(effect, Transact)]
    asked = driver.last(Transact)
    assert isinstance(asked, Transact)
    assert len(asked.key.members) == MEMBERS_MAX and B not in asked.key.members
    assert decode_key(encode_key(asked.key)) == asked.key


def test_few_members_in_the_set_refuse_puts_and_nothing_else() -> None:
    driver = leading(min_in_sync=2)
    assert driver.member.write(b"x", PUT) is Refusal.TOO_FEW_IN_SYNC
    assert isinstance(driver.member.write(b"x", RecordKind.CHANGE), Place)
    assert driver.member.write(b"x" * (RECORD_BYTES_MAX + 1)) is Refusal.TOO_LARGE


def test_a_put_that_was_written_is_held_when_the_set_shrinks() -> None:
    driver = leading(B, min_in_sync=2)
    driver.member.write(b"x", RecordKind.CHANGE)
    place = driver.member.write(b"x", PUT)
    assert isinstance(place, Place)
    driver.member.key_watched(key(1, A, A), 3)
    answers = [effect.upto for effect in driver.carry_out() if isinstance(effect, Answer)]
    assert answers == [place.number - 1]


def test_a_deposed_leader_closes_its_clients_before_anything_else() -> None:
    driver = leading(B)
    driver.hear(Hello((), 0, 0, False), 1)
    driver.member.key_watched(key(2, B, A, B), 5)
    effects = driver.carry_out()
    assert effects[0] == CloseClients()
    assert {type(effect) for effect in effects[1:]} >= {Close, Persist, Sync}


def test_a_leader_that_hears_of_a_higher_epoch_steps_down_and_reads_the_key() -> None:
    driver = leading(B)
    effects = driver.hear(Hello((), 0, 0, False), 2)
    assert effects[0] == CloseClients() and Close(7, Closing.HIGHER_EPOCH) in effects
    assert driver.member.role is RoleState.WAITING and driver.member.core.kept.promised == 1


@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("state", [LeaderState.PROMISING, LeaderState.RECOVERING])
def test_a_member_that_is_deposed_once_recovery_has_begun_must_be_repaired(state: LeaderState, is_ahead: bool) -> None:
    kept = Kept()
    for entry in (Created(A), *JOINED, Appended(4, 1, PUT, b"x"), *([Fixed(ALL_FIXED)] if is_ahead else [])):
        assert kept.apply(entry)
    member = Member(MemberConfig("a:22133"), kept, is_ahead=is_ahead)
    member.start()
    member.key_read(1, key(5, A, A, B), 10)
    if state is LeaderState.RECOVERING:
        member.synced(2)
    assert member.leader is not None and member.leader.state is state
    member.take_effects()
    member.key_watched(key(6, B, A, B), 11)
    effects = member.take_effects()
    ends_at = effects.index(CloseClients())
    is_cuttable = state is LeaderState.PROMISING and not is_ahead
    assert effects[:ends_at] == ([Persist((Fixed(1),))] if is_cuttable else [])
    assert (kept.fixed == ALL_FIXED) is not is_cuttable


BOOT, NEXT_BOOT, UNKNOWN = b"boot 1".ljust(16), b"boot 2".ljust(16), bytes(16)
LED_LAZILY = (*JOINED, Appended(4, 1, PUT, b"x"), Fixed(ALL_FIXED), Unsynced(BOOT))


def kept_of(*entries: Entries) -> Kept:
    kept = Kept()
    assert all(kept.apply(entry) for entry in (Created(A), *entries))
    return kept


@pytest.mark.parametrize("policy", Policy)
def test_a_leaders_own_disk_is_waited_for_as_its_policy_says_and_a_followers_always(policy: Policy) -> None:
    member = Member(MemberConfig("a:22133", policy=policy), kept_of(*JOINED), boot_id=BOOT)
    member.start()
    member.key_read(1, key(5, A, A), 10)
    effects = member.take_effects()
    is_noted = any(isinstance(effect, Persist) and Unsynced(BOOT) in effect.entries for effect in effects)
    assert is_noted is (policy is Policy.LAZY)
    assert not any(isinstance(effect, Recover) for effect in effects), "what a start must know is not synced yet"
    assert member.leader is not None
    member.synced(2)
    member.recovered(())
    place = member.write(b"x", PUT)
    assert isinstance(place, Place)
    upto = [effect.upto for effect in member.take_effects() if isinstance(effect, Answer)]
    assert upto == ([] if policy is Policy.ALWAYS else [place.number - 1, place.number])


@pytest.mark.parametrize(("boot_id", "is_short"), [(BOOT, False), (NEXT_BOOT, True), (UNKNOWN, True)])
def test_a_leader_that_did_not_wait_for_its_disk_is_short_after_a_power_cut(boot_id: bytes, is_short: bool) -> None:
    kept = kept_of(*LED_LAZILY)
    member = Member(MemberConfig("a:22133"), kept, is_ahead=True, boot_id=boot_id)
    member.start()
    assert (kept.fitness is Fitness.SHORT) is is_short
    assert kept.unsynced == (b"" if is_short else BOOT)
    member.key_read(1, key(4, A, A, B), 10)
    assert member.stand() is (Refusal.UNFIT if is_short else None)


def test_a_member_that_may_lack_something_leads_alone_in_the_set_and_has_the_others_repaired() -> None:
    kept = kept_of(*LED_LAZILY)
    member = Member(MemberConfig("a:22133"), kept, is_ahead=True, boot_id=NEXT_BOOT)
    member.start()
    member.key_read(1, key(4, A, A), 10)
    assert member.stand() is None
    member.transaction_taken(2, 11)
    member.synced(9)
    member.recovered(())
    member.take_effects()
    member.received(7, Message(CLUSTER, B, 5, Hello(((4, 1),), 1, 0, False)))
    assert NeedsRepair(1) in [effect.message.body for effect in member.take_effects() if isinstance(effect, Send)]


@pytest.mark.parametrize("entry", [Fixed(1), Copied(4, 1, ())])
def test_a_clean_end_or_a_copy_ends_the_note_of_the_boot(entry: Entries) -> None:
    assert kept_of(*LED_LAZILY).has_lost_power(NEXT_BOOT)
    assert not kept_of(*LED_LAZILY, entry).has_lost_power(NEXT_BOOT)


def test_messages_of_another_cluster_or_of_an_older_epoch_are_refused() -> None:
    driver = following()
    driver.member.received(7, Message(OTHER, B, 1, Acknowledge(1, 1)))
    assert Close(7, Closing.OTHER_CLUSTER) in driver.carry_out()
    driver = following()
    assert Close(7, Closing.OLD_EPOCH) in driver.hear(Records(0, 0, (), 0), 0)


def test_a_follower_acknowledges_what_is_synced_and_refuses_a_gap() -> None:
    driver = following()
    effects = driver.hear(Records(0, 0, ((1, RecordKind.EPOCH, b""), (1, PUT, b"x")), 0), 1)
    assert effects[-1] == Send(7, Message(CLUSTER, A, 1, Acknowledge(1, 2)))
    assert Close(7, Closing.UNEXPECTED) in driver.hear(Records(1, 3, ((1, PUT, b"y"),), 0), 1)


def test_a_transaction_without_an_answer_is_settled_by_one_that_changes_nothing() -> None:
    driver = leading()
    driver.hear(Hello((), 0, 0, False), 1)
    driver.hear(Acknowledge(1, 1), 1)
    asked = driver.last(Transact)
    assert isinstance(asked, Transact) and asked.key.members == (A, B)
    driver.member.ask_unanswered(asked.ask)
    place = driver.member.write(b"x", PUT)
    driver.member.retry()
    assert not [effect for effect in driver.carry_out() if isinstance(effect, Answer)]
    settling = driver.last(Transact)
    assert settling == Transact(asked.ask + 1, asked.revision, Key(CLUSTER, 1, A, "a:22133", (A,)))
    assert isinstance(place, Place) and Answer(1, place.number) in driver.take(4)


def test_a_hand_over_takes_no_requests_and_waits_for_the_last_answer() -> None:
    driver = leading(B)
    driver.hear(Hello((), 0, 0, False), 1)
    place = driver.member.write(b"x", PUT)
    assert isinstance(place, Place)
    assert driver.member.hand_over(OTHER, "o:1") is Refusal.NOT_IN_SET
    assert driver.member.hand_over(B, "b:1") is None
    assert driver.member.write(b"y") is Refusal.HANDING_OVER and driver.member.ask_round() is Refusal.HANDING_OVER
    assert not [effect for effect in driver.carry_out() if isinstance(effect, Transact)]
    driver.hear(Acknowledge(1, place.number), 1)
    asked = driver.last(Transact)
    assert isinstance(asked, Transact) and (asked.key.epoch, asked.key.leader_id, asked.key.address) == (2, B, "b:1")
    assert driver.take(5)[0] == CloseClients()


def test_a_hand_over_to_a_member_that_leaves_is_given_up() -> None:
    driver = leading(B)
    driver.member.write(b"x", PUT)
    driver.member.hand_over(B, "b:1")
    driver.member.key_watched(key(1, A, A), 5)
    driver.carry_out()
    assert driver.member.is_serving


def test_a_hand_over_that_waits_for_a_held_put_takes_members_in() -> None:
    driver = leading(B, OTHER, min_in_sync=3)
    place = driver.member.write(b"x", PUT)
    assert isinstance(place, Place)
    driver.member.key_watched(key(1, A, A, B), 3)
    driver.hear(Hello((), 0, 0, False), 1)
    driver.hear(Acknowledge(1, place.number), 1)
    assert driver.member.hand_over(B, "b:1") is None
    driver.hear(Hello((), 0, 0, False), 1, 8, OTHER)
    driver.hear(Acknowledge(1, place.number), 1, 8, OTHER)
    asked = driver.last(Transact)
    assert isinstance(asked, Transact) and asked.key.members == tuple(sorted((A, B, OTHER)))


def test_a_member_that_led_is_out_of_the_set_before_it_is_repaired() -> None:
    driver = leading(B)
    driver.member.write(b"x", PUT)
    driver.carry_out()
    effects = driver.hear(Hello(((1, 1),), 9, 9, False), 1)
    assert [type(effect) for effect in effects] == [Transact] and driver.last(Transact).key.members == (A,)  # type: ignore[union-attr]
    bodies = [effect.message.body for effect in driver.take(5) if isinstance(effect, Send)]
    assert bodies == [NeedsRepair(2)]


@given(st.lists(st.tuples(st.integers(1, 9), BODIES, st.sampled_from([A, B, OTHER])), max_size=12), st.booleans())
def test_no_message_of_a_peer_breaks_a_member(heard: list[tuple[int, object, bytes]], is_leader: bool) -> None:
    driver = leading(B) if is_leader else following()
    for connection, body, sender in heard:
        driver.hear(body, 1, connection, sender)
        if not is_leader and driver.member.follower is not None and driver.member.follower.connection is None:
            driver.member.connected(7)


@given(st.lists(st.tuples(BODIES, st.booleans()), max_size=8))
def test_no_message_of_a_leader_breaks_a_half_copied_member(heard: list[tuple[object, bool]]) -> None:
    driver = Driver(*JOINED, Marked(Fitness.HALF))
    driver.read(key(4, B, B), 9)
    for body, comes_anew in heard:
        if comes_anew:
            driver.member.disconnected(7)
            driver.member.connected(7)
        driver.hear(body, 4)
