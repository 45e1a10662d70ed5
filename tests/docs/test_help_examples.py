"""The examples that `--help` shows: each command has one or two, and each of them runs. Those of `pipeline` run in
tests/pipeline/test_cli.py, where there is a Spark.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from staniel.server.cli.live_command import LiveCommand
from tests.docs.test_commands import why_wrong
from tests.server.cli.test_import_kestrel import CURRENT
from tests.server.cli.test_top import Terminal
from tests.support.examples import COMMANDS, EXAMPLES
from tests.support.process import STANIEL, Server, run_staniel, running, until
from tests.support.transcripts import free_port
from tests.support.wire import Wire

SECONDS_MAX = 60
SELFTEST_SECONDS_MAX = 300
OF_CLUSTERS = {"cluster status", "cluster init", "cluster remove", "cluster place", "cluster restore-etcd", "handover"}
ALONE = {"serve", "stop", "top", "work", "selftest", "hold move"} | OF_CLUSTERS
"""The commands whose examples have a test of their own below, or in tests/cluster/test_commands.py, where members run;
or in tests/server/cli/test_holds.py, because they name files of a spool.
"""
ON_A_SERVER = [
    words
    for words, command in COMMANDS.items()
    if (isinstance(command, LiveCommand) or words == "ping") and words not in ALONE
]
OF_FILES = sorted(
    (words for words in COMMANDS if words not in (*ON_A_SERVER, *ALONE) and not words.startswith("pipeline ")),
    key=lambda words: words == "journal convert",  # after those that read the spool
)
CONFIG = """
[queues.jobs]
max_deliveries = 1
dead_letter_queue = "jobs-dead"
"""


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_has_one_or_two_examples_of_it_that_the_program_knows(words: str) -> None:
    examples = EXAMPLES[words]
    assert 1 <= len(examples) <= 2
    assert COMMANDS[words].epilog == "\b\nExamples:\n" + "\n".join([f"  {each}" for each in examples])
    own = words.replace("backup take", "backup").replace("cluster status", "cluster")
    for each in examples:
        assert re.match(rf"staniel {own}\b", each) and why_wrong(each.removeprefix("staniel ")) == ""


@pytest.mark.parametrize("words", COMMANDS)
def test_each_option_of_a_command_says_what_it_does(words: str) -> None:
    options = [each for each in COMMANDS[words].params if isinstance(each, click.Option)]
    assert [each.opts for each in options if not re.match(r"[\w`]", each.help or "")] == []


@pytest.mark.parametrize("words", ["purge", "journal dump", "work"])
def test_a_help_ends_with_its_examples(words: str) -> None:
    told = run_staniel(*words.split(), "--help").stdout
    assert told.endswith("\n".join([f"    {each}" for each in EXAMPLES[words]]) + "\n")


class Place:
    """A folder with what the examples name, and other names for what they call /etc, /var, /mnt and 22200."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.names = {
            "/etc/staniel/staniel.toml": str(server.config),
            "/var/lib/staniel": str(server.spool),
            "/var/spool/kestrel": str(folder / "kestrel"),
            "/var/lib/": f"{folder}/",
            "/mnt/backups": str(folder / "backups"),
            "22200": str(server.port),
        }
        (folder / "order.json").write_text('{"id": 1}')
        (folder / "password").write_text("correct-horse\n")
        (folder / "production.scala").write_text(CURRENT)
        (folder / "kestrel").mkdir()

    def run(self, words: str, example: str) -> None:
        asks = any("--yes" in option.opts for option in COMMANDS[words].params)
        if asks and "--yes" not in example:
            example += " --yes"
        if example == "staniel ping":
            example += f" --port {self.server.port}"
        for name, real in self.names.items():
            example = example.replace(name, real)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        env = {**os.environ, "PATH": path, "STANIEL_SPOOL": str(self.server.spool)}
        done = subprocess.run(
            ["bash", "-euc", example], cwd=self.folder, env=env, capture_output=True, text=True, timeout=SECONDS_MAX
        )
        partly = words == "config import-kestrel" and done.returncode == 1  # not all of a file can be carried over
        assert done.returncode == 0 or partly, (example, done)
        assert "Traceback" not in done.stderr


def prepare(wire: Wire) -> None:
    """Put what the examples of commands on a server are about, whatever an example before has paused."""
    for queue in ("jobs", "mail", "mails", "jobs-dead", "aside"):
        wire.ask(f"resume {queue}".encode())
        for number in range(12):
            assert wire.put(queue, b"timeout %d" % number) == b"STORED"
    assert wire.get("jobs/open") is not None


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with running(tmp_path / "server", config=CONFIG) as server:
        yield Place(server, tmp_path)


@pytest.mark.slow
def test_the_examples_of_commands_on_a_server_do_what_they_are_for(place: Place) -> None:
    for words in ON_A_SERVER:
        for example in EXAMPLES[words]:
            with Wire(place.server.address) as wire:
                prepare(wire)
                place.run(words, example)
                wire.ask(b"status up")


@pytest.mark.slow
def test_the_examples_of_commands_on_files_do_what_they_are_for(place: Place) -> None:
    with Wire(place.server.address) as wire:
        for queue in (b"jobs", b"mail"):
            assert wire.put(queue.decode(), b"1") == b"STORED"
        place.run("backup take", EXAMPLES["backup take"][0])
    place.server.stop()
    for path in place.server.spool.iterdir():
        if path.is_file() and not path.name.startswith("."):
            (place.folder / "kestrel" / path.name).write_bytes(path.read_bytes())
    for words in OF_FILES:
        for example in EXAMPLES[words]:
            to_new = words == "adopt"  # which makes a spool
            place.run(words, example.replace(" /var/lib/staniel", f" {place.folder}/new") if to_new else example)


@pytest.mark.parametrize("example", EXAMPLES["stop"])
def test_the_examples_of_a_stop_stop_it(example: str, place: Place) -> None:
    place.server.config.write_text(f"{CONFIG}\n[server]\nspool = '{place.server.spool}'\n")
    place.run("stop", example)
    assert place.server.wait() == 0


@pytest.mark.parametrize("example", EXAMPLES["serve"])
def test_the_examples_of_serve_serve(example: str, tmp_path: Path) -> None:
    config, port = tmp_path / "staniel.toml", free_port()
    config.write_text(f"[memcache]\nport = {port}\n[server]\nspool = '{tmp_path / 'spool'}'\n")
    names = {"/etc/staniel/staniel.toml": str(config), "/tmp/try": str(tmp_path / "try"), "22200": str(port)}
    words = [names.get(word, word) for word in shlex.split(example)[1:]]
    with subprocess.Popen([*STANIEL, *words], stdout=subprocess.PIPE, text=True, cwd=tmp_path) as child:
        try:
            assert child.stdout is not None and f":{port}" in child.stdout.readline()
        finally:
            child.terminate()
        assert child.wait(SECONDS_MAX) == 0


@pytest.mark.programs("python:rich")
def test_the_examples_of_top_show_queues(place: Place) -> None:
    with Wire(place.server.address) as wire:
        assert wire.put("mail", b"1") == b"STORED"
    full, once = [shlex.split(each) for each in EXAMPLES["top"]]
    assert "--once" in once and "--once" not in full
    done = run_staniel(*once[1:], STANIEL_SPOOL=str(place.server.spool))
    assert done.returncode == 0 and "mail" in done.stdout
    terminal = Terminal(100, 24, *STANIEL, *full[1:], STANIEL_SPOOL=str(place.server.spool))
    try:
        assert terminal.shows("mail")
        terminal.press(b"q")
        assert terminal.ends() == 0
    finally:
        terminal.close()


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES["work"])
def test_the_examples_of_work_work(example: str, place: Place) -> None:
    (place.folder / "tasks.py").write_text("def send(item):\n    pass\n")
    with Wire(place.server.address) as wire:
        assert wire.put("mail", b"1") == b"STORED"
        words = [*shlex.split(example)[1:], "--port", str(place.server.port)]
        with subprocess.Popen([*STANIEL, *words], cwd=place.folder, stderr=subprocess.PIPE, text=True) as worker:
            try:
                assert until(lambda: wire.get("mail/peek") is None, SECONDS_MAX)
            finally:
                worker.send_signal(signal.SIGTERM)
            assert worker.wait(SECONDS_MAX) == 0


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES["selftest"])
def test_the_examples_of_a_selftest_test(example: str, tmp_path: Path) -> None:
    words = [{"/var/lib": str(tmp_path), "3600": "1"}.get(word, word) for word in shlex.split(example)[1:]]
    # Hundreds of syncs, as long as the disk of this machine takes for them.
    command = [*STANIEL, *words, *([] if "--seconds" in words else ["--seconds", "1"])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SELFTEST_SECONDS_MAX)
    assert done.returncode == 0 and "fit for every sync_journal" in done.stdout
