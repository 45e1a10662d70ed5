"""What today's memcached clients hear, played against the real server: whole, and with every byte on its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.conformance import cases
from tests.conformance.conversation import converse

FILES = sorted(path.name for path in (cases.HERE / "memcached").glob("*.json"))
CASES = [case for name in FILES for case in cases.load(f"memcached/{name}")]
WHOLE = [(case["name"], partial(converse, case, "memcached")) for case in CASES]
IN_BYTES = [(f"{case['name']}-bytes", partial(converse, case, "memcached", byte_by_byte=True)) for case in CASES]


@pytest.mark.parametrize("play", cases.params("memcached", WHOLE + IN_BYTES))
def test_a_memcached_client_hears_what_memcached_would_say(outcome: Callable[[], None]) -> None:
    outcome()


def test_a_clients_mistake_is_never_called_the_servers() -> None:
    """A pause is the operator's doing, and the only one here."""
    expected = [str(step.get("expect", step.get("expect_regex", ""))) for case in CASES for step in case["steps"]]
    assert expected and not [text for text in expected if "SERVER_ERROR" in text.replace("SERVER_ERROR puts to q", "")]
