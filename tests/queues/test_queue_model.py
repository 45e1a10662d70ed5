"""A queue does, step by step, what a list would; and its changes, replayed, rebuild it."""

from __future__ import annotations

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from staniel.queues.config import UNLIMITED_BYTES, UNLIMITED_ITEMS, QueueConfig
from staniel.queues.item import Delivery, Item, is_remnant, remnant_of
from staniel.queues.queue import Queue
from tests.queues.model import Hand, Model, Recorder, Replayed, Thing

START_MS = 1_700_000_000_000
CONFIGS = st.builds(
    QueueConfig,
    max_items=st.sampled_from([UNLIMITED_ITEMS, UNLIMITED_ITEMS, 0, 1, 3]),
    max_bytes=st.sampled_from([UNLIMITED_BYTES, UNLIMITED_BYTES, 0, 1, 12]),
    max_item_bytes=st.sampled_from([8, 1 << 20]),
    max_age_ms=st.sampled_from([0, 0, 5]),
    discard_old_when_full=st.booleans(),
    max_expire_sweep=st.sampled_from([UNLIMITED_ITEMS, 0, 1]),
)
XIDS = st.sampled_from([0, 0, 2**31 - 3, -3])


class QueueBesideModel(RuleBasedStateMachine):
    """Every rule does one thing to both and compares the answers."""

    @initialize(config=CONFIGS, last_xid=XIDS)
    def begin(self, config: QueueConfig, last_xid: int) -> None:
        self.now_ms = START_MS
        self.journal = Recorder()
        self.queue = Queue("q", config, self.journal, self.now_ms)
        self.queue.last_xid = last_xid
        self.model = Model(config, last_xid=last_xid)
        self.held: dict[int, Delivery] = {}
        self.waiting: list[Hand] = []
        self.newest_id = 0
        self.replayed = Replayed(last_xid=last_xid)
        self.replayed_changes = 0

    @rule(data=st.binary(max_size=10), ttl_ms=st.sampled_from([None, None, 0, 3, -1]), flags=st.integers(0, 2**32 - 1))
    def add(self, data: bytes, ttl_ms: int | None, flags: int) -> None:
        expires_ms = 0 if ttl_ms is None else self.now_ms + ttl_ms
        stored = self.queue.add(Item(data, self.now_ms, expires_ms, flags), self.now_ms)
        assert stored is self.model.add(Thing(data, self.now_ms, expires_ms, flags), self.now_ms)
        if stored:
            self.serve()

    @rule()
    def take(self) -> None:
        taken, thing = self.queue.remove_head(self.now_ms), self.model.head(self.now_ms)
        if thing is not None:
            del self.model.line[0]
        self.compare(taken, thing, 0)

    @rule()
    def open(self) -> None:
        taken, thing = self.queue.open(self.now_ms), self.model.head(self.now_ms)
        self.compare(taken, thing, self.open_in_model(thing))

    @rule()
    def peek(self) -> None:
        taken, thing = self.queue.peek(self.now_ms), self.model.head(self.now_ms)
        self.compare(taken, thing, None)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        xid = data.draw(st.sampled_from(sorted(self.held)))
        taken = self.held.pop(xid)
        assert self.queue.confirm(taken)
        assert not self.queue.confirm(taken) and not self.queue.abort(taken, self.now_ms)
        del self.model.open[xid]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        xid = data.draw(st.sampled_from(sorted(self.held)))
        taken = self.held.pop(xid)
        assert self.queue.abort(taken, self.now_ms)
        self.model.put_back(xid)
        self.serve()
        assert not self.queue.confirm(taken) and not self.queue.abort(taken, self.now_ms)

    @rule()
    def flush(self) -> None:
        assert self.queue.flush() == self.model.present
        self.model.line.clear()

    @rule(sweep_max=st.sampled_from([0, 1, 2, 100]))
    def expire(self, sweep_max: int) -> None:
        assert self.queue.expire(self.now_ms, sweep_max) == self.model.sweep(self.now_ms, sweep_max)

    @rule(ms=st.sampled_from([0, 1, 2, 4, 6, -3]))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    @rule(max_age_ms=st.sampled_from([0, 2, 50]))
    def change_max_age(self, max_age_ms: int) -> None:
        self.model.config = msgspec.structs.replace(self.model.config, max_age_ms=max_age_ms)
        self.queue.configure(self.model.config)

    @rule(kind=st.sampled_from(["take", "open", "peek"]))
    def wait(self, kind: str) -> None:
        self.model.head(self.now_ms)
        if self.queue.peek(self.now_ms) is None:
            hand = Hand(opens=kind == "open", peeks=kind == "peek")
            self.queue.park(hand)
            self.waiting.append(hand)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def stop_waiting(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.waiting) - 1))
        hand = self.waiting.pop(at)
        self.queue.unpark(hand)
        self.queue.unpark(hand)

    @rule()
    def restart(self) -> None:
        """Replay into a new queue, as after a crash: who waited and who held something is gone."""
        self.catch_up()
        replayed, config = self.replayed, self.model.config
        queue = Queue("q", config, self.journal, self.now_ms)
        queue.load(replayed.line, replayed.open, replayed.last_xid)
        queue.return_open_reads(0)
        self.queue = queue
        self.model.restart()
        self.held.clear()
        self.waiting.clear()
        self.replayed = Replayed(last_xid=queue.last_xid)
        for change in self.journal.changes:
            self.replayed.apply(change)
        self.replayed.last_xid = self.model.last_xid
        self.replayed_changes = len(self.journal.changes)

    # inside

    def serve(self) -> None:
        """Hand out in the model, in the order of waiting, and compare with what the hands hold."""
        while self.waiting and (thing := self.model.head(self.now_ms)) is not None:
            hand = self.waiting.pop(0)
            assert len(hand.got) == 1
            if hand.peeks:
                self.compare(hand.got[0], thing, None)
            elif hand.opens:
                self.compare(hand.got[0], thing, self.open_in_model(thing))
            else:
                del self.model.line[0]
                self.compare(hand.got[0], thing, 0)
        assert not any(hand.got for hand in self.waiting)

    def open_in_model(self, thing: Thing | None) -> int:
        if thing is None:
            return 0
        del self.model.line[0]
        xid = self.model.next_xid()
        self.model.open[xid] = thing
        return xid

    def compare(self, taken: Delivery | None, thing: Thing | None, xid: int | None) -> None:
        """`xid` None: it was only shown."""
        assert (taken is None) is (thing is None)
        if taken is None or thing is None:
            return
        item = taken.item
        assert (item.data, item.added_ms, item.flags) == (thing.data, thing.added_ms, thing.flags)
        assert item.expires_ms == thing.expires_ms
        if thing.id:
            assert taken.id == thing.id
        else:
            assert taken.id > self.newest_id
            thing.id = taken.id
        if xid is not None:
            self.newest_id = max(self.newest_id, taken.id)
            thing.deliveries += 1
            assert (taken.xid, taken.deliveries) == (xid, thing.deliveries)
        if xid:
            self.held[xid] = taken

    def catch_up(self) -> None:
        for change in self.journal.changes[self.replayed_changes :]:
            self.replayed.apply(change)
        self.replayed_changes = len(self.journal.changes)

    @invariant()
    def both_agree(self) -> None:
        queue, model = self.queue, self.model
        queue.check()
        assert [item.data for item in queue.line.items()] == [thing.shown for thing in model.line]
        assert {xid: taken.item.data for xid, taken in queue.open_reads.items()} == {
            xid: thing.data for xid, thing in model.open.items()
        }
        assert [*queue.waiters] == self.waiting
        assert queue.line.bytes == model.bytes and len(queue.line) == len(model.line)

    @invariant()
    def the_changes_rebuild_it(self) -> None:
        self.catch_up()
        here = self.queue.line.items()
        there = self.replayed.line.items()
        assert len(here) == len(there)
        assert [remnant_of(item) if is_remnant(mine) else item for item, mine in zip(there, here, strict=True)] == here
        assert self.replayed.open.keys() == self.queue.open_reads.keys()
        ids = {xid: taken.id for xid, taken in self.queue.open_reads.items()}
        assert {xid: taken.id for xid, taken in self.replayed.open.items()} == ids

    def teardown(self) -> None:
        self.queue.close()
        assert all(hand.dismissed == 1 for hand in self.waiting)
        recorded = len(self.journal.changes)
        late = Item(b"late", self.now_ms)
        assert not self.queue.add(late, self.now_ms)
        assert (
            self.queue.remove_head(self.now_ms) is self.queue.open(self.now_ms) is self.queue.peek(self.now_ms) is None
        )
        assert not any(self.queue.confirm(taken) or self.queue.abort(taken, 0) for taken in self.held.values())
        assert len(self.journal.changes) == recorded
        self.queue.check()


QueueBesideModel.TestCase.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
TestQueueBesideModel = QueueBesideModel.TestCase
