"""What the model test would take long to reach, said one by one."""

from __future__ import annotations

from staniel.queues.changes import Aborted, Added, Confirmed, Opened, Removed
from staniel.queues.config import QueueConfig
from staniel.queues.interfaces import Admission, Reason
from staniel.queues.item import Delivery, Item
from staniel.queues.queue import Queue
from tests.queues.model import Hand, Recorder

NOW_MS = 1_700_000_000_000


def queue_with(*data: bytes, config: QueueConfig | None = None) -> Queue:
    queue = Queue("q", config or QueueConfig(), Recorder(), NOW_MS)
    for each in data:
        assert queue.add(Item(each, NOW_MS), NOW_MS)
    return queue


def xids(queue: Queue, count: int) -> list[int]:
    opened = [queue.open(NOW_MS) for _ in range(count)]
    return [taken.xid for taken in opened if taken is not None]


def test_xids_wrap_around_to_negative_numbers() -> None:
    queue = queue_with(b"a", b"b", b"c")
    queue.last_xid = 2**31 - 2
    assert xids(queue, 3) == [2**31 - 1, -(2**31), -(2**31) + 1]


def test_xids_skip_zero_and_those_that_are_open() -> None:
    queue = queue_with(*[b"x"] * 8)
    assert xids(queue, 2) == [1, 2]
    queue.last_xid = -2
    assert xids(queue, 3) == [-1, 3, 4]
    assert queue.confirm(queue.open_reads[1])
    queue.last_xid = -2
    assert xids(queue, 2) == [1, 5]


def test_an_id_stays_with_its_item_and_ids_rise_even_when_the_clock_does_not() -> None:
    queue = Queue("q", QueueConfig(), Recorder(), NOW_MS)
    for back_ms in (0, 0, 5000):
        queue.add(Item(b"x", NOW_MS - back_ms), NOW_MS)
    first = queue.open(NOW_MS)
    assert first is not None and queue.abort(first, NOW_MS)
    shown = queue.peek(NOW_MS)
    taken = [queue.remove_head(NOW_MS) for _ in range(3)]
    assert shown is not None and shown.id == first.id
    ids = [each.id for each in taken if each is not None]
    assert ids == [first.id, first.id + 1, first.id + 2]


def test_aborted_items_come_back_at_the_head_and_the_last_one_aborted_is_first() -> None:
    queue = queue_with(b"a", b"b", b"c")
    a, b = queue.open(NOW_MS), queue.open(NOW_MS)
    assert a is not None and b is not None
    queue.abort(a, NOW_MS)
    queue.abort(b, NOW_MS)
    assert [item.data for item in queue.line.items()] == [b"b", b"a", b"c"]


def test_recovery_puts_open_reads_back_in_the_order_of_their_xids() -> None:
    old = queue_with(b"a", b"b", b"c")
    xids(old, 2)
    queue = Queue("q", QueueConfig(), Recorder(), NOW_MS)
    queue.load(old.line, old.open_reads, old.last_xid)
    queue.return_open_reads(0)
    assert [item.data for item in queue.line.items()] == [b"a", b"b", b"c"]
    assert [(change.xid, type(change)) for change in queue.journal.changes] == [(2, Aborted), (1, Aborted)]  # type: ignore[attr-defined]
    assert xids(queue, 1) == [3]


def test_no_room_and_nothing_to_drop_refuses_instead_of_looping() -> None:
    config = QueueConfig(max_items=0, discard_old_when_full=True)
    queue = Queue("q", config, Recorder(), NOW_MS)
    assert not queue.add(Item(b"x", NOW_MS), NOW_MS)
    assert queue.counters.discarded == 0


def test_one_item_may_go_past_max_bytes_and_the_next_is_refused() -> None:
    queue = queue_with(b"123", b"4567890", config=QueueConfig(max_bytes=4))
    assert not queue.add(Item(b"", NOW_MS), NOW_MS)
    assert queue.line.bytes == 10


def test_an_expired_item_is_never_handed_out_however_small_the_sweep() -> None:
    queue = Queue("q", QueueConfig(max_expire_sweep=1), Recorder(), NOW_MS)
    for _ in range(5):
        queue.add(Item(b"old", NOW_MS, NOW_MS + 1), NOW_MS)
    queue.add(Item(b"new", NOW_MS), NOW_MS)
    shown = queue.peek(NOW_MS + 2)
    assert shown is not None and shown.item.data == b"new"
    assert queue.counters.expired_items == 5


class TransferSinkThatKeeps:
    """Takes charge of one item."""

    taken: Delivery | None = None

    def admits(self, source: Queue, size: int) -> Admission:
        return Admission.NOW

    def accept(self, source: Queue, taken: Delivery, reason: Reason, now_ms: int, target: str = "") -> None:
        self.taken = taken


def test_an_item_that_leaves_is_recorded_as_open_before_a_sweep_that_drops_nothing() -> None:
    queue = Queue("q", QueueConfig(expire_to_queue="late"), Recorder(), NOW_MS)
    queue.transfer_sink = sink = TransferSinkThatKeeps()
    queue.add(Item(b"a", NOW_MS, NOW_MS + 1), NOW_MS)
    assert queue.expire(NOW_MS + 2, 10) == 1 and sink.taken is queue.transferring_head
    queue.configure(QueueConfig(max_expire_sweep=0))
    queue.add(Item(b"b", NOW_MS, NOW_MS + 1), NOW_MS)
    assert queue.expire(NOW_MS + 2, 0) == 0 and sink.taken is not None and queue.release(sink.taken)
    changes = queue.journal.changes  # type: ignore[attr-defined]
    assert [type(change) for change in changes] == [Added, Added, Opened, Confirmed]


def test_an_item_lives_through_the_millisecond_of_its_expiry() -> None:
    queue = Queue("q", QueueConfig(), Recorder(), NOW_MS)
    queue.add(Item(b"x", NOW_MS, NOW_MS + 10), NOW_MS)
    assert queue.peek(NOW_MS + 10) is not None
    assert queue.peek(NOW_MS + 11) is None


def test_one_item_serves_those_who_peek_before_the_first_who_takes() -> None:
    queue = queue_with()
    hands = [Hand(peeks=True), Hand(), Hand(peeks=True), Hand(opens=True)]
    for hand in hands:
        queue.park(hand)
    queue.add(Item(b"a", NOW_MS), NOW_MS)
    assert [len(hand.got) for hand in hands] == [1, 1, 0, 0]
    queue.add(Item(b"b", NOW_MS), NOW_MS)
    assert [len(hand.got) for hand in hands] == [1, 1, 1, 1]
    assert [type(change) for change in queue.journal.changes] == [Added, Removed, Added, Opened]  # type: ignore[attr-defined]


def test_an_aborted_item_goes_straight_to_the_next_who_waits() -> None:
    queue = queue_with(b"a")
    held = queue.open(NOW_MS)
    hand = Hand(opens=True)
    queue.park(hand)
    assert held is not None and queue.abort(held, NOW_MS)
    assert [(taken.id, taken.xid, taken.deliveries) for taken in hand.got] == [(held.id, 2, 2)]


def test_a_closed_queue_dismisses_everybody_once_and_confirms_nothing() -> None:
    queue = queue_with(b"a")
    held = queue.open(NOW_MS)
    hands = [Hand(), Hand(peeks=True)]
    for hand in hands:
        queue.park(hand)
    queue.close()
    assert held is not None and not queue.confirm(held) and not queue.abort(held, NOW_MS)
    assert [hand.dismissed for hand in hands] == [1, 1] and not queue.waiters
    assert Confirmed not in map(type, queue.journal.changes)  # type: ignore[attr-defined]


def test_age_is_that_of_the_last_item_removed_and_nothing_before() -> None:
    queue = queue_with(b"a", b"b")
    assert queue.age_ms(NOW_MS + 50) == 0
    queue.remove_head(NOW_MS)
    assert queue.age_ms(NOW_MS + 50) == 50
    assert queue.age_ms(NOW_MS - 50) == 0
    queue.remove_head(NOW_MS)
    assert queue.age_ms(NOW_MS + 50) == 0


def test_what_comes_back_unheard_is_not_counted_as_put_again() -> None:
    queue = queue_with(b"a", b"bc")
    taken = [queue.remove_head(NOW_MS), queue.remove_head(NOW_MS)]
    queue.add(Item(b"d", NOW_MS), NOW_MS)
    queue.put_back([each.item for each in taken if each is not None], NOW_MS)
    assert [item.data for item in queue.line.items()] == [b"a", b"bc", b"d"]
    assert (queue.counters.total_items, queue.counters.put_bytes) == (3, 4)


def test_reads_keep_their_order_when_a_reload_begins_to_time_them_out_and_ends_it() -> None:
    queue = queue_with(b"a", b"b", b"c", b"d")
    a, b, c = (queue.open(NOW_MS) for _ in range(3))
    assert a is not None and b is not None and c is not None
    queue.configure(QueueConfig(open_timeout_ms=100))
    assert queue.extend(a, NOW_MS + 50) and queue.next_due_ms() == NOW_MS + 100
    assert queue.confirm(b) and not queue.confirm(b)
    queue.configure(QueueConfig())
    assert queue.extend(c, NOW_MS + 60) and queue.next_due_ms() == 0
    queue.configure(QueueConfig(open_timeout_ms=100))
    assert list(queue.open_reads.values()) == [a, c] and queue.next_due_ms() == NOW_MS + 150
    assert queue.time_out(NOW_MS + 155) == 1 and list(queue.open_reads) == [c.xid]
    queue.check()


def test_a_run_of_heads_leaves_until_one_bound_is_reached() -> None:
    def run(count: int = 9, size: int = 99, item: int = 9, end: int = 9) -> list[bytes]:
        queue = queue_with(b"a", b"bb", b"ccc", b"dddd")
        found = queue.open_run_for_transfer(count, size, item, end, NOW_MS, False)
        assert list(queue.in_transfer.values()) == found and len(queue.line) == 4 - len(found)
        queue.release_all(found)
        assert not queue.in_transfer and not queue.in_transfer_bytes
        return [taken.item.data for taken in found]

    assert run() == [b"a", b"bb", b"ccc", b"dddd"]
    assert run(count=2) == run(size=3) == run(item=2) == run(end=2) == [b"a", b"bb"]
    assert run(item=0) == run(end=0) == []


def test_no_run_leaves_a_paused_queue_but_for_an_operator_or_holds_what_has_expired() -> None:
    queue = queue_with(b"a", b"b")
    assert queue.add(Item(b"c", NOW_MS, NOW_MS + 1), NOW_MS)
    queue.pause(gets=True, puts=False)
    assert queue.open_run_for_transfer(9, 99, 9, 9, NOW_MS, False) == []
    queue.pause(gets=False, puts=False)
    assert len(queue.open_run_for_transfer(9, 99, 9, 9, NOW_MS + 2, True)) == 2 and not len(queue.line)
