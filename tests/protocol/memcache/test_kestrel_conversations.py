"""Whole conversations with Kestrel, as far as reading goes: what is a set, what is refused, and what closes.

`kestrel_conversations.json`: what each connection sends, and what it then hears (text, or a pattern for all of it). The
state of the queues is not here, so a reply can only be compared where the request alone decides it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from staniel.protocol.limits import Limits
from staniel.protocol.memcache.item_requests import Get, Set
from staniel.protocol.memcache.parser import MemcacheParser
from staniel.protocol.memcache.requests import Dialect, Quit, Request
from staniel.protocol.requests import Invalid

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "kestrel_conversations.json").read_text())

REFUSED_BY_THE_QUEUES = {
    "illegal_name_tilde",
    "illegal_name_get",
    "fanout_bad_child_does_not_break_master",
    "status_down_forbidden",
}
"""Requests that are well formed; the name of a queue or a status is what is wrong with them."""

_FAULT = re.compile(rb"^CLIENT_ERROR", re.MULTILINE)
_STORED = re.compile(rb"^(?:NOT_)?STORED\r$|^SERVER_ERROR\r$", re.MULTILINE)


def read_all(case: dict[str, Any]) -> list[tuple[dict[str, Any], list[Request]]]:
    """Each step with the requests it completes; every connection has a parser of its own."""
    parsers: dict[str, MemcacheParser] = {}
    answered = []
    for step in case["steps"]:
        parser = parsers.setdefault(step["conn"], MemcacheParser(Dialect.KESTREL, Limits()))
        answered.append((step, parser.feed(step["send"].encode("latin-1"))))
    return answered


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_conversation_is_read_as_kestrel_read_it(case: dict[str, Any]) -> None:
    for step, requests in read_all(case):
        assert requests, step
        invalid = [request for request in requests if isinstance(request, Invalid)]
        if invalid:
            check_refusal(step, requests, invalid[0])
        elif case["name"] not in REFUSED_BY_THE_QUEUES:
            check_accepted(step, requests)


def check_refusal(step: dict[str, Any], requests: list[Request], invalid: Invalid) -> None:
    assert requests == [invalid]
    if "expect_regex" in step:
        assert re.fullmatch(step["expect_regex"].encode("latin-1"), invalid.reply)
    else:
        assert invalid.reply == step["expect"].encode("latin-1")
    if step.get("closed"):
        assert invalid.hang_up


def check_accepted(step: dict[str, Any], requests: list[Request]) -> None:
    heard = step.get("expect")
    if heard is None:
        return
    reply = heard.encode("latin-1")
    assert not _FAULT.search(reply)
    kinds = Counter(type(request) for request in requests)
    if kinds[Set] and not kinds[Get]:
        assert len(_STORED.findall(reply)) == kinds[Set]
    if kinds[Get] == len(requests) and reply.endswith(b"END\r\n"):
        assert reply.count(b"END\r\n") == kinds[Get]
    if step.get("closed") and reply == b"":
        assert requests == [Quit()]


def test_the_conversations_hold_refusals_of_both_kinds() -> None:
    refusals = [
        request
        for case in CASES
        for _, requests in read_all(case)
        for request in requests
        if isinstance(request, Invalid)
    ]
    assert Counter(refusal.hang_up for refusal in refusals) == {True: 13, False: 3}
