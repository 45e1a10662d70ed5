"""The judge of the crash tests finds what it is there to find."""

from __future__ import annotations

import pytest

from tests.crash.ledger import Ledger

A0, A1, A2 = b"A-0 ...", b"A-1 ...", b"A-2 ..."


@pytest.fixture
def ledger() -> Ledger:
    """Three items of one producer, acknowledged."""
    made = Ledger("jobs")
    for item in (A0, A1, A2):
        made.sent(item)
        made.stored(item)
    return made


def test_all_items_once_and_in_order_are_right(ledger: Ledger) -> None:
    assert ledger.check([A0, A1, A2]) == []


def test_a_lost_item_is_found_out(ledger: Ledger) -> None:
    assert ledger.check([A0, A2]) == ["lost: ['A-1'], and only 0 gets were unanswered"]


def test_an_unanswered_get_excuses_one_lost_item(ledger: Ledger) -> None:
    ledger.unanswered_gets = 1
    assert ledger.check([A1, A2]) == []
    assert len(ledger.check([A2])) == 1


def test_an_item_that_is_there_twice_is_found_out(ledger: Ledger) -> None:
    assert ledger.check([A0, A1, A1, A2]) == ["twice: A-1"]


def test_an_invented_item_is_found_out(ledger: Ledger) -> None:
    assert ledger.check([A0, A1, A2, b"A-3 ..."]) == ["invented: A-3"]


def test_a_closed_item_that_comes_back_is_found_out(ledger: Ledger) -> None:
    ledger.gone(A0)
    assert ledger.check([A1, A2]) == []
    assert ledger.check([A0, A1, A2]) == ["came back: A-0"]


def test_an_item_that_stayed_away_once_must_not_come_back(ledger: Ledger) -> None:
    ledger.closing(A0)
    assert ledger.check([A1, A2]) == []
    ledger.settle([A1, A2])
    assert ledger.check([A0, A1, A2]) == ["came back: A-0"]


def test_an_unacknowledged_put_may_be_there_or_not_but_not_both(ledger: Ledger) -> None:
    ledger.sent(b"A-3 ...")
    assert ledger.check([A0, A1, A2]) == ledger.check([A0, A1, A2, b"A-3 ..."]) == []
    ledger.settle([A0, A1, A2, b"A-3 ..."])
    assert len(ledger.check([A0, A1, A2])) == 1


def test_only_what_was_handed_out_may_be_out_of_order(ledger: Ledger) -> None:
    assert ledger.check([A1, A0, A2]) == ["out of order: A-0 behind 1"]
    ledger.opened(A1)
    assert ledger.check([A1, A0, A2]) == []
