"""Whole conversations with Kestrel over its text protocol, as far as reading goes: what an answer says of its request.

`text_conversations.json`: what each connection sends, and what it then hears. The state of the queues is not here, so a
reply can only be compared where the request alone decides it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from staniel.protocol.limits import Limits
from staniel.protocol.requests import Invalid
from staniel.protocol.text.parser import TextParser
from staniel.protocol.text.requests import TextMonitor, TextPut, TextRequest

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "text_conversations.json").read_text())
BY_THE_REQUEST_ALONE = re.compile(rb"-(Queue name|Error parsing|Unknown command)")


def read_all(case: dict[str, Any]) -> list[tuple[dict[str, Any], list[TextRequest]]]:
    """Each step with the requests it completes, the bytes fed one by one."""
    parser = TextParser(Limits())
    answered = []
    for step in case["steps"]:
        sent = step["send"].encode("latin-1")
        answered.append((step, [request for byte in sent for request in parser.feed(bytes([byte]))]))
    return answered


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_conversation_is_read_as_kestrel_read_it(case: dict[str, Any]) -> None:
    for step, requests in read_all(case):
        assert requests
        if "expect" not in step:
            assert not any(isinstance(request, Invalid) for request in requests)
            continue
        heard = step["expect"].encode("latin-1").splitlines(keepends=True)
        if any(isinstance(request, TextMonitor) for request in requests):
            assert heard[-1] == b"*\n"
            continue
        for request, reply in zip(requests, heard, strict=True):
            assert isinstance(request, Invalid) == bool(BY_THE_REQUEST_ALONE.match(reply))
            if isinstance(request, Invalid):
                assert request.reply == reply
            if isinstance(request, TextPut) and reply.startswith(b"+"):
                assert reply == b"+%d\n" % len(request.items)


def test_the_conversations_hold_errors_none_of_which_closes() -> None:
    errors = [
        each for case in CASES for _, requests in read_all(case) for each in requests if isinstance(each, Invalid)
    ]
    assert len(errors) == 7
    assert not any(error.hang_up for error in errors)
