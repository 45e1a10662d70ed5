"""The list of what is missing names nothing that no test runs, and the case files are complete."""

from __future__ import annotations

from tests.conformance import cases, test_journal, test_memcached, test_protocol, test_write
from tests.conformance.not_yet import NOT_YET, WAITING_FOR


def test_every_name_that_waits_is_that_of_a_case() -> None:
    assert set(NOT_YET) - cases.KNOWN == set()


def test_no_name_waits_for_two_things_at_once() -> None:
    assert sum(len(names) for names in WAITING_FOR.values()) == len(NOT_YET)


def test_names_of_cases_are_unique() -> None:
    for rows in (test_protocol.CASES, test_journal.CASES, test_write.CASES, test_memcached.CASES):
        names = [case["name"] for case in rows]
        assert len(names) == len(set(names))
