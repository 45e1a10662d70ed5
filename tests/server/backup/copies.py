"""Backups for tests: the command line, and what a server hands out of a spool."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from staniel.server.cli.main import main
from tests.server.admin.asking import Operator
from tests.support.process import STANIEL, running, until
from tests.support.wire import Wire

SMALL = """
[server]
max_open_transactions = 1000
[default]
max_item_size = "1MB"
max_memory_size = 20000
max_journal_size = 60000
default_journal_size = 5000
min_journal_compact_delay = "none"
[queues.mail]
journal_format = "libkestrel"
[workq]
port = 0
cmdlog_seg_size = 4096
cmdlog_clean_int = "50ms"
"""
"""Small files of all formats, which are rotated, packed and removed all the time."""


def staniel(*arguments: str | Path, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, where the libraries of buckets are loaded once. `killed_after` and the tests of
    the command line execute real ones.
    """
    words = [*map(str, arguments)]
    said = CliRunner().invoke(main, words, env=environment, prog_name="staniel")
    assert said.exception is None or isinstance(said.exception, SystemExit), said.exception
    assert said.exit_code == code, said.output
    return subprocess.CompletedProcess(words, said.exit_code, said.stdout, said.stderr)


def back_up(spool: Path, dest: Path | str, **environment: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(staniel("backup", dest, "--spool", spool, "--json", **environment).stdout)
    return found


def drained(folder: Path, queues: tuple[str, ...], config: str = SMALL) -> dict[str, list[bytes]]:
    """What a server with the spool `folder`/spool hands out; it is gone afterwards. It starts without a complaint, and
    first goes on with a move that the spool has half of.
    """
    found: dict[str, list[bytes]] = {}
    with running(folder, config=config) as server, Wire(server.address) as wire:
        assert " error " not in server.stderr and "warning" not in server.stderr, server.stderr
        operator = Operator(server.spool)
        assert until(lambda: all(each["ended_at_ms"] for each in operator.get("/api/operations")), 30)
        for queue in queues:
            found[queue] = []
            while (item := wire.get(queue)) is not None:
                found[queue].append(item)
    return found


def restored(dest: Path | str, folder: Path, *options: str) -> Path:
    """`folder` with a spool from a backup."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    staniel("restore", dest, folder / "spool", *options)
    return folder


def held(spool: Path) -> list[str]:
    folder = spool / ".staniel" / "held"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def data_files(dest: Path) -> list[Path]:
    return sorted(path for path in (dest / "data").rglob("*") if path.is_file())


KILLED_AT = """
import os, sys
from staniel.server import progress
from staniel.server.cli import adopt, backup
left = [int(sys.argv[1])]
def step(self, more_bytes):
    left[0] -= self._what != "read"
    if not left[0]:
        os.kill(os.getpid(), 9)
progress.Ticker.__call__ = step
(adopt if sys.argv[2].startswith('adopt') else backup).__dict__[sys.argv[2]].main(sys.argv[3:])
"""


def killed_after(pieces: int, command: str, *arguments: str | Path) -> bool:
    """Run `command` until it has copied so many pieces, then kill it; whether it came so far."""
    line = [str(Path(STANIEL[0]).with_name("python")), "-c", KILLED_AT, str(pieces), command, *map(str, arguments)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, -9), done
    return done.returncode == -9
