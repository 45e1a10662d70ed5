"""The how-to pages: each fits on a screen, and the commands of those that need nothing but a server are run. Those of
the other pages are run by test_setup_pages.py and test_kubernetes.py.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.process import STANIEL, Server, running
from tests.support.wire import Wire

ROOT = Path(__file__).resolve().parents[2]
HOWTO = ROOT / "docs" / "howto"
WORDS_MAX = 520  # a screen, tables included
ASKS = ("purge", "stop")
NO_SERVER = ("journal", "restore")
ELSEWHERE = {"serve", "selftest"}  # starts a server; takes a quarter of a minute, and has tests of its own
RUN = ("checklist.md", "move.md", "start-and-stop.md", "tune.md", "upgrade.md", "more-servers.md")


def commands(name: str) -> list[list[str]]:
    """The commands of a page, each once; what ends the server comes last."""
    text = (HOWTO / name).read_text("utf-8")
    found = re.findall(r"^    staniel (.+?)(?:  +#.*)?$|`staniel\s([a-z][^`]*)`", text, re.MULTILINE)
    told = dict.fromkeys(tuple((block or inline).split()) for block, inline in found)
    kept = [list(words) for words in told if words[0] not in {*ELSEWHERE, "stop"}]
    return [*kept, *([["stop"]] if any(words[0] == "stop" for words in told) else [])]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path / "server", config="[default]\nmax_age = '7d'\n") as started:
        yield started


@pytest.mark.parametrize("name", RUN)
def test_the_commands_of_a_page_do_what_they_are_for(name: str, server: Server, tmp_path: Path) -> None:
    names = {"FILE": str(server.config), "SPOOL": str(server.spool), "DIR": str(tmp_path / "restored")}
    names |= {"DEST": str(tmp_path / "copies"), "QUEUE": "jobs"}
    with Wire(server.address) as wire:
        assert wire.put("jobs", b"1") == b"STORED"
    assert commands(name)
    for words in commands(name):
        command = [names.get(word, word) for word in words]
        if words[0] not in NO_SERVER and words[:2] != ["config", "check"]:
            command += ["--spool", str(server.spool)]
        command += ["--yes"] if words[0] in ASKS and "--yes" not in words else []
        done = subprocess.run([*STANIEL, *command], capture_output=True, text=True, timeout=60)
        refuses = words[0] in ("health", "ping") and done.returncode == 3  # after `status readonly`
        assert done.returncode == 0 or refuses, (words, done)


@pytest.mark.parametrize("path", sorted(HOWTO.glob("*.md")), ids=lambda path: str(path.name))
def test_a_page_fits_on_a_screen(path: Path) -> None:
    count = len(path.read_text("utf-8").split())
    assert count <= WORDS_MAX, f"{path.name} has {count} words, {WORDS_MAX} at most: move reference to its page"


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_the_first_pages_are_read_in_three_minutes(name: str) -> None:
    assert len((ROOT / name).read_text("utf-8").split()) <= 620
