"""Every command in the documents is one that the program has, with the options that are named; runbooks are run."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from staniel.bench.harness.small_disk import SmallDisk, small_disk
from staniel.server.cli.main import main
from tests.server.admin.asking import Operator
from tests.support.process import STANIEL, running, until
from tests.support.wire import Wire

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "monitoring" / "prometheus-alerts.yml"]
END = re.compile(r" [|>&;#] ?|[;|]|  +#")  # of one command of a line
DISK_BYTES = 64 << 20
FULL = b"SERVER_ERROR disk full, nothing can be stored until there is space"


def commands(path: Path) -> Iterator[str]:
    """What follows `staniel`, in code blocks, in code amid prose, in annotations of alerts."""
    text = path.read_text("utf-8")
    for line in text.splitlines() if path.suffix == ".md" else ():
        if found := re.search(r"^(?:    |\$ )(?:.*[ /])?staniel ([a-z].*)", line.partition("  #")[0]):
            yield found.group(1)
    for found in re.findall(r"`staniel\s([a-z][^`]*)`", text):
        yield " ".join(found.split())
    yield from re.findall(r'mend: "?(?:[^"\n]*then: )?staniel ([^"\n]*)', text)


DEFAULTS = {"backup": "take", "cluster": "status"}
"""The commands of groups that take the words themselves, where these name no command."""


def why_wrong(command: str) -> str:
    """What the program would not know of a command; empty if it knows all of it."""
    words = shlex.split(END.split(command)[0].replace("\\|", "|"))
    found: click.Command = main
    context = click.Context(main)
    while isinstance(found, click.Group) and words:
        inner = found.get_command(context, words[0])
        if inner is None:  # a group whose own default command takes the words
            inner = found.get_command(context, DEFAULTS.get(found.name or "", ""))
        else:
            words.pop(0)
        if inner is None:
            return f"there is no command {words[0]}"
        found, context = inner, click.Context(inner, parent=context)
    known = {name for each in found.params for name in (*each.opts, *each.secondary_opts)} | {"--help"}
    asked = {word.partition("=")[0] for word in words if re.match(r"-{1,2}[a-z]", word)}
    return f"it has no {', '.join(sorted(asked - known))}" if asked - known else ""


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_and_option_that_a_document_names_is_there(path: Path) -> None:
    found = [each for each in commands(path) if not re.match(r"(staniel|import)\b", each)]
    whole = [each for each in found if "[" not in each and "…" not in each]
    assert {each: why for each in whole if (why := why_wrong(each))} == {}


def test_the_page_of_commands_has_an_entry_for_each_command_of_the_parser() -> None:
    text = (ROOT / "docs" / "commands.md").read_text("utf-8").partition("\n## All commands\n\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^- ((?:`[^`]+`,? ?\s*)+):", text, re.MULTILINE)
    quoted = [each for names in entries for each in re.findall(r"`([^`]+)`", names)]
    told = {each.split()[0] for each in quoted}
    assert told - {"show", "diff", "import-kestrel"} == {*main.list_commands(click.Context(main))}


def test_the_look_at_commands_finds_many_and_sees_what_is_wrong() -> None:
    assert sum(len(list(commands(path))) for path in DOCUMENTS) > 150
    assert (
        why_wrong("purge QUEUE --no-undo")
        == why_wrong("backup /mnt/x --spool y")
        == why_wrong("journal verify X")
        == ""
    )
    assert why_wrong("journal frobnicate X") == "there is no command frobnicate"
    assert why_wrong("purge QUEUE --sure") == "it has no --sure"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", DISK_BYTES) as made:
        yield made


@pytest.mark.programs("unshare", "nsenter", "mount")
def test_the_runbook_of_a_full_disk_makes_room_while_gets_go_on(tmp_path: Path, disk: SmallDisk) -> None:
    spool = disk.folder / "spool"
    config = "[admin]\nport = 0\n"
    with running(tmp_path / "run", "--spool", str(spool), config=config, wrapper=disk.wrapper) as server:
        operator = Operator(server.second_port)

        def run(*words: str) -> subprocess.CompletedProcess[str]:
            url = f"http://127.0.0.1:{server.second_port}"
            return subprocess.run([*STANIEL, *words, "--url", url], capture_output=True, text=True)

        with Wire(server.address) as wire:
            for _ in range(60):  # more than default_journal_size: an empty journal of that length starts over
                assert wire.put("jobs", b"x" * 500_000) == b"STORED"
            while disk.free_bytes():
                disk.fill(0)
            assert until(lambda: wire.put("jobs", b"x" * 500_000) == FULL, rest=0)
            found = run("health")
            assert found.returncode == 3 and "refuses: the disk is full" in found.stdout
            assert operator.ask("GET", "/health/ready").status == 200, "consumers must reach it"
            assert operator.ask("GET", "/health/ready?for=puts").status == 503
            assert wire.get("jobs") == b"x" * 500_000
            assert "jobs" in run("queues").stdout
            refused = run("purge", "jobs", "--yes")
            assert refused.returncode == 1 and "--no-undo" in refused.stderr
            purged = run("purge", "jobs", "--no-undo", "--yes")
            assert purged.returncode == 0, purged.stderr
            assert until(lambda: wire.put("jobs", b"x") == b"STORED"), "there is room again"
            assert run("health").returncode == 0
    runbook = (ROOT / "docs" / "alerts" / "StanielDiskFull.md").read_text("utf-8")
    assert "\n    staniel queues" in runbook and "\n    staniel purge QUEUE --no-undo\n" in runbook
