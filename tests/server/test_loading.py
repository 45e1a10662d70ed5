"""What a command loads: what is named here stays unloaded, because imports are most of the time that a start takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.process import START_SECONDS_MAX, running
from tests.support.wire import Wire

# Runs ours, and ends by telling what is loaded.
TOLD = """
import sys
sys.argv = sys.argv[1:]
from staniel.server.__main__ import main
try:
    main()
finally:
    print("loaded:", *sorted(sys.modules), file=sys.stderr)
"""
WRAPPER = (sys.executable, "-c", TOLD)

# Names with all that is below them, and why they are not needed.
VERSION_NEEDS_NOT = {
    "click": "there is nothing else on the command line",
    "trio": "there is nothing to serve",
    "msgspec": "there is nothing to read",
    "inspect": "what loads it loads much else",
    "enum": "signals keep their defaults",
    "staniel.server.signals": "signals keep their defaults",
    "staniel.server.cli": "it loads click",
    "staniel.journal": "no file is read",
    "staniel.queues": "no file is read",
    "staniel.protocol": "no client is served",
}
PING_NEEDS_NOT = {
    "trio": "one socket is asked, and waited for",
    "staniel.server.app": "nothing is served",
    "staniel.server.cli.live": "it is another command",
    "staniel.broker.config": "all that it needs are options",
    "staniel.journal": "no file is read",
    "staniel.queues": "no file is read",
}
SERVE_NEEDS_NOT = {
    "staniel.client": "it is for programs that ask a server",
    "staniel.pipeline": "it is another command",
    "staniel.cluster": "it stands alone",
    "staniel.journal.tools": "it is another command's",
    "staniel.server.cli.journal": "it is another command",
    "staniel.server.cli.live": "it is another command",
    "staniel.server.cli.admin_client": "it is another command",
    "staniel.server.cli.config": "it is another command",
    "staniel.server.cli.ping": "it is another command",
    "staniel.server.cli.verify": "it is another command",
    "staniel.protocol.text": "the text protocol is not configured",
    "staniel.broker.commands.text": "the text protocol is not configured",
    "staniel.protocol.thrift": "thrift is not configured",
    "staniel.broker.commands.thrift": "thrift is not configured",
    "thriftpy2": "thrift is not configured",
    "staniel.protocol.workq": "workq is not configured",
    "staniel.queues.jobs": "workq is not configured",
    "staniel.broker.jobs": "workq is not configured",
    "staniel.broker.commands.workq": "workq is not configured",
    "staniel.journal.workq.log": "workq is not configured",
    "google_crc32c": "only a command log has such checksums",
    "tomllib": "there is no configuration file",
    "fractions": "there are no sizes and durations in it",
    "json": "there are no mistakes to quote",
    "difflib": "there are no mistakes to guess at",
}


def needless(told: str, known: dict[str, str]) -> dict[str, str]:
    """Of what a process has told, what it need not have loaded."""
    (line,) = [line for line in told.splitlines() if line.startswith("loaded: ")]
    loaded = line.split()[1:]
    return {name: why for name, why in known.items() if any(f"{each}.".startswith(f"{name}.") for each in loaded)}


def test_what_is_loaded_is_seen() -> None:
    told = "noise\nloaded: a.b staniel.app trio\n"
    assert needless(told, {"a": "1", "stan": "2", "trio": "3", "trio.x": "4"}) == {"a": "1", "trio": "3"}


@pytest.mark.parametrize(
    ("arguments", "known"),
    [(["--version"], VERSION_NEEDS_NOT), (["-V"], VERSION_NEEDS_NOT), (["ping", "--port", "1"], PING_NEEDS_NOT)],
)
def test_a_small_command_loads_little(arguments: list[str], known: dict[str, str]) -> None:
    command = [*WRAPPER, "staniel", *arguments]
    said = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS_MAX)
    assert needless(said.stderr, known) == {}


def test_a_server_loads_what_its_clients_use(tmp_path: Path) -> None:
    with running(tmp_path, wrapper=WRAPPER) as server:
        with Wire(server.address) as wire:
            assert wire.put("jobs", b"a") == b"STORED"
            assert wire.ask(b"get jobs").startswith(b"VALUE jobs")
        server.stop()
        assert needless(server.stderr, SERVE_NEEDS_NOT) == {}


def test_a_server_that_operators_ask_over_the_network_has_loaded_what_answers_them(tmp_path: Path) -> None:
    """Loading it for the first request would hold up all clients."""
    with running(tmp_path, config="admin.port = 0\n", wrapper=WRAPPER) as server:
        server.stop()
        loaded = server.stderr.split("loaded: ")[1].split()
        assert {"h11", "staniel.broker.admin.http.dispatch"} <= set(loaded)
