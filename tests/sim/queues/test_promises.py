"""What a crash has left, judged by hand-made histories: each kind of violation is found, and what is allowed is not."""

from __future__ import annotations

import pytest

from staniel.queues.config import SYNC_OS, QueueConfig
from staniel.queues.interfaces import NoJournal
from staniel.queues.queue import Queue
from staniel.sim.disk.disk import Disk
from staniel.sim.queues.checker import Checker
from staniel.sim.queues.model import SWEPT, Fact, Move, QueueModel, Record, Verb
from staniel.sim.queues.promises import Accident, acknowledged, acknowledgement_of, check, committed, synced
from staniel.sim.queues.recorder import watch
from staniel.sim.violations import Kind, Violation
from staniel.sim.world import START_MS, World


def record(data: str) -> Record:
    return Record(data.encode(), 1, 0)


def model(*steps: str, name: str = "q", sync_ms: int = 0, keep_journal: bool = True) -> QueueModel:
    """A history: "+a" adds, "-" removes the head, "(5" opens it as 5, ")5" confirms, "<5" aborts, "x" deletes."""
    found = QueueModel(name, [])
    config = QueueConfig(sync_ms=sync_ms, keep_journal=keep_journal)
    found.add_queue(Queue(name, config, NoJournal(), 1))
    verbs = {"+": Verb.ADD, "-": Verb.REMOVE, "(": Verb.OPEN, ")": Verb.CONFIRM, "<": Verb.ABORT}
    for step in steps:
        if step == "x":
            found.end()
        elif step[0] == "+":
            found.apply(Fact(Verb.ADD, 0, record(step[1:])))
        else:
            found.apply(Fact(verbs[step[0]], int(step[1:] or 0)))
    return found


def answered(history: QueueModel) -> QueueModel:
    acknowledged(acknowledgement_of(history))
    return history


def verdict(history: QueueModel, found: str, accident: Accident = Accident.POWER) -> Kind | None:
    items = {history.name: [data.encode() for data in found.split()]} if found else {}
    try:
        check({history.name: history}, items, accident)
    except Violation as violation:
        return violation.kind
    return None


def test_every_state_from_the_last_acknowledged_one_on_is_allowed() -> None:
    history = answered(model("+a", "+b"))
    history.apply(Fact(Verb.ADD, 0, record("c")))
    history.apply(Fact(Verb.REMOVE))
    assert [verdict(history, found) for found in ("a b", "a b c", "b c")] == [None, None, None]
    assert verdict(history, "a") is Kind.LOST
    assert verdict(history, "b") is Kind.NO_PREFIX


def test_an_item_that_nobody_put_is_invented() -> None:
    assert verdict(answered(model("+a")), "a z") is Kind.INVENTED
    assert verdict(QueueModel("q", []), "z") is Kind.INVENTED
    with pytest.raises(Violation):
        check({}, {"q": [b"z"]}, Accident.KILL)


def test_an_item_that_is_there_twice_is_duplicated() -> None:
    assert verdict(answered(model("+a")), "a a") is Kind.DUPLICATED


def test_an_item_whose_close_was_acknowledged_comes_again() -> None:
    assert verdict(answered(model("+a", "+b", "(1", ")1")), "a b") is Kind.REDELIVERED


def test_the_same_items_in_another_order_are_out_of_order() -> None:
    assert verdict(answered(model("+a", "+b")), "b a") is Kind.ORDER


def test_open_reads_go_back_to_the_head_the_oldest_first() -> None:
    history = answered(model("+a", "+b", "+c", "(1", "(2"))
    assert verdict(history, "a b c") is None
    assert verdict(history, "b a c") is Kind.ORDER


def test_a_later_change_without_an_earlier_one_is_no_prefix() -> None:
    history = model("+a", "+b", "+c", sync_ms=SYNC_OS)
    assert verdict(history, "a c") is Kind.NO_PREFIX
    assert verdict(history, "a b") is None


def test_what_is_left_to_the_system_may_go_with_the_power_but_not_with_the_process() -> None:
    history = answered(model("+a", sync_ms=SYNC_OS))
    assert verdict(history, "", Accident.POWER) is None
    assert verdict(history, "", Accident.KILL) is Kind.LOST


def test_a_duration_that_is_over_is_a_promise() -> None:
    history = model("+a", sync_ms=50)
    committed(history, 1000)
    synced(history, 1049)
    assert verdict(history, "") is None
    synced(history, 1050)
    assert verdict(history, "") is Kind.LOST


def test_a_clean_stop_loses_nothing_whatever_the_policy() -> None:
    assert verdict(model("+a", sync_ms=SYNC_OS), "", Accident.STOP) is Kind.LOST


def test_a_queue_whose_files_are_being_removed_is_whole_or_gone() -> None:
    history = answered(model("+a", "+b"))
    assert verdict(history, "") is Kind.LOST
    history.is_being_removed = True
    assert [verdict(history, found) for found in ("a b", "", "b")] == [None, None, Kind.LOST]


def test_a_removal_says_that_it_is_under_way_while_files_go() -> None:
    disk = Disk()
    disk.make_folder("s")
    world = World('default.sync_journal = "always"', disk, START_MS)
    checker = Checker({}, {})
    watch(world.broker, checker)
    queue = world.broker.queues.make("q", START_MS)
    seen: list[tuple[str, bool]] = []
    disk.before_step = lambda: seen.append((disk.log[-1].verb, checker.model("q").is_being_removed))
    world.broker.spool.erase(queue.journal, START_MS)
    assert seen and all(is_under_way for _, is_under_way in seen)
    assert not checker.model("q").is_being_removed


def test_of_an_item_whose_life_has_ended_not_even_its_place_must_be_left() -> None:
    history = QueueModel("q", [Record(b"old", 1, 50), Record(b"new", 1, 500)])
    history.add_queue(Queue("q", QueueConfig(sync_ms=0), NoJournal(), 1))
    for found, is_allowed in (([b"old", b"new"], True), ([b"new"], True), ([b"old"], False)):
        if is_allowed:
            check({"q": history}, {"q": found}, Accident.POWER, now_ms=100)
        else:
            with pytest.raises(Violation):
                check({"q": history}, {"q": found}, Accident.POWER, now_ms=100)


def test_a_queue_without_a_journal_comes_back_empty() -> None:
    history = answered(model("+a", keep_journal=False))
    assert verdict(history, "") is None
    assert verdict(history, "a") is Kind.INVENTED


def test_a_delete_that_was_not_acknowledged_leaves_everything_or_nothing() -> None:
    history = answered(model("+a", "+b", "+c", "-"))
    history.end()
    assert [verdict(history, found) for found in ("", "b c")] == [None, None]
    assert [verdict(history, found) for found in ("b", "c")] == [Kind.NO_PREFIX, Kind.NO_PREFIX]
    assert verdict(history, "a b c") is Kind.REDELIVERED
    answered(history)
    assert verdict(model("+a", "x"), "a") is None


def moving(source_left: bool, target_arrived: bool) -> Kind | None:
    source, target = answered(model("+a")), model("+a", name="t")
    source.now.ready[0].moved_to = Move("t", 0)
    found = {"q": [b"a"] if source_left is False else [], "t": [b"a"] if target_arrived else []}
    try:
        check({"q": source, "t": target}, found, Accident.POWER)
    except Violation as violation:
        return violation.kind
    return None


def test_an_item_on_its_way_is_in_one_of_the_two_queues() -> None:
    assert moving(source_left=False, target_arrived=False) is None
    assert moving(source_left=True, target_arrived=True) is None
    assert moving(source_left=True, target_arrived=False) is Kind.LOST
    assert moving(source_left=False, target_arrived=True) is Kind.DUPLICATED


def test_what_a_restart_has_found_is_the_next_lifes_beginning() -> None:
    history = model("+a", "+b", "(1", sync_ms=SYNC_OS)
    bases = check({"q": history}, {"q": [b"a"]}, Accident.POWER)
    assert [each.data for each in bases["q"]] == [b"a"]


def test_an_item_of_which_the_place_is_left_is_over_whatever_the_clock_says_then() -> None:
    history = answered(model("+a", "+b"))
    history.facts[0].record.expires_ms = 10  # type: ignore[union-attr]
    left, other = check({"q": history}, {"q": [SWEPT, b"b"]}, Accident.KILL, now_ms=11)["q"]
    assert left.is_over(9) and not other.is_over(11)


def equal_items(found: str, target: str) -> Kind | None:
    """Judge two equal items and a later one: the first has a copy in another queue, the removal of the second need
    not have survived.
    """
    source, other = answered(model("+a", "+a", "+b", "(1", sync_ms=SYNC_OS)), answered(model("+a", name="t"))
    source.promised_after_power_loss = len(source.facts)
    source.now.open[1].moved_to = Move("t", 0)
    source.apply(Fact(Verb.REMOVE))
    try:
        check({"q": source, "t": other}, {"q": found.encode().split(), "t": target.encode().split()}, Accident.POWER)
    except Violation as violation:
        return violation.kind
    return None


def test_of_two_equal_items_either_may_be_the_one_that_has_left() -> None:
    assert equal_items("b", "a") is None  # the removal is there, and recovery has removed the first
    assert equal_items("a b", "a") is None  # the removal is lost, and recovery has removed the first
    assert equal_items("a a b", "a") is Kind.DUPLICATED
    assert equal_items("", "a") is Kind.LOST
    assert equal_items("a", "a") is Kind.LOST


def test_of_two_equal_items_the_one_that_has_expired_may_be_missing() -> None:
    history = QueueModel("q", [Record(b"same", 1, 50), Record(b"same", 1, 500)])
    history.add_queue(Queue("q", QueueConfig(sync_ms=0), NoJournal(), 1))
    (left,) = check({"q": history}, {"q": [b"same"]}, Accident.POWER, now_ms=100)["q"]
    assert left.expires_ms == 500
    with pytest.raises(Violation):
        check({"q": history}, {}, Accident.POWER, now_ms=100)
