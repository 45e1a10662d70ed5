"""The runner notices what is wrong: a case whose expectation has been falsified in one place must fail."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import cases, test_journal, test_write
from tests.conformance.conversation import converse_once, stretched
from tests.conformance.server import Mismatch

STORE = {"conn": "a", "send": "set q 0 0 1\r\nx\r\n", "expect": "STORED\r\n"}
FALSE_STEPS: dict[str, dict[str, Any]] = {
    "another_text": {"send": "get q\r\n", "expect": "VALUE q 0 1\r\ny\r\nEND\r\n"},
    "more_text_than_comes": {"send": "get q\r\n", "expect": "VALUE q 0 1\r\nx\r\nEND\r\nEND\r\n", "timeout_ms": 200},
    "a_pattern_of_the_first_half": {"send": "get q\r\n", "expect_regex": "VALUE q 0 1\r\n", "timeout_ms": 200},
    "silence": {"send": "get q\r\n", "expect": "", "timeout_ms": 200},
    "an_end_that_does_not_come": {"expect": "", "expect_closed": True, "timeout_ms": 200},
    "an_end_too_soon": {"send": "get q\r\n", "expect": "VALUE q 0 1\r\n", "expect_closed": True},
    "a_hang_up_called_silence": {"send": "quit\r\n", "expect": "", "timeout_ms": 500},
    "too_early": {"send": "version\r\n", "expect": "VERSION ", "min_ms": 500},
    "too_late": {"send": "get r/t=200\r\n", "expect": "END\r\n", "max_ms": 50},
}
FALSE_FIELDS = [
    ("tentative_two_first_confirmed", "items", ["?"]),
    ("tentative_pending_comes_back", "open_after_recovery", 1),
    ("op9_two_pending_lowest_id_first", "unremoved_xids", [1, 2]),
    ("op9_two_pending_lowest_id_first", "unremoved_xids", []),
    ("save_xid_sets_counter", "next_xid", 1),
    ("torn_addx_one_byte_short", "valid_prefix", {"q": 43}),
    ("torn_addx_one_byte_short", "valid_prefix", {}),
    ("files_other_queues_untouched", "queues", ["q"]),
    ("pack_older_than_some", "files_deleted", ["q.1", "q.2.pack", "q.3"]),
    ("pack_older_than_some", "files_present", ["q.2", "q.4"]),
    ("pack_older_than_some", "renamed", {"q.1": "q.2"}),
]
FALSE_FILES: dict[str, dict[str, Any]] = {
    "another_byte": {"expect_files": {"q": "0211000000????????????????000000000000000079"}},
    "a_byte_more": {"expect_files": {"q": "0211000000????????????????00000000000000007801"}},
    "another_file": {"expect_files": {"q": "0211000000????????????????000000000000000078", "r": ""}},
    "a_file_that_is_there": {"absent": ["q"]},
    "another_state": {"expect_state": {"q": {"items": [], "open": {"1": "x"}}}},
    "fewer_bytes": {"expect_state": {"q": {"items": ["x"], "open": {}, "max_total_bytes": 21}}},
    "another_time": {"times": [{"file": "q", "record": 0, "expiry_minus_add_ms": [1, 9]}]},
}
FILES = {"q": bytes.fromhex("0211000000c809ae2e01000000000000000000000078")}


@pytest.mark.parametrize("step", [pytest.param(step, id=name) for name, step in FALSE_STEPS.items()])
def test_a_conversation_that_goes_otherwise_fails(step: dict[str, Any]) -> None:
    play = partial(converse_once, {"steps": [STORE, {"conn": "a", **step}]}, "kestrel", byte_by_byte=False)
    with pytest.raises(Mismatch):
        play()


def test_a_conversation_is_stretched_by_its_durations_alone() -> None:
    server, pause = {"statusChangeGracePeriod": 600, "maxOpenTransactions": 1}, {"action": "pause", "pause_ms": 80}
    case = {"config": {"server": server, "queues": {"q": {"maxAge": 5, "maxItems": 5}}}, "steps": [STORE, pause]}
    longer = stretched(case, 4)
    assert longer["config"]["server"] == {"statusChangeGracePeriod": 2400, "maxOpenTransactions": 1}
    assert longer["config"]["queues"] == {"q": {"maxAge": 20, "maxItems": 5}}
    assert longer["steps"] == [STORE, {"action": "pause", "pause_ms": 320}]


@pytest.mark.parametrize(("name", "field", "value"), FALSE_FIELDS)
def test_a_recovery_that_ends_otherwise_fails(name: str, field: str, value: object, tmp_path: Path) -> None:
    case = next(case for case in test_journal.CASES if case["name"] == name)
    with pytest.raises(Mismatch):
        test_journal.check_recovery({**case, "expect": {**case["expect"], field: value}}, tmp_path)


@pytest.mark.parametrize("wanted", [pytest.param(wanted, id=name) for name, wanted in FALSE_FILES.items()])
def test_files_that_say_otherwise_fail(wanted: cases.Case) -> None:
    with pytest.raises(Mismatch):
        test_write.check({"compat": "documented", **wanted}, FILES)


def test_files_that_say_what_they_should_pass() -> None:
    state = {"q": {"items": ["x"], "open": {}, "max_total_bytes": 22, "max_files": 1}}
    mask = {"q": "0211000000????????????????000000000000000078"}
    test_write.check({"compat": "documented", "expect_files": mask, "expect_state": state}, FILES)
