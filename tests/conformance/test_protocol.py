"""Kestrel's conversations, played against the real server: as they are, and once more with every byte on its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.conformance import cases
from tests.conformance.conversation import converse

CASES = cases.load("kestrel/protocol_cases.json")


def speaks_memcache_only(case: cases.Case) -> bool:
    return all(step.get("proto", "memcache") == "memcache" for step in case["steps"])


WHOLE = [(case["name"], partial(converse, case)) for case in CASES]
IN_BYTES = [
    (f"{case['name']}-bytes", partial(converse, case, byte_by_byte=True))
    for case in CASES
    if speaks_memcache_only(case)
]


@pytest.mark.parametrize("play", cases.params("protocol", WHOLE + IN_BYTES))
def test_a_client_of_kestrel_hears_what_kestrel_says(outcome: Callable[[], None]) -> None:
    outcome()
