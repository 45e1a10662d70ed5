"""Commands of reference pages, run against a real server or the files that it has left, with other folders."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.test_transcripts import comparable, transcript
from tests.support.process import Server, running
from tests.support.wire import Wire

DOCS = Path(__file__).resolve().parents[2] / "docs"
SECONDS_MAX = 60
ITEM_ID = re.compile(r"\b\d{13}-[0-9a-f]{16}\b")
DEAD = '[queues.orders]\nmax_deliveries = 1\ndead_letter_queue = "dead"\n'
SEVERAL_FILES = '[default]\nmax_memory_size = "32KB"\n'


def blocks(page: str) -> list[str]:
    """The indented commands of a page, without comments."""
    return re.findall(r"^    (staniel .+?)(?:  +#.*)?$", (DOCS / page).read_text("utf-8"), re.MULTILINE)


def shell(command: str, cwd: Path, spool: Path) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "STANIEL_SPOOL": str(spool)}
    done = subprocess.run(
        ["bash", "-euc", command], cwd=cwd, env=env, capture_output=True, text=True, timeout=SECONDS_MAX
    )
    assert done.returncode == 0, (command, done)
    return done.stdout + done.stderr


def test_the_transcript_of_items_by_terms_is_what_the_commands_say(tmp_path: Path) -> None:
    with running(tmp_path / "run", config=DEAD) as server, Wire(server.address) as wire:
        for data in (b"1", b'{"order": 2, "error": "timeout"}', b'{"order": 3}', b'"order": 4', b'"order": 5'):
            assert wire.put("orders", data) == b"STORED"
            assert wire.get("orders/open") == data and wire.ask(b"get orders/abort") == b"END"
        item_id = ""
        for command, told in transcript("commands.md", 1):
            command = ITEM_ID.sub(item_id, command.replace("age>1h", "age>=0s").replace("[regex]", ""))
            said = shell(command, tmp_path, server.spool)
            item_id = item_id or ITEM_ID.findall(said)[0]
            same = [re.sub(r"delivered \d+ times?|\b\d+ m?[hs]\b", "…", text) for text in (said, told)]
            assert comparable(ITEM_ID.sub("ID", same[0])) == comparable(ITEM_ID.sub("ID", same[1])), command


@pytest.fixture
def left(tmp_path: Path) -> Iterator[Server]:
    """A server that was stopped, and has left several files of the queue `orders`."""
    with running(tmp_path / "run", config=SEVERAL_FILES) as server, Wire(server.address) as wire:
        for _ in range(40):
            assert wire.put("orders", b"x" * 4000) == b"STORED"
        server.stop()
        assert list(server.spool.glob("orders.17*"))
        yield server


@pytest.mark.parametrize("page", ["journal-tools.md", "journal-libkestrel.md"])
def test_the_commands_on_files_do_what_they_are_for(page: str, left: Server, tmp_path: Path) -> None:
    found = blocks(page)
    assert found
    for number, command in enumerate(found):
        command = command.replace("DIR", str(tmp_path / f"made-{number}")).replace("SPOOL", str(left.spool))
        shell(command, left.spool, left.spool)


def test_the_lines_for_cron_back_up_verify_and_prune(tmp_path: Path) -> None:
    text = (DOCS / "howto" / "backup.md").read_text("utf-8")
    lines = re.findall(r"^    \d+ \d+ \* \* \S  staniel  /opt/staniel/bin/(staniel .+)$", text, re.MULTILINE)
    assert [line.split()[1:3] for line in lines] == [
        ["backup", "/mnt/backups"],
        ["backup", "verify"],
        ["backup", "prune"],
    ]
    with running(tmp_path / "run") as server:
        for line in lines:
            line = line.replace("/mnt/backups", str(tmp_path / "copies")).replace("/var/lib/staniel", str(server.spool))
            shell(line, tmp_path, server.spool)


@pytest.mark.programs("curl")
def test_the_line_that_asks_without_a_port_gets_the_queue(tmp_path: Path) -> None:
    ((command, told),) = transcript("admin.md", 0)
    with running(tmp_path / "run") as server, Wire(server.address) as wire:
        assert wire.put("work", b"1") == b"STORED"
        said = shell(command.replace("spool/.staniel", f"{server.spool}/.staniel"), tmp_path, server.spool)
    assert said.startswith('{"name":"work","items":1,') and told.startswith('{"name":"work","items":2,')
