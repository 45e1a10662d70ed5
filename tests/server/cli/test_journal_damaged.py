"""`staniel journal damaged`: the copies of torn ends that starts have made, seen by health, and their removal."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.process import Server, run_staniel, running
from tests.support.wire import Wire

DAY_S = 86_400


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A stopped server, whose spool has the copies of two torn ends, one of them eight days old."""
    with running(tmp_path) as server:
        with Wire(server.address) as wire:
            assert wire.put("orders", b"kept") == b"STORED"
        for age_s in (8 * DAY_S, 0):
            server.stop()
            with (server.spool / "orders").open("ab") as journal:
                journal.write(b"\x00\xff\xff\x00\x00torn %d" % age_s)
            server.start()
            for name in copies(server.spool) if age_s else []:
                os.utime(server.spool / ".staniel" / "damaged" / name, (time.time() - age_s,) * 2)
        server.stop()
        assert len(copies(server.spool)) == 2
        yield server


def copies(spool: Path) -> list[str]:
    return sorted(os.listdir(spool / ".staniel" / "damaged"))


def test_copies_are_listed_with_their_size_and_age_and_go_when_they_were_looked_at(server: Server) -> None:
    torn = server.spool
    said = run_staniel("journal", "damaged", str(torn), "--json")
    listed = [json.loads(line) for line in said.stdout.splitlines()]
    assert [each["name"] for each in listed] != [] and sorted(each["name"] for each in listed) == copies(torn)
    assert listed[0]["age_ms"] > 7 * DAY_S * 1000 > listed[1]["age_ms"]
    assert [each["bytes"] for each in listed] == [
        (torn / ".staniel" / "damaged" / each["name"]).stat().st_size for each in listed
    ]
    refused = run_staniel("journal", "damaged", str(torn), "--remove")
    assert refused.returncode != 0 and "--yes" in refused.stderr and len(copies(torn)) == 2
    done = run_staniel("journal", "damaged", str(torn), "--older-than", "7d", "--remove", "--yes")
    assert done.returncode == 0 and copies(torn) == [listed[1]["name"]]
    done = run_staniel("journal", "damaged", str(torn), listed[1]["name"], "--remove", "--yes")
    assert done.returncode == 0 and copies(torn) == []
    assert "0 copies" in run_staniel("journal", "damaged", str(torn)).stdout
    missing = run_staniel("journal", "damaged", str(torn), "other")
    assert missing.returncode == 2 and "no such copy" in missing.stderr


def test_health_warns_of_old_copies_with_the_command_that_ends_it(server: Server) -> None:
    server.start()
    spool = str(server.spool)
    found = json.loads(run_staniel("health", "--spool", spool, "--json").stdout)
    reason = next(each for each in found["reasons"] if each["name"] == "copies_kept")
    assert "2 copies" in reason["text"] and "8 days old" in reason["text"]
    command = reason["mend"].partition(": staniel ")[2].split()
    assert run_staniel(*command, "--yes").returncode == 0
    found = json.loads(run_staniel("health", "--spool", spool, "--json").stdout)
    assert "copies_kept" not in [each["name"] for each in found["reasons"]]
