"""The server and the readers of this folder find the same in random journals, and in those that a server has written;
for any number of them: `python -m tests.outside`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random
from unittest.mock import patch

import pytest

from staniel.journal.kestrel.replay import Replay
from staniel.journal.libkestrel.position import Position
from staniel.queues.jobs.replay import JobReplay
from tests.outside import libkestrel
from tests.outside.__main__ import run, trial
from tests.outside.held import of_libkestrel
from tests.outside.made import MAKERS
from tests.outside.served import serve

ROOT = Path(__file__).parents[2]
SEED = int(os.environ.get("STANIEL_CRASH_SEED", "0")) or int.from_bytes(os.urandom(4), "big")
OPERATIONS = 15_000
REQUESTS = 400
READERS = ("tests.conformance.replay", "tests.outside.libkestrel", "tests.outside.workq", "tests.outside.made")


def test_random_journals_whole_and_damaged_say_the_same_to_both() -> None:
    figures = run(OPERATIONS, SEED)
    assert [line for each in figures.values() for line in each.wrong] == [], SEED
    assert all(each.damaged > each.journals // 4 for each in figures.values())


@pytest.mark.parametrize("format", MAKERS)
def test_what_a_server_writes_in_service_says_what_it_has(format: str) -> None:
    for seed in range(3):
        assert serve(format, Random(SEED + seed), REQUESTS) == [], SEED + seed


def test_the_readers_and_the_maker_of_journals_use_nothing_of_the_server() -> None:
    program = f"import {', '.join(READERS)}, sys; print([name for name in sys.modules if name.startswith(NAMES)])"
    names = "('staniel', 'google_crc32c', 'msgspec')"
    found = subprocess.run(
        [sys.executable, "-c", program.replace("NAMES", names)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"


@pytest.mark.pure
@pytest.mark.parametrize(
    ("format", "holder", "name"),
    [
        ("kestrel", Replay, "_unremove"),
        ("kestrel", Replay, "_save_xid"),
        ("libkestrel", Position, "advance_head"),
        ("workq", JobReplay, "timed_out"),
        ("workq", JobReplay, "finished"),
    ],
)
def test_a_server_that_reads_wrongly_is_found(format: str, holder: type, name: str) -> None:
    def nothing(self: object, *args: object, **kwargs: object) -> object:
        if name == "advance_head":
            self.done.drop_through(1 << 62)  # type: ignore[attr-defined]
        return None

    with patch.object(holder, name, nothing):
        assert any(trial(format, seed)[2] for seed in range(60))


def test_of_an_id_in_two_segments_the_item_of_the_one_that_begins_first_counts() -> None:
    def put(number: int, data: bytes) -> bytes:
        return b"\x86" + len(data).to_bytes(4, "little") + bytes(4) + number.to_bytes(8, "little") + bytes(8) + data

    files = {
        "jobs.1": libkestrel.SEGMENT + put(5, b"later"),
        "jobs.2": libkestrel.SEGMENT + put(3, b"3") + put(5, b"first") + put(9, b"9"),
        "jobs.3": libkestrel.SEGMENT + put(4, b"4") + put(5, b"late") + put(6, b"6") + put(7, b"7"),
        "jobs.read.": libkestrel.READER + b"\x02" + bytes(8) + b"\x91" + bytes(4),
    }
    assert of_libkestrel(files) == []
    assert [put.data for put in libkestrel.read("jobs", files).items.values()] == [
        b"3",
        b"4",
        b"first",
        b"6",
        b"7",
        b"9",
    ]
