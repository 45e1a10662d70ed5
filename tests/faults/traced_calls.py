"""Which calls a server and the tools make on which kinds of files, by one traced run of each phase."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from tests.faults.armed import Armed
from tests.faults.chores import Chores
from tests.support.process import STANIEL

SYNCS = "fsync fdatasync syncfs"
TOOL_SECONDS_MAX = 60.0


class Phase(Enum):
    START = "at a start"
    SERVICE = "in service"
    STOP = "in a stop"
    TOOLS = "in tools"


class Combination(NamedTuple):
    """`call`: words of failing_calls.c. `kind`: of KINDS."""

    call: str
    kind: str
    phase: Phase

    def __lt__(self, other: tuple[object, ...]) -> bool:
        return [str(each) for each in self] < [str(each) for each in other]


class Kind(NamedTuple):
    """`part`: what failing_calls.c is told to look for. `pattern`: all such paths, in the folder of the server."""

    part: str
    pattern: str


KINDS = {
    "a Kestrel journal": Kind("/spool/q", r"/spool/(q|brief|late|new)\b.*"),
    "the journal of a queue that is deleted": Kind("/spool/purged", r"/spool/purged\b.*"),
    "a libkestrel queue": Kind("/spool/stream", r"/spool/stream\..*"),
    "the command log": Kind("/.staniel/cmdlog", r"/spool/\.staniel/cmdlog.*"),
    "sidecars": Kind("/.staniel/segments", r"/spool/\.staniel/segments.*"),
    "the redo log": Kind("/.staniel/redo", r"/spool/\.staniel/redo.*"),
    "`intents`": Kind("/.staniel/intents", r"/spool/\.staniel/intents.*"),
    "the keys of puts": Kind("/.staniel/keys", r"/spool/\.staniel/keys.*"),
    "undo files": Kind("/.staniel/undo", r"/spool/\.staniel/undo.*"),
    "the audit log": Kind("/.staniel/audit", r"/spool/\.staniel/audit.*"),
    "`paused`": Kind("/.staniel/paused", r"/spool/\.staniel/paused.*"),
    "`status`": Kind("/.staniel/status", r"/spool/\.staniel/status.*"),
    "`clock`": Kind("/.staniel/clock", r"/spool/\.staniel/clock.*"),
    "`member`": Kind("/.staniel/member", r"/spool/\.staniel/member.*"),
    "`follower`": Kind("/.staniel/follower", r"/spool/\.staniel/follower.*"),
    "`version`": Kind("/.staniel/version", r"/spool/\.staniel/version.*"),
    "the spool's lock": Kind("/.staniel/lock", r"/spool/\.staniel/lock"),
    "the reserve": Kind("/.staniel/ballast", r"/spool/\.staniel/ballast.*"),
    "the mark of a failed sync": Kind("/.staniel/failed_sync", r"/spool/\.staniel/failed_sync.*"),
    "`holds`": Kind("/.staniel/holds", r"/spool/\.staniel/holds.*"),
    "kept files": Kind("/.staniel/kept", r"/spool/\.staniel/kept.*"),
    "`last_backup`": Kind("/.staniel/last_backup", r"/spool/\.staniel/last_backup.*"),
    "the plan of a conversion": Kind("/.staniel/convert", r"/spool/\.staniel/convert.*"),
    "`held`": Kind("/.staniel/held", r"/spool/\.staniel/held.*"),
    "`damaged`": Kind("/.staniel/damaged", r"/spool/\.staniel/damaged.*"),
    "the locks of a command log": Kind("/spool/append.lock", r"/spool/(append|read)\.lock"),
    "the folder `.staniel`": Kind("/.staniel$", r"/spool/\.staniel"),
    "the folder of the spool": Kind("/spool$", r"/spool"),
    "the folder that has the spool": Kind("{folder}$", r""),
    "the configuration": Kind("/staniel.toml", r"/staniel\.toml"),
}
FOREIGN = ("/stderr", "/copy")  # what the tests have a server and the tools write outside the spool


def kind_of(path: str) -> str | None:
    """Of a path in the folder of a server, which it is without; None: none of KINDS."""
    return next((name for name, kind in KINDS.items() if re.fullmatch(kind.pattern, path, re.DOTALL)), None)


class Tracer:
    """`environment` makes a server write its calls down."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "trace"
        self.environment = {"FAULT_TRACE": str(self._path)}

    def begin(self) -> None:
        self._path.write_text("")

    def calls(self, folder: Path, phase: Phase) -> set[Combination]:
        """What has been called since `begin` on files in `folder`. Raises AssertionError: of a kind that KINDS lack."""
        found = set()
        for line in self._path.read_text().splitlines():
            call, _, path = line.partition(" ")
            if path.startswith(str(folder)):
                within = path.removeprefix(str(folder)).removesuffix(" (deleted)")
                kind = kind_of(within)
                assert kind is not None or within.startswith(FOREIGN), f"{call} on {path}, of no kind"
                if kind is not None:
                    found.add(Combination(SYNCS if call in SYNCS.split() else call, kind, phase))
        self._path.unlink()
        return found


def traced(tracer: Tracer, make: Callable[[Path], tuple[Armed, Chores]]) -> set[Combination]:
    """Every call of a start behind a kill, of service, of a stop, and of tools behind that."""
    server, chores = make(Path(tracer.environment["FAULT_TRACE"]).parent / "traced")
    folder = server.folder
    server.wrapper = (*server.wrapper, *(f"{name}={value}" for name, value in tracer.environment.items()))
    tracer.begin()
    with server:
        found = tracer.calls(folder, Phase.START)
        tracer.begin()
        chores.do()
        chores.do()
        found |= tracer.calls(folder, Phase.SERVICE)
        tracer.begin()
        server.stop()
        found |= tracer.calls(folder, Phase.STOP)
        tracer.begin()
        for ended in run_tools(server):
            assert not ended.returncode, ended.stderr
        found |= tracer.calls(folder, Phase.TOOLS)
    return found


def run_tools(server: Armed) -> list[subprocess.CompletedProcess[str]]:
    """What reads a spool that no server has, and makes copies of it, in the environment of `server`."""
    target = server.folder / "copy"
    for made in server.folder.glob("copy.*"):
        shutil.rmtree(made)
    spool = str(server.spool)
    commands = [
        ["journal", "verify", spool],
        ["journal", "stats", spool],
        ["journal", "dump", "--quiet", spool],
        ["journal", "repair", spool, "--to", f"{target}.repaired"],
        ["backup", f"{target}.backup", "--spool", spool],
    ]
    return [
        subprocess.run(
            [*server.wrapper, *STANIEL, *words], capture_output=True, text=True, timeout=TOOL_SECONDS_MAX, check=False
        )
        for words in commands
    ]
