"""What the commands say: help, version, ping, and one line for each mistake."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from pathlib import Path

import click
import pytest

from staniel.broker.config.load import defaults
from staniel.broker.version import VERSION
from staniel.compiled import BUILD
from staniel.server.cli.main import serve
from staniel.server.cli.ping import ping
from tests.server.test_log_lines import lines
from tests.support.process import Server, run_staniel, running, until
from tests.support.wire import Wire, stats


@pytest.mark.parametrize("command", [[], ["serve"], ["ping"], ["queues"], ["config", "show"], ["journal", "dump"]])
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_every_command_explains_itself(command: list[str], option: str) -> None:
    said = run_staniel(*command, option)
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.startswith("Usage: ")
    assert all(len(line) <= 80 for line in said.stdout.splitlines())


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version_is_the_one_that_clients_are_told(server: Server, option: str) -> None:
    said = run_staniel(option)
    assert said.returncode == 0
    assert said.stdout.split()[0] == "staniel"
    assert said.stdout.split()[1] in server.greeting


def test_a_mistyped_command_is_told_which_one_is_near() -> None:
    said = run_staniel("purg", "q")
    assert said.returncode == 2 and said.stderr.endswith("Error: No such command 'purg'. Did you mean 'purge'?\n")
    said = run_staniel("zzz")
    assert said.returncode == 2 and said.stderr.endswith("Error: No such command 'zzz'.\n")


def test_ping_says_that_a_server_answers(server: Server) -> None:
    said = run_staniel("ping", "--port", str(server.port))
    assert said.returncode == 0
    assert said.stdout == f"staniel {VERSION} answers on 127.0.0.1:{server.port}\n"


def test_ping_fails_in_one_line_where_nobody_listens() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        said = run_staniel("ping", "--port", str(probe.getsockname()[1]))
    assert (said.returncode, said.stdout, said.stderr.count("\n")) == (1, "", 1)
    assert "no answer from 127.0.0.1:" in said.stderr
    ways = "--host, --port, --unix, --config or --spool"
    assert said.stderr.endswith(f": Connection refused; start it, or name another with {ways}\n")


def test_ping_fails_in_time_where_somebody_listens_and_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        said = run_staniel("ping", "--port", str(silent.getsockname()[1]), "--timeout", "0.2")
    assert (said.returncode, said.stdout, said.stderr.count("\n")) == (4, "", 1)


def test_ping_tells_a_full_server_from_none_and_the_log_has_one_line_of_it(tmp_path: Path) -> None:
    with running(tmp_path, config="[server]\nmax_connections = 2\n") as server:
        began_s = time.monotonic()
        for _ in range(3):
            with Wire(server.address) as first, Wire(server.address) as second:
                assert first.ask(b"version") and second.ask(b"version")
                said = run_staniel("ping", "--port", str(server.port), "--timeout", "0.2")
                assert (said.returncode, said.stdout, said.stderr.count("\n")) == (4, "", 1)
                assert "the port is open: the server is full (max_connections" in said.stderr
        assert until(lambda: run_staniel("ping", "--port", str(server.port)).returncode == 0)
        hint = 'hint="the limit of connections is reached; new ones wait for one to end"'
        told = lines(server, "connections.full")
        assert set(told) == {f"address=127.0.0.1:{server.port} {hint}"}
        assert len(told) <= 1 + int(time.monotonic() - began_s) // 10, "no more than one in ten seconds"


class Dripping(threading.Thread):
    """A server that sends one byte of an endless answer now and then, until the client leaves."""

    def __init__(self, listening: socket.socket) -> None:
        super().__init__(daemon=True)
        self.listening = listening

    def run(self) -> None:
        sock, _ = self.listening.accept()
        with sock, contextlib.suppress(OSError):
            while True:
                sock.sendall(b"V")
                time.sleep(0.1)


def test_the_timeout_of_ping_is_for_all_of_the_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        Dripping(listening).start()
        with pytest.raises(OSError, match="timed out"):
            ping("127.0.0.1", listening.getsockname()[1], 0.3)


@pytest.mark.parametrize("bad", ["-1", "0", "nan", "inf", "soon"])
def test_a_time_that_ping_cannot_wait_is_a_usage_error(bad: str) -> None:
    said = run_staniel("ping", "--timeout", bad)
    assert said.returncode == 2 and "Traceback" not in said.stderr


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".example", "\udc80", "", "no such host", "[::1]"])
def test_ping_fails_in_one_line_for_a_host_that_is_none(host: str) -> None:
    said = run_staniel("ping", "--timeout", "1", "--host", host)
    assert (said.returncode, said.stdout, said.stderr.count("\n")) == (1, "", 1), said.stderr


def test_a_status_and_pauses_show_in_the_greeting_in_stats_and_in_pings_exit_code(server: Server) -> None:
    port = ("--port", str(server.port))
    with Wire(server.address) as wire:
        wire.put("a", b"1")
        wire.put("b", b"1")
        assert wire.ask(b"pause a gets") == b"OK"
        said = run_staniel("ping", *port)
        assert (said.returncode, said.stdout.split(", ")[1:]) == (3, ["1 paused queue\n"])
        assert wire.ask(b"pause b") == b"OK"
        assert wire.ask(b"status quiescent") == b"END"
    server.stop()
    server.start()
    port = ("--port", str(server.port))
    assert server.greeting.endswith(f" MB read, status quiescent, 2 paused queues ({BUILD})\n")
    found = stats(server.address)
    assert (found["status"], found["paused_queues"]) == ("quiescent", "2")
    said = run_staniel("ping", *port)
    assert (said.returncode, said.stdout.split(", ")[1:]) == (3, ["status quiescent", "2 paused queues\n"])
    assert run_staniel("ping", "--alive", *port).returncode == 0
    with Wire(server.address) as wire:
        assert [wire.ask(line) for line in (b"status up", b"resume a", b"resume b")] == [b"END", b"OK", b"OK"]
        assert run_staniel("ping", *port).returncode == 0
        assert wire.ask(b"stats server").startswith(b"STAT uptime ")


@pytest.mark.parametrize("bad", ["", "soon", "-1ms", "50 parsecs", "1e3"])
def test_a_sync_policy_that_is_none_is_one_line(tmp_path: Path, bad: str) -> None:
    said = run_staniel("serve", "--port", "0", "--spool", str(tmp_path / "spool"), "--sync", bad)
    assert (said.returncode, said.stdout, said.stderr.count("\n")) == (1, "", 1)
    assert said.stderr.startswith("staniel: --sync: expected ")
    assert not (tmp_path / "spool").exists()


@pytest.mark.parametrize("bad", ["-1", "65536", "http"])
def test_a_port_that_is_none_is_a_usage_error(bad: str) -> None:
    assert run_staniel("serve", "--port", bad).returncode == 2


@pytest.mark.parametrize("words", [["sevre"], ["serve", "--prot", "1"], ["serve", "now"]])
def test_a_word_nobody_knows_is_a_usage_error(words: list[str]) -> None:
    said = run_staniel(*words)
    assert said.returncode == 2 and "Traceback" not in said.stderr


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[queues.jobs]\nmax_itms = 5\n", 'queues.jobs.max_itms: unknown key, did you mean "max_items"?'),
        ("[server]\nspool = 5\n", "server.spool: expected "),
        ("[memcache\n", "line 1: "),
        ("[queues.jobs]\nmax_items = 'many'\n", 'queues.jobs.max_items: expected a whole number >= 0, got "many"'),
    ],
)
def test_a_mistake_in_the_configuration_is_one_line_that_names_it(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "staniel.toml"
    path.write_text(text)
    said = run_staniel("serve", "--config", str(path), "--port", "0")
    assert (said.returncode, said.stdout, said.stderr.count("\n")) == (1, "", 1)
    assert said.stderr.startswith(f"staniel: {path}: {complaint}")


def test_a_configuration_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    said = run_staniel("serve", "--config", str(tmp_path / "none.toml"))
    assert said.returncode == 1
    assert said.stderr == f"staniel: {tmp_path}/none.toml: cannot be read: No such file or directory\n"


def test_the_options_of_serve_are_those_of_the_document_with_the_defaults_of_their_settings() -> None:
    document = (Path(__file__).parents[3] / "docs" / "config.md").read_text()
    body = document.split("\n## On the command line\n")[1].split("\n## ")[0]
    documented = re.findall(r"`(--[a-z-]+)`", body)
    options = [each for each in serve.params if isinstance(each, click.Option) and each.name != "help"]
    found = {}
    for option in options:
        told = re.search(r"\[default: (.*)\]", option.help or "")
        found[next(name for name in option.opts if name.startswith("--"))] = told[1] if told else "none"
    assert sorted(documented) == sorted(found)
    config = defaults(".")
    assert (config.server.host, str(config.memcache.port), config.server.log_level) == (
        found["--host"], found["--port"], found["--log-level"],
    )  # fmt: skip
    assert config.workq.cmdlog_sync == found["--cmdlog-sync"]
    numbers = (config.workq.cmdlog_sync_int_ms, config.workq.cmdlog_clean_int_ms, config.workq.cmdlog_seg_bytes)
    assert numbers == tuple(int(found[f"--cmdlog-{name}"]) for name in ("sync-int", "clean-int", "seg-size"))
