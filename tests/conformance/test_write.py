"""What the server writes, read from the disk while it runs: byte by byte where the format leaves no choice, and as a
state through the judge where it does.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial

import pytest

from tests.conformance import cases, replay
from tests.conformance.conversation import Conversation
from tests.conformance.server import Mismatch, Server, serving

CASES = cases.load("kestrel/write_cases.json")
# Where the bytes may differ, as long as they replay to the same state.
FREE_TO_REWRITE = {"documented-or-rewritten", "kestrel-exact"}
SETTLE_S = 60.0  # a disconnect is nobody's reply: its records may still be on their way

Files = dict[str, bytes]


def write(case: cases.Case) -> None:
    with serving(case["config"], case.get("files", {})) as server:
        conversation = Conversation(server, case["config"])
        try:
            conversation.play(case["steps"])
            check_soon(case, server)
        finally:
            conversation.close()


def check_soon(case: cases.Case, server: Server) -> None:
    """The files are right by now, or will be in a moment."""
    until = time.monotonic() + SETTLE_S
    while True:
        try:
            return check(case, server.files())
        except Mismatch:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def check(case: cases.Case, files: Files) -> None:
    for name in case.get("absent", ()):
        if name in files:
            raise Mismatch(f"file {name} is still there")
    for wanted in case.get("times", ()):
        check_time(wanted, files)
    states = case.get("expect_state", {})
    for queue, state in states.items():
        check_state(queue, state, files)
    if not (states and case["compat"] in FREE_TO_REWRITE):
        check_bytes(case, files)


def check_bytes(case: cases.Case, files: Files) -> None:
    """Every file that a case names, and no other."""
    if "expect_files" not in case:
        return
    names = {file_called(name, files): mask for name, mask in case["expect_files"].items()}
    if set(names) != set(files):
        raise Mismatch(f"files {sorted(files)}, expected {sorted(names)}")
    for name, mask in names.items():
        if not matches(mask, files[name]):
            raise Mismatch(f"{name} holds {files[name].hex()}, expected {mask}")


def file_called(name: str, files: Files) -> str:
    """`q.@2` is the second archive of q; any other name is itself."""
    queue, _, place = name.partition(".@")
    if not place:
        return name
    archives = [each for each in replay.files_of(queue, files) if each != queue]
    return archives[int(place) - 1] if len(archives) >= int(place) else name


def matches(mask: str, content: bytes) -> bool:
    return re.fullmatch(mask.replace("??", "[0-9a-f]{2}"), content.hex()) is not None


def check_state(queue: str, wanted: cases.Case, files: Files) -> None:
    state = replay.replay(queue, files)
    items = [record.data.decode("latin-1") for record in state.items]
    opened = {str(xid): record.data.decode("latin-1") for xid, record in state.open.items()}
    if (items, opened) != (wanted["items"], wanted["open"]):
        raise Mismatch(f"{queue} replays to {items}, open {opened}; expected {wanted['items']}, open {wanted['open']}")
    mine = replay.files_of(queue, files)
    total_bytes = sum(len(files[name]) for name in mine)
    if total_bytes > wanted.get("max_total_bytes", total_bytes):
        raise Mismatch(f"{queue} takes {total_bytes} bytes, at most {wanted['max_total_bytes']} expected")
    if len(mine) > wanted.get("max_files", len(mine)):
        raise Mismatch(f"{queue} has the files {mine}, at most {wanted['max_files']} expected")


def check_time(wanted: cases.Case, files: Files) -> None:
    records, _ = replay.read_file(files.get(wanted["file"], b""))
    if len(records) <= wanted["record"]:
        raise Mismatch(f"{wanted['file']} has {len(records)} records only")
    record = records[wanted["record"]]
    least_ms, most_ms = wanted["expiry_minus_add_ms"]
    if not least_ms <= record.expires_ms - record.added_ms <= most_ms:
        raise Mismatch(f"{wanted['file']}: {record} expires after {record.expires_ms - record.added_ms} ms")


@pytest.mark.parametrize("play", cases.params("write", [(case["name"], partial(write, case)) for case in CASES]))
def test_the_journal_says_what_was_done(outcome: Callable[[], None]) -> None:
    outcome()
