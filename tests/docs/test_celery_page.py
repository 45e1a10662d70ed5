"""docs/celery.md: its start runs as it stands, and its options are those of the transport."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.process import die_with_the_tests, run_staniel, running

pytestmark = pytest.mark.programs("python:celery")
TEXT = (Path(__file__).resolve().parents[2] / "docs" / "celery.md").read_text("utf-8")
BLOCKS = re.findall(r"(?:^    .*\n|^\n(?=    ))+", TEXT, re.MULTILINE)


def test_the_start_runs_as_it_stands(tmp_path: Path) -> None:
    program, commands = ("\n".join(line[4:] for line in block.strip("\n").splitlines()) for block in BLOCKS[:2])
    worker, call = commands.splitlines()
    with running(tmp_path / "server") as server:
        (tmp_path / "tasks.py").write_text(program.replace("22133", str(server.port)))
        command = [sys.executable, "-m", *worker.split(), "-P", "solo"]
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log, preexec_fn=die_with_the_tests)
        try:
            code = call.partition("'")[2].removesuffix("'")
            done = subprocess.run(
                [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
            )
        finally:
            process.kill()
            process.wait()
    assert (done.returncode, done.stdout, done.stderr) == (0, "5\n", ""), (tmp_path / "log").read_text()


def test_the_settings_are_those_of_the_server(tmp_path: Path) -> None:
    (settings,) = re.findall(r"^```toml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    (tmp_path / "staniel.toml").write_text(settings)
    checked = run_staniel("config", "check", str(tmp_path / "staniel.toml"))
    assert "4 queues have settings of their own" in checked.stdout, checked.stderr


def test_the_defaults_of_the_options_are_those_of_the_page() -> None:
    channel = importlib.import_module("staniel.client.kombu.channel").Channel
    assert f'- `dead_letter_queue` (`"{channel.dead_letter_queue}"`): ' in TEXT
    assert f"- `broadcast_ttl_s` ({channel.broadcast_ttl_s}): " in TEXT
