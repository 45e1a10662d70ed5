"""What the checker says of histories that are made by hand: each kind of violation is found while it happens."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from staniel.queues.changes import Aborted, Added, Change, Confirmed, Opened, Removed
from staniel.queues.config import QueueConfig
from staniel.queues.counters import CHANGES_COUNTED
from staniel.queues.interfaces import NoJournal
from staniel.queues.item import Item
from staniel.queues.past import Why, next_past
from staniel.queues.queue import Queue
from staniel.sim.queues.checker import Checker, audit, audit_stats
from staniel.sim.queues.conversation import Answer, QueueConversation, Request, Want
from staniel.sim.queues.model import Fact, Reading, Record, Verb
from staniel.sim.violations import Kind, Violation


class Somebody:
    """A client that only says what it is told to say."""

    def __init__(self, checker: Checker, name: str) -> None:
        self.checker = checker
        self.name = name
        self.held: dict[str, deque[Reading]] = {}
        self.is_leaving = self.has_delivery = False
        self.unanswered: deque[Request] = deque()
        checker.clients.append(self)

    def asks(self, want: Want, *items: str, queue: str = "q", **more: str) -> Request:
        ask = Request(want, queue, want.value.encode(), tuple(item.encode() for item in items), **more)  # type: ignore[arg-type]
        self.checker.on_request(self.name, ask)
        self.unanswered.append(ask)
        return ask

    def hears(self, end: str, *items: str) -> None:
        ask = self.unanswered.popleft()
        self.checker.on_answer(self, self.name, Answer(ask, [(ask.queue, item.encode()) for item in items], end))


class Scene:
    """A checker, a queue that says what it is told to say, and two clients."""

    def __init__(self, **settings: object) -> None:
        self.checker = Checker({}, {})
        self.queue = Queue("q", QueueConfig(**settings), NoJournal(), 1)  # type: ignore[arg-type]
        self.checker.begins(self.queue)
        self.one, self.two = Somebody(self.checker, "one"), Somebody(self.checker, "two")

    def states(self, *changes: Change) -> None:
        for change in changes:
            self.checker.states(self.queue, change)

    def put(self, *items: str) -> Scene:
        for item in items:
            self.one.asks(Want.PUT, item)
            self.states(added(item))
            self.one.hears("STORED")
        return self

    def open(self, who: Somebody, xid: int, item: str) -> None:
        who.asks(Want.OPEN)
        self.states(Opened(0, xid))
        who.hears("END", item)


def added(item: str) -> Added:
    return Added(Item(item.encode(), 1))


def counters(*changes: type[Change]) -> list[str]:
    """The lines of the counters after these changes."""
    return [f"queue_q_{name} {changes.count(change)}" for name, change in CHANGES_COUNTED.items()]


def test_an_ordinary_history_is_fine() -> None:
    scene = Scene().put("a", "b", "c")
    scene.open(scene.one, 1, "a")
    scene.open(scene.two, 2, "b")
    scene.one.asks(Want.CLOSE)
    scene.states(Confirmed(0, 1))
    scene.one.hears("END")
    scene.two.asks(Want.ABORT)
    scene.states(Aborted(0, 2))
    scene.two.hears("END")
    scene.one.asks(Want.GET)
    scene.states(Removed(0))
    scene.one.hears("END", "b")
    scene.checker.check_turn()


def stored_and_not_recorded(scene: Scene) -> None:
    scene.one.asks(Want.PUT, "a")
    scene.one.hears("STORED")


def refused_and_recorded(scene: Scene) -> None:
    scene.one.asks(Want.PUT, "a")
    scene.states(added("a"))
    scene.one.hears("NOT_STORED")


def nobodys_item(scene: Scene) -> None:
    scene.states(added("z"))


def added_once_more(scene: Scene) -> None:
    scene.put("a").states(added("a"))


def gone_without_a_reader(scene: Scene) -> None:
    scene.put("a").states(Removed(0))
    scene.checker.check_turn()


def open_and_nobody_knows(scene: Scene) -> None:
    scene.put("a").states(Opened(0, 1))
    scene.checker.check_turn()


def closed_without_a_wish(scene: Scene) -> None:
    scene.put("a").open(scene.one, 1, "a")
    scene.states(Confirmed(0, 1))


def closed_and_not_recorded(scene: Scene) -> None:
    scene.put("a").open(scene.one, 1, "a")
    scene.one.asks(Want.CLOSE)
    scene.one.hears("END")


def confirmed_twice(scene: Scene) -> None:
    scene.put("a").open(scene.one, 1, "a")
    scene.one.asks(Want.CLOSE)
    scene.states(Confirmed(0, 1), Confirmed(0, 1))


def back_without_a_cause(scene: Scene) -> None:
    scene.put("a").open(scene.one, 1, "a")
    scene.states(Aborted(0, 1))


def out_of_order(scene: Scene) -> None:
    scene.put("a", "b").one.asks(Want.GET)
    scene.states(Removed(0))
    scene.one.hears("END", "b")


def held_by_two(scene: Scene) -> None:
    scene.put("a", "b").open(scene.one, 1, "a")
    scene.open(scene.two, 2, "a")


def shown_again_after_its_close(scene: Scene) -> None:
    scene.put("a", "b").open(scene.one, 1, "a")
    scene.one.asks(Want.CLOSE)
    scene.states(Confirmed(0, 1))
    scene.one.hears("END")
    scene.open(scene.two, 2, "a")


def shown_and_never_put(scene: Scene) -> None:
    scene.put("a").open(scene.one, 1, "z")


def peeked_and_gone(scene: Scene) -> None:
    scene.put("a").one.asks(Want.GET)
    scene.states(Removed(0))
    scene.one.hears("END", "a")
    scene.checker.check_turn()
    scene.one.asks(Want.PEEK)
    scene.one.hears("END", "a")


def deleted_without_a_wish(scene: Scene) -> None:
    scene.put("a").checker.ends(scene.queue)


def taken_from_an_empty_line(scene: Scene) -> None:
    scene.states(Removed(0))


BAD: list[tuple[Callable[[Scene], None], Kind]] = [
    (stored_and_not_recorded, Kind.LOST),
    (refused_and_recorded, Kind.INVENTED),
    (nobodys_item, Kind.INVENTED),
    (added_once_more, Kind.DUPLICATED),
    (gone_without_a_reader, Kind.LOST),
    (open_and_nobody_knows, Kind.LOST),
    (closed_without_a_wish, Kind.LOST),
    (closed_and_not_recorded, Kind.REDELIVERED),
    (confirmed_twice, Kind.TWICE),
    (back_without_a_cause, Kind.DUPLICATED),
    (out_of_order, Kind.ORDER),
    (held_by_two, Kind.TWO_HOLDERS),
    (shown_again_after_its_close, Kind.REDELIVERED),
    (shown_and_never_put, Kind.INVENTED),
    (peeked_and_gone, Kind.REDELIVERED),
    (deleted_without_a_wish, Kind.LOST),
    (taken_from_an_empty_line, Kind.DUPLICATED),
]


@pytest.mark.parametrize(("history", "kind"), BAD, ids=lambda value: getattr(value, "__name__", ""))
def test_a_bad_history_is_found(history: Callable[[Scene], None], kind: Kind) -> None:
    with pytest.raises(Violation) as found:
        history(Scene())
    assert found.value.kind is kind


def test_what_expires_is_dropped_for_a_limit_or_flushed_needs_no_reader() -> None:
    expiring = Scene(max_age_ms=10).put("a")
    expiring.checker.now_ms = 100
    expiring.states(Removed(0))
    expiring.checker.check_turn()
    full = Scene(max_items=1, discard_old_when_full=True).put("a")
    full.one.asks(Want.PUT, "b")
    full.states(Removed(0), added("b"))
    full.one.hears("STORED")
    full.checker.check_turn()
    flushed = Scene().put("a")
    flushed.one.asks(Want.FLUSH)
    flushed.states(Removed(0))
    flushed.one.hears("END")
    flushed.checker.check_turn()


def test_an_item_goes_back_when_its_time_is_over_and_not_before() -> None:
    scene = Scene(open_timeout_ms=50).put("a")
    scene.open(scene.one, 1, "a")
    scene.checker.now_ms = 49
    with pytest.raises(Violation):
        scene.states(Aborted(0, 1))
    late = Scene(open_timeout_ms=50).put("a")
    late.open(late.one, 1, "a")
    late.checker.now_ms = 50
    late.states(Aborted(0, 1))


def test_a_miss_with_something_there_is_a_loss() -> None:
    scene = Scene().put("a")
    with pytest.raises(Violation) as found:
        audit(scene.checker.models["q"], Answer(Request(Want.GET, "q", b""), [], "END"), 1)
    assert found.value.kind is Kind.LOST


def test_a_peek_at_another_than_the_head_is_out_of_order() -> None:
    scene = Scene().put("a", "b")
    audit(scene.checker.models["q"], Answer(Request(Want.PEEK, "q", b""), [("q", b"a")], "END"), 1)
    with pytest.raises(Violation) as found:
        audit(scene.checker.models["q"], Answer(Request(Want.PEEK, "q", b""), [("q", b"b")], "END"), 1)
    assert found.value.kind is Kind.ORDER


@pytest.mark.parametrize("line", ["queue_q_items 3", "queue_q_bytes 4", "queue_q_total_items 1"])
def test_statistics_that_the_model_does_not_know_are_found(line: str) -> None:
    scene = Scene().put("a", "bb")
    right = ["queue_q_items 2", "queue_q_bytes 3", "queue_q_open_transactions 0", *counters(Added, Added)]
    ask = Request(Want.STATS, "", b"stats\r\n")
    audit_stats(scene.checker.models, Answer(ask, [], "END", right), 0)
    key = line.partition(" ")[0]
    wrong = [line if each.startswith(f"{key} ") else each for each in right]
    with pytest.raises(Violation) as found:
        audit_stats(scene.checker.models, Answer(ask, [], "END", wrong), 0)
    assert found.value.kind is Kind.STATISTICS


@pytest.mark.parametrize("name", CHANGES_COUNTED)
def test_each_counter_of_a_change_is_compared_with_the_changes(name: str) -> None:
    scene = Scene().put("a")
    scene.open(scene.one, 1, "a")
    scene.one.asks(Want.ABORT)
    scene.states(Aborted(0, 1))
    right = ["queue_q_items 1", "queue_q_bytes 1", "queue_q_open_transactions 0", *counters(Added, Opened, Aborted)]
    ask = Request(Want.STATS, "", b"stats\r\n")
    audit_stats(scene.checker.models, Answer(ask, [], "END", right), 0)
    with pytest.raises(Violation) as found:
        audit_stats(scene.checker.models, Answer(ask, [], "END", [*right, f"queue_q_{name} 9"]), 0)
    assert found.value.kind is Kind.STATISTICS and name in str(found.value)


def test_statistics_may_be_of_a_queue_that_was_deleted_and_made_again_since_they_were_asked_for() -> None:
    scene = Scene()
    before = scene.one.asks(Want.STATS, queue="")
    scene.two.asks(Want.DELETE)
    scene.checker.ends(scene.queue)
    scene.queue = Queue("q", QueueConfig(), NoJournal(), 1)
    scene.checker.begins(scene.queue)
    scene.two.unanswered.clear()
    after = scene.two.asks(Want.STATS, queue="")
    scene.two.asks(Want.PUT, "a")
    scene.states(added("a"))
    old = ["queue_q_items 0", "queue_q_bytes 0", "queue_q_open_transactions 0", *counters()]
    audit_stats(scene.checker.models, Answer(before, [], "END", old), 0)
    with pytest.raises(Violation) as found:
        audit_stats(scene.checker.models, Answer(after, [], "END", old), 0)
    assert found.value.kind is Kind.STATISTICS


def test_an_answer_to_nothing_is_noticed() -> None:
    with pytest.raises(ValueError, match="answer to nothing"):
        QueueConversation(is_text=False).feed(b"STORED\r\n")
    talk = QueueConversation(is_text=False)
    talk.expect(Request(Want.PUT, "q", b"set q 0 0 1\r\na\r\n"))
    with pytest.raises(ValueError, match="no answer"):
        talk.feed(b"VALUE q 0 1\r\na\r\nEND\r\n")


def test_answers_are_understood_in_any_pieces() -> None:
    data = b"STORED\r\nVALUE q/open 0 3\r\na\r\n\r\nEND\r\nVALUE m 0 1\r\nx\r\nEND\r\nEND\r\n"
    asks = [Request(Want.PUT, "q", b""), Request(Want.OPEN, "q", b""), Request(Want.MONITOR, "m", b"")]
    for size in range(1, len(data) + 1):
        talk = QueueConversation(is_text=False)
        for ask in asks:
            talk.expect(ask)
        parts = [part for at in range(0, len(data), size) for part in talk.feed(data[at : at + size])]
        shown = [(part.request.want, [item for _, item in part.items], part.end) for part in parts]
        assert shown == [
            (Want.PUT, [], "STORED"),
            (Want.OPEN, [b"a\r\n"], "END"),
            (Want.MONITOR, [b"x"], ""),
            (Want.MONITOR, [], "END"),
        ]


@pytest.mark.parametrize("older_ms", [1, 2])
def test_of_two_equal_items_that_leave_a_queue_the_copy_is_of_the_one_whose_past_it_has(older_ms: int) -> None:
    scene = Scene(dead_letter_queue="dl", max_deliveries=1)
    scene.checker.begins(Queue("dl", QueueConfig(), NoJournal(), 1))
    source, target = scene.checker.models["q"], scene.checker.models["dl"]
    for xid, put_ms in ((1, older_ms), (2, 3 - older_ms)):
        record = source.now.open[xid] = Record(b"x", put_ms, 0, first_put_ms=put_ms)
        source.readings[xid] = Reading(record, xid, 0)
    past = next_past(Item(b"x", 1), Why.DEAD, "q", 1, "", 0)
    scene.checker._moved(target, Record(b"x", 5, 0, past=past, first_put_ms=1))
    assert [each.first_put_ms for each in source.now.open.values() if each.moved_to is not None] == [1]


def test_which_of_two_equal_items_of_two_queues_has_moved_is_known_when_one_of_them_leaves() -> None:
    scene = Scene()
    checker, queue = scene.checker, scene.queue
    for name in ("other", "to"):
        checker.begins(Queue(name, QueueConfig(), NoJournal(), 1))
    records = []
    for name in ("q", "other"):
        checker.goes_on(name, "to")
        model = checker.models[name]
        record = model.now.open[1] = Record(b"x", 1, 0)
        model.readings[1] = Reading(record, 1, 0)
        records.append(record)
    checker._moved(checker.models["to"], Record(b"x", 5, 0))
    taken, left = sorted(records, key=lambda each: each.moved_to is None)
    assert taken.moved_to is not None and left.moved_to is None
    assert left is records[0], "it was taken from the other one"
    checker._ended(checker.models["q"], queue, Fact(Verb.CONFIRM, xid=1), Reading(left, 1, 0))
    assert left.moved_to is not None and taken.moved_to is None
    with pytest.raises(Violation):
        checker._ended(checker.models["other"], queue, Fact(Verb.CONFIRM, xid=1), Reading(taken, 1, 0))


def test_an_item_that_was_dropped_beside_a_move_of_a_client_that_left_does_not_come_back() -> None:
    scene = Scene(max_items=1, discard_old_when_full=True).put("y")
    scene.two.asks(Want.MOVE, target="to")
    scene.one.asks(Want.PUT, "z")
    scene.states(added("z"), Removed(0))
    scene.checker.on_leave(scene.two)
    assert scene.checker.unheard == []


def test_an_item_that_was_removed_for_a_client_that_left_may_come_back() -> None:
    scene = Scene().put("y")
    scene.two.asks(Want.GET)
    scene.states(Removed(0))
    scene.checker.on_leave(scene.two)
    assert scene.checker.unheard == [("q", b"y")]
