"""Transcripts in reference pages: each command is run, and says what the page shows but for figures and moments."""

from __future__ import annotations

import re
import socket
import subprocess
from pathlib import Path

from tests.support.process import STANIEL, running
from tests.support.transcripts import BLOCK
from tests.support.wire import Wire

DOCS = Path(__file__).resolve().parents[2] / "docs"
MOMENT = re.compile(r"\d{4}-\d\d-\d\d[ T][\d:.]+Z?|\b\d{8}T\d{6}Z")
FIGURE = re.compile(r"\d[\d,.]*( [KMG]?B(/s)?\b| m?s\b|%)?")
SECONDS_MAX = 60


def transcript(page: str, number: int) -> list[tuple[str, str]]:
    """The commands of a transcript of a page, each with what it says."""
    found = [match[2] for match in BLOCK.finditer((DOCS / page).read_text("utf-8")) if match[1] == "console"][number]
    told = [piece.partition("\n") for piece in re.split(r"^\$ ", found, flags=re.MULTILINE)[1:]]
    return [(command, said) for command, _, said in told]


def comparable(text: str) -> list[str]:
    """Lines without what differs from run to run; columns are as wide as their figures."""
    text = FIGURE.sub("0", MOMENT.sub("MOMENT", text.replace(socket.gethostname(), "host")))
    return [" ".join(line.split()) for line in text.splitlines()]


def run(command: str, names: dict[str, str]) -> str:
    """What a command says, with the names of the page for those of the test."""
    for name, real in names.items():
        command = command.replace(name, real)
    words = [word.strip("'") for word in command.split()]
    done = subprocess.run([*STANIEL, *words[1:]], capture_output=True, text=True, timeout=SECONDS_MAX)
    assert done.returncode == 0, (command, done)
    for name, real in names.items():
        done.stdout = done.stdout.replace(real, name)
    return done.stdout + done.stderr


def test_the_transcript_of_a_backup_is_what_the_commands_say(tmp_path: Path) -> None:
    with running(tmp_path / "run") as server, Wire(server.address) as wire:
        assert wire.put("jobs", b"1") == wire.put("mail", b"2") == wire.put("mail", b"3") == b"STORED"
        names = {"/mnt/backups": str(tmp_path / "copies"), "/var/lib/staniel": str(server.spool)}
        for command, said in transcript("howto/backup.md", 0):
            assert comparable(run(command, names)) == comparable(said), command


def test_the_transcript_of_what_files_tell_is_what_the_commands_say(tmp_path: Path) -> None:
    (stats, told), (at, then), (history, life) = transcript("journal-tools.md", 0)
    with running(tmp_path / "run") as server, Wire(server.address) as wire:
        assert [wire.put("orders", b'{"id": %d}' % number) for number in (1, 2, 3)] == [b"STORED"] * 3
        assert wire.get("orders/open") == b'{"id": 1}' and wire.ask(b"get orders/abort") == b"END"
        assert wire.get("orders") == b'{"id": 1}'
        spool = str(server.spool)
        said = run(stats, {" spool": f" {spool}"})
        assert comparable(said) == comparable(told)
        last_added = said.partition(" to ")[2].split("\n")[0].replace(" ", "T")
        moment = at.split()[3]
        assert comparable(run(f"{at} --spool {spool}", {moment: last_added})) == comparable(then)
        assert comparable(run(f"{history} --spool {spool}", {})) == comparable(life)
