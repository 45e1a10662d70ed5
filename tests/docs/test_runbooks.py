"""The runbook of each alert, run as it stands in docs/alerts against a real server that has the trouble: every
command works, and where commands are said to end a reason, `staniel health` does not name it afterwards.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.process import STANIEL, Server, running, until
from tests.support.wire import Wire

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "docs" / "alerts"
ASKS = ("purge", "move", "redrive", "abort", "delete", "stop")  # on a terminal; here --yes stands for the answer
CONFIG = """
[server]
backup_max_age = "1d"
[queues.full]
max_items = 2
[queues.mail]
journal_format = "libkestrel"
[queues.work]
max_deliveries = 1
dead_letter_queue = "dead"
"""


def page(alert: str) -> str:
    return (ALERTS / f"{alert}.md").read_text("utf-8")


def runbook(alert: str) -> list[list[str]]:
    """The commands of ours on its page, in their order, each once."""
    found = re.findall(r"^    staniel (.+?)(?:  +#.*)?$|`staniel\s([^`]+)`", page(alert), re.MULTILINE)
    return [list(words) for words in dict.fromkeys(tuple((block or inline).split()) for block, inline in found)]


class Stage:
    """A server with each trouble that a runbook is for. `names`: what stands for the words in capitals."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server = server
        self.names = {
            "SPOOL": str(server.spool),
            "DEST": str(folder / "copies"),
            "OTHER": "aside",
            "DEAD_LETTER_QUEUE": "dead",
        }

    def run(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        words = [self.names.get(word, word) for word in words]
        of_server = [] if words[0] == "journal" else ["--spool", str(self.server.spool)]
        command = [*words, *of_server, *(["--yes"] if words[0] in ASKS or words[:2] == ["hold", "drop"] else [])]
        return subprocess.run([*STANIEL, *command], capture_output=True, text=True, timeout=60)

    def reasons(self) -> set[str]:
        found = json.loads(self.run(["health", "--json"]).stdout)
        return {each["name"] for each in found["reasons"]}


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with running(tmp_path / "server", config=CONFIG) as server:
        yield Stage(server, tmp_path)


def paused(stage: Stage, wire: Wire) -> None:
    wire.put("jobs", b"1")
    stage.names["QUEUE"] = "jobs"
    assert wire.ask(b"pause jobs") == b"OK"


def filled(stage: Stage, wire: Wire) -> None:
    stage.names["QUEUE"] = "full"
    assert [wire.put("full", b"1") for _ in range(2)] == [b"STORED"] * 2 and wire.put("full", b"1") != b"STORED"


def dead(stage: Stage, wire: Wire) -> None:
    wire.put("work", b"1")
    wire.get("work/open")
    assert wire.ask(b"get work/abort") == b"END"


def refusing(stage: Stage, wire: Wire) -> None:
    assert wire.ask(b"status readonly") == b"END"


def not_backed_up(stage: Stage, wire: Wire) -> None:
    """No backup was made yet."""


def held(stage: Stage, wire: Wire) -> None:
    stage.names["QUEUE"] = "jobs"
    for number in range(3):
        wire.put("jobs", b"%d" % number)
    assert wire.get("jobs/open") == b"0"


def hold_dropped(stage: Stage, wire: Wire) -> None:
    """A hold with a limit of one byte, and a queue whose file was removed."""
    stage.names |= {"HOLD": "archive", "GLOB": "*", "BYTES": "1000000"}
    assert stage.run(["hold", "create", "archive", "--max-bytes", "1"]).returncode == 0
    wire.put("jobs", b"1")
    assert wire.ask(b"delete jobs") == b"DELETED"
    until(lambda: "hold_dropped" in stage.reasons())


TROUBLES: dict[str, tuple[Callable[[Stage, Wire], None], str]] = {
    "StanielNotReady": (refusing, "status"),
    "StanielDiskFillsUp": (held, ""),
    "StanielQueuesUnreadable": (held, ""),
    "StanielSyncsSlow": (held, ""),
    "StanielWarnings": (held, ""),
    "StanielCertificateExpires": (held, ""),
    "StanielBackupOld": (not_backed_up, "backup_old"),
    "StanielHoldDropped": (hold_dropped, "hold_dropped"),
    "StanielQueuesPaused": (paused, "queues_paused"),
    "StanielQueueFull": (filled, "queue_full"),
    "StanielQueueFills": (filled, ""),
    "StanielQueueNotRead": (held, ""),
    "StanielQueueOld": (held, ""),
    "StanielQueueGrows": (held, ""),
    "StanielDeadLetters": (dead, "dead_letters"),
    "StanielItemsDropped": (held, ""),
    "StanielReadsTimeOut": (held, ""),
}
"""By alert: what makes it so, and the reason that its commands end; "": it takes time to begin, or no command ends it.
StanielDiskFull has a test with a disk of its own, in test_commands.py.
"""


OF_CLUSTERS = {"NoLeader", "SetTooSmall", "MemberOut", "MemberBehind", "MemberUnfit", "EtcdUnreachable", "EtcdRestored"}
"""Alerts whose runbooks have commands on a cluster: tests/cluster/test_commands.py and test_operators.py run those."""


def test_every_alert_whose_runbook_has_commands_is_run() -> None:
    with_commands = {path.stem for path in ALERTS.glob("Staniel*.md") if runbook(path.stem)}
    assert with_commands == {*TROUBLES, "StanielDiskFull", *(f"Staniel{name}" for name in OF_CLUSTERS)}


@pytest.mark.parametrize("alert", TROUBLES)
def test_the_commands_of_a_runbook_work_and_end_what_they_are_said_to_end(alert: str, stage: Stage) -> None:
    trouble, reason = TROUBLES[alert]
    with Wire(stage.server.address) as wire:
        trouble(stage, wire)
        if reason:
            assert reason in stage.reasons()
        for words in runbook(alert):
            done = stage.run(words)
            assert done.returncode == 0 or (words[0] == "health" and done.returncode in (1, 3)), (words, done)
            assert "Traceback" not in done.stderr
        if reason:
            assert reason not in stage.reasons()


def test_files_that_cannot_be_read_are_served_again_after_they_were_mended_and_a_reload(stage: Stage) -> None:
    server = stage.server
    with Wire(server.address) as wire:
        assert wire.put("jobs", b"1") == wire.put("mail", b"2") == b"STORED"
    server.kill()
    (server.spool / "mail").write_bytes((server.spool / "jobs").read_bytes())  # of both formats: which one counts?
    server.start()
    assert "queues_blocked" in stage.reasons()
    health, reload = runbook("StanielQueuesUnreadable")
    assert "mail" in stage.run(health).stdout
    (server.spool / "mail").unlink()
    assert stage.run(reload).returncode == 0
    assert "queues_blocked" not in stage.reasons()
    with Wire(server.address) as wire:
        assert wire.get("mail") == b"2"
