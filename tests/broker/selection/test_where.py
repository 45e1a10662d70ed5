"""Terms: each field with what it means and what it does not, and each bad one with what to do."""

from __future__ import annotations

import sys

import pytest

from staniel.broker.selection.where import EXTRA, HASHED_BYTES, BadTerm, Candidate, item_id, parse
from staniel.queues.calendar import EVEN
from staniel.queues.item import Item, item_with
from staniel.queues.past import Why, next_past

A = Item(b'{"user": 7, "text": "caf\xc3\xa9"}', 1_000, 0, 0)


def candidate(item: Item = A, *, position: int = 5, deliveries: int = 2, age_ms: int = 60_000) -> Candidate:
    return Candidate(position, item, deliveries, EVEN, item.added_ms + age_ms)


def holds(term: str, item: Item = A, *, position: int = 5, deliveries: int = 2, age_ms: int = 60_000) -> bool:
    return parse([term]).holds(candidate(item, position=position, deliveries=deliveries, age_ms=age_ms))


@pytest.mark.parametrize(
    "term",
    [
        "position=5",
        "position=0-5",
        "position=5-5",
        "text~caf",
        "text~é",
        'text~"user": 7',
        'regex~"user": (7|8)\\b',
        "regex~(?i)USER",
        "regex~^\\{",
        "age>59s",
        "age>=1m",
        "age<=1m",
        "age=1m",
        "age<61s",
        "size=28B",
        "size<1KB",
        "tries=2",
        "tries>1",
        "tries<=2",
        f"id={item_id(A)}",
        f"id=1-{'0' * 16},{item_id(A)}",
    ],
)
def test_a_term_that_holds(term: str) -> None:
    assert holds(term)


@pytest.mark.parametrize(
    "term",
    [
        "position=4",
        "position=6-9",
        "text~CAF",
        "text~café au lait",
        'regex~"user": 70',
        "regex~user$",
        "age>1m",
        "age<1m",
        "size>28B",
        "size=1KB",
        "tries>2",
        "tries<2",
        "origin=work",
        "reason=dead",
        f"id={item_id(Item(A.data, 1_001, 0, 0))}",
        f"id={item_id(Item(A.data + b' ', 1_000, 0, 0))}",
    ],
)
def test_a_term_that_does_not_hold(term: str) -> None:
    assert not holds(term)


def test_all_terms_must_hold() -> None:
    seen = candidate()
    assert parse(["text~caf", "tries=2"]).holds(seen)
    assert not parse(["text~caf", "tries=3"]).holds(seen)
    assert not parse(["position=0-9", "position=6-20"]).holds(seen)
    assert parse([]).holds(seen)


def test_the_past_of_a_dead_letter() -> None:
    dead = item_with(next_past(Item(b"x", 1, 0, 0), Why.DEAD, "work", 3, "", 2), b"x", 1, 0, 0)
    assert holds("origin=work", dead) and holds("reason=dead", dead)
    assert not holds("origin=mail", dead)


@pytest.mark.parametrize(
    ("term", "told"),
    [
        ("", "is not a term"),
        ("color=red", "is not a term"),
        ("text=x", "expected text~"),
        ("text~", "expected text~"),
        ("regex~(", "not an expression of RE2"),
        ("regex~(?=x)", "not an expression of RE2"),
        ("regex~" + "(a|b){1000}" * 85, "not an expression of RE2"),
        ("regex~(a|b)*a(a|b){200}c", "compiles to 609 instructions, 400 at most"),
        ("regex~" + "a?" * 501, "1002 characters, 1000 at most"),
        ("reason=expired", "expected reason=dead"),
        ("position=5-2", "FIRST before LAST"),
        ("age>", "is not a number"),
        ("age>5", "is not a number"),
        ("age~5s", "expected age with <"),
        ("size>" + "9" * 5000 + "B", "a short number"),
        ("tries>x", "expected a number"),
        ("tries>" + "1" * 19, "expected a number"),
        ("position=a", "expected position="),
        ("position>3", "expected position="),
        ("position=5-", "expected position="),
        ("id=7", "expected ids"),
        ("id>7", "expected id= and a value"),
        ("id=", "expected id= and a value"),
        ("origin=", "expected origin= and a value"),
        ("text~" + "x" * 100_000, "is not a term"),
    ],
)
def test_a_bad_term_says_what_is_expected(term: str, told: str) -> None:
    with pytest.raises(BadTerm) as raised:
        parse([term])
    assert told in str(raised.value)
    assert len(str(raised.value)) < 300


def test_too_many_terms() -> None:
    with pytest.raises(BadTerm, match="more than 20 terms"):
        parse(["tries>0"] * 21)


@pytest.mark.parametrize("terms", [["text~x"] * 5, ["regex~x"] * 2])
def test_payloads_are_not_searched_often(terms: list[str]) -> None:
    with pytest.raises(BadTerm, match="at most 4 text~ and 1 regex~"):
        parse(terms)


def test_without_the_extra_a_regex_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(BadTerm) as raised:
        parse(["regex~x"])
    assert str(raised.value) == EXTRA
    assert parse(["text~user"]).holds(candidate(position=0, deliveries=0, age_ms=0))


def test_an_expression_that_python_would_never_end_takes_no_time() -> None:
    """Linear in the payload: what is counted is that it ends at all."""
    assert not holds("regex~(x+x+)+y", Item(b"x" * 100_000, 1, 0, 0))


def test_the_larger_an_expression_is_the_less_of_a_payload_it_searches() -> None:
    """With 609 instructions on 32 KB one item took a quarter of a second, in which no client was served."""
    payload = b"a" * 5000 + b"c" + b"b" * 200_000
    for count in (1, 10, 40, 120):
        where = parse([f"regex~(a|b)*a(a|b){{{count}}}c"])
        assert 0 < where.regex_bytes * where.regex_size <= 400_000
        assert where.searched_bytes == where.regex_bytes <= 32 << 10
        is_found = where.holds(Candidate(0, Item(payload, 1, 0, 0), 0, EVEN, 1))
        assert is_found == (where.regex_bytes > 5000)
        assert where.cost(len(payload)) == len(payload) + where.regex_bytes * where.regex_size * 36


def test_an_id_sees_both_ends_and_the_length_of_a_long_payload() -> None:
    middle = b"m" * HASHED_BYTES
    data = b"a" * HASHED_BYTES + middle + b"z" * HASHED_BYTES
    others = [b"b" + data[1:], data[:-1] + b"y", data + b"z"]
    ids = {item_id(Item(each, 1, 0, 0)) for each in [data, *others]}
    assert len(ids) == 4
