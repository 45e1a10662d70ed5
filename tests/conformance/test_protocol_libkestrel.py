"""Kestrel's conversations once more, on queues in libkestrel's format: a client cannot tell the two apart.

Cases with the same settings share a server, to save time; between them every queue is deleted.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.conformance import cases
from tests.conformance.conversation import Case, Conversation, converse
from tests.conformance.server import Server, serving
from tests.conformance.wire import ExpectingWire

FORMAT = {"default": {"journalFormat": "libkestrel"}}
SHARED = ({}, {"server": {"maxOpenTransactions": 10}}, {"server": {"maxOpenTransactions": 1}})
ALONE = re.compile("stats|status|shutdown|reload|pause|verbosity|flush_all|config")
# What is a byte count of files: the magic of a segment, and eight bytes of id and count more than Kestrel's an item.
SIZES = (("logsize 24", "logsize 32"), ("logsize=24", "logsize=32"), ("\0/\n\0\x05", "\0;\n\0\x05"))
NUMBERED = ("thrift_auto_abort", "thrift_confirm_from_another_connection")  # leases count over a server's life
PATIENCE_S = 60
CASES = cases.load("kestrel/protocol_cases.json")


def in_libkestrel(case: Case) -> Case:
    config = case.get("config", {})
    steps = [dict(step) for step in case["steps"]]
    for step in steps:
        for kestrel, ours in SIZES:
            if "expect_regex" in step:
                step["expect_regex"] = step["expect_regex"].replace(kestrel, ours)
    return {**case, "config": config | {"default": FORMAT["default"] | config.get("default", {})}, "steps": steps}


def needs_its_own_server(case: Case) -> bool:
    actions = {step.get("action", "pause") for step in case["steps"]} - {"pause", "disconnect"}
    if case.get("config", {}) not in SHARED or actions or case["name"] in NUMBERED:
        return True
    return any(ALONE.search(step.get("send", "")) for step in case["steps"])


def named(own: bool) -> list[object]:
    chosen = [in_libkestrel(case) for case in CASES if needs_its_own_server(case) is own]
    return [pytest.param(case, id=case["name"]) for case in chosen]


@pytest.fixture(scope="module")
def shared() -> Iterator[list[Server]]:
    """A server for each of the settings in SHARED."""
    with ExitStack() as stack:
        yield [stack.enter_context(serving(settings | FORMAT, {})) for settings in SHARED]


def delete_all(server: Server) -> None:
    wire = ExpectingWire(server.port("memcache"))
    until = time.monotonic() + PATIENCE_S
    try:
        wire.says(b"stats\r\n")
        found = wire.hears_like(r"(?s)(?P<stats>.*)END\r\n", until, to_the_end=False)
        for name in sorted(set(re.findall(r"STAT queue_(\S+)_open_transactions ", found["stats"].decode("latin-1")))):
            wire.says(f"delete {name}\r\n".encode("latin-1"))
            wire.hears(b"DELETED\r\n", until)
    finally:
        wire.close()


@pytest.mark.parametrize("case", named(own=False))
def test_a_conversation_is_the_same_in_either_format(case: Case, shared: list[Server]) -> None:
    settings = {key: value for key, value in case["config"].items() if key != "default"}
    server = shared[SHARED.index(settings)]
    conversation = Conversation(server, case["config"])
    try:
        conversation.play(case["steps"])
    finally:
        conversation.close()
        delete_all(server)
    server.check_stderr()


@pytest.mark.parametrize("case", named(own=True))
def test_a_conversation_with_settings_of_its_own_is_the_same_in_either_format(case: Case) -> None:
    converse(case)
