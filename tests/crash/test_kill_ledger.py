"""The judge of the kill loop finds what it is there to find."""

from __future__ import annotations

import pytest

from staniel.bench.soak.ledger import Ledger, item_for, key_of

A0, A1, A2 = (item_for(b"A-%d" % number, 3) for number in range(3))
B0 = item_for(b"B-0", 0)
ANN, BOB = "Ann", "Bob"


@pytest.fixture
def ledger() -> Ledger:
    """Three items of one producer, acknowledged, in a queue from which they may move on to another."""
    made = Ledger("jobs", "dead")
    for item in (A0, A1, A2):
        made.sent(key_of(item))
        made.stored(key_of(item))
    return made


def check(ledger: Ledger, jobs: list[bytes], dead: list[bytes] | None = None) -> list[str]:
    return ledger.check({"jobs": jobs, "dead": dead or []})


def settle(ledger: Ledger, jobs: list[bytes]) -> None:
    ledger.accept_recovered({"jobs": jobs, "dead": []})


def test_all_items_once_and_in_order_are_right(ledger: Ledger) -> None:
    assert check(ledger, [A0, A1, A2]) == [] and ledger.holds == 3


def test_an_item_may_have_moved_on_and_is_then_in_one_place(ledger: Ledger) -> None:
    assert check(ledger, [A1, A2], [A0]) == []
    assert check(ledger, [A0, A1, A2], [A0]) == ["jobs: A-0 is there twice"]


def test_a_lost_item_is_found_out(ledger: Ledger) -> None:
    assert check(ledger, [A0, A2]) == ["jobs: lost ['A-1'], and only 0 gets were unanswered"]


def test_an_unanswered_get_excuses_one_lost_item(ledger: Ledger) -> None:
    ledger.unanswered_gets = 1
    assert check(ledger, [A1, A2]) == []
    assert len(check(ledger, [A2])) == 1


def test_what_nobody_answered_for_may_be_seen_later_where_not_all_is_seen(ledger: Ledger) -> None:
    for is_all_seen in (False, True):
        ledger.is_all_seen = is_all_seen
        ledger.sent(key_of(B0))
        settle(ledger, [A0, A1, A2])
        assert (check(ledger, [A0, A1, A2, B0]) == []) is not is_all_seen


def test_an_invented_or_damaged_item_is_found_out(ledger: Ledger) -> None:
    assert check(ledger, [A0, A1, A2, B0]) == ["jobs: B-0 was never put, or long ago"]
    assert check(ledger, [A0, A1, A2[:-1] + b"?"]) == ["jobs: A-2 is damaged"]
    assert check(ledger, [A0, A1, A2, b"noise"]) == ["jobs: noise was never put, or long ago", "jobs: noise is damaged"]
    ledger.delivered(A0[:-1], {})
    ledger.delivered(B0, {})
    assert len(ledger.wrong) == 2


def test_an_item_that_comes_after_its_close_was_acknowledged_is_found_out(ledger: Ledger) -> None:
    key = ledger.delivered(A0, {}, ANN)
    ledger.closing(key)
    ledger.closed(key)
    assert ledger.wrong == [] and ledger.holds == 2
    assert check(ledger, [A0, A1, A2]) == ["jobs: A-0 came back"]
    ledger.delivered(A0, {}, BOB)
    assert ledger.wrong == ["jobs: A-0 came again after its close (gone)"]


def test_an_item_comes_again_after_an_abort_and_not_before(ledger: Ledger) -> None:
    key = ledger.delivered(A0, {}, ANN)
    ledger.released(key)
    ledger.delivered(A0, {}, BOB)
    assert ledger.wrong == []
    ledger.delivered(A0, {}, ANN)
    assert ledger.wrong == ["jobs: A-0 was handed to two at a time"]


def test_a_close_that_was_sent_counts_while_the_server_lives_and_is_in_doubt_when_it_is_dead(ledger: Ledger) -> None:
    key = ledger.delivered(A0, {}, ANN)
    ledger.closing(key)
    assert check(ledger, [A1, A2]) == check(ledger, [A0, A1, A2]) == []
    ledger.delivered(A0, {}, BOB)
    assert ledger.wrong == ["jobs: A-0 came again after its close (doubtful)"]


def test_what_stayed_away_once_must_not_come_back_and_what_was_there_must_stay(ledger: Ledger) -> None:
    ledger.sent(key_of(B0))
    ledger.closing(ledger.delivered(A0, {}, ANN))
    settle(ledger, [A1, A2, B0])
    assert check(ledger, [A0, A1, A2, B0]) == ["jobs: A-0 was never put, or long ago"]
    assert check(ledger, [A1, A2]) == ["jobs: lost ['B-0'], and only 0 gets were unanswered"]


def test_what_was_never_handed_out_keeps_the_order_of_its_producer(ledger: Ledger) -> None:
    assert check(ledger, [A1, A0, A2]) == ["jobs: A-0 stands behind 1"]
    newest: dict[bytes, int] = {}
    ledger.delivered(A1, newest)
    ledger.delivered(A0, newest)
    assert ledger.wrong == ["jobs: A-0 came behind 1"]


def test_what_was_handed_out_may_come_back_in_front(ledger: Ledger) -> None:
    newest: dict[bytes, int] = {}
    ledger.released(ledger.delivered(A0, {}, ANN))
    ledger.delivered(A1, newest, BOB)
    ledger.delivered(A0, newest, BOB)
    assert ledger.wrong == []
    assert check(ledger, [A1, A0, A2]) == []
