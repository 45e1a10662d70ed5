"""Spools that cannot be used, in part or at all."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from staniel.compiled import BUILD
from tests.server.test_workq import add
from tests.support.process import START_SECONDS_MAX, Server, run_staniel, running, until
from tests.support.wire import Wire, drain, stats

NOBODY = 65534
# Root may read everything, so a test about permissions runs its server as somebody else.
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups") if os.geteuid() == 0 else ()


def test_a_file_for_a_spool_is_refused_by_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("")
    said = run_staniel("serve", "--port", "0", "--spool", str(tmp_path / "spool"))
    assert said.returncode == 2 and "is a file" in said.stderr


def test_a_file_for_a_spool_in_the_configuration_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("mine")
    (tmp_path / "staniel.toml").write_text('[server]\nspool = "spool"\n')
    said = run_staniel("serve", "--config", str(tmp_path / "staniel.toml"), "--port", "0")
    assert (said.returncode, said.stderr.count("\n")) == (1, 1)
    assert said.stderr.startswith(f"staniel: cannot use the spool {tmp_path}/spool: ")
    assert (tmp_path / "spool").read_text() == "mine"


@pytest.mark.parametrize("spool", ["/proc/nowhere", "/dev/null/spool"])
def test_a_spool_where_no_folder_can_be_made_is_one_line(spool: str) -> None:
    said = run_staniel("serve", "--port", "0", "--spool", spool)
    assert (said.returncode, said.stderr.count("\n")) == (1, 1)
    assert said.stderr.startswith(f"staniel: cannot use the spool {spool}: ")


def test_a_spool_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    own = tmp_path / "spool" / ".staniel"
    own.mkdir(parents=True)
    (own / "version").write_text("staniel-spool 999\n")
    said = run_staniel("serve", "--port", "0", "--spool", str(tmp_path / "spool"))
    assert (said.returncode, said.stderr.count("\n")) == (1, 1)
    assert "staniel-spool 999" in said.stderr and "use the version of staniel that wrote it" in said.stderr


@pytest.mark.parametrize("content", ["", "staniel-spooL 1\n", "\xff\xfe", "staniel-spool 2 xy\n"])
def test_a_damaged_version_file_is_mended_by_the_command_that_the_refusal_names(tmp_path: Path, content: str) -> None:
    with running(tmp_path) as server:
        with Wire(server.address) as wire:
            assert wire.put("q", b"a") == b"STORED"
        server.stop()
        version = server.spool / ".staniel" / "version"
        version.write_text(content)
        said = run_staniel("serve", "--port", "0", "--spool", str(server.spool))
        assert (said.returncode, said.stderr.count("\n")) == (1, 1)
        subprocess.run(["sh", "-c", said.stderr.partition("repair it with: ")[2]], check=True)
        server.start()
        assert drain(server.address, "q") == [b"a"]


def test_a_damaged_version_file_beside_a_redo_log_in_use_is_mended_with_that_logs_name(tmp_path: Path) -> None:
    with running(tmp_path, config='[server]\nredo_log = "1MB"\n') as server:
        version = server.spool / ".staniel" / "version"
        assert until(lambda: version.read_text().startswith("staniel-spool 2 "))
        with Wire(server.address) as wire:
            assert wire.put("q", b"a") == b"STORED"
        server.kill()
        right = version.read_text()
        version.write_text("")
        said = run_staniel("serve", "--port", "0", "--spool", str(server.spool))
        subprocess.run(["sh", "-c", said.stderr.partition("; else with: ")[2]], check=True)
        assert version.read_text() == right


@pytest.mark.programs("prlimit")
def test_a_limit_of_file_sizes_below_a_journals_refuses_the_start(tmp_path: Path) -> None:
    server = Server(tmp_path)
    said = subprocess.run(["prlimit", "--fsize=1000000:1000000", *server.command], capture_output=True, text=True)
    assert (said.returncode, said.stderr.count("\n")) == (1, 1)
    assert said.stderr.startswith("staniel: a file may have at most 1000000 bytes, and journals need ")


LARGE = 20 << 20
LIMITED = ("prlimit", f"--fsize={18 << 20}:{18 << 20}")
SMALL = 'default.max_memory_size = "1MB"\ndefault.default_journal_size = "1MB"\n'


@pytest.mark.programs("prlimit")
@pytest.mark.parametrize("form", ["kestrel", "libkestrel"])
def test_a_journal_larger_than_the_limit_of_file_sizes_is_rotated_before_anything_is_put(
    tmp_path: Path, form: str
) -> None:
    with running(tmp_path, config=f'default.journal_format = "{form}"\n') as server:
        with Wire(server.address) as wire:
            for number in range(LARGE // 500_000):
                assert wire.put("q", b"%03d" % number + b"x" * 500_000) == b"STORED"
        server.stop()
        server.config.write_text(SMALL)
        server.wrapper, server.forked = LIMITED, False
        for expected in (b"000", b"001"):
            server.start()
            with Wire(server.address) as wire:
                taken = wire.get("q")
                assert taken is not None and taken.startswith(expected)
                assert wire.put("q", b"new") == b"STORED"
            server.stop()


@pytest.mark.programs("prlimit")
def test_a_limit_of_file_sizes_below_a_segment_of_jobs_refuses_the_start(tmp_path: Path) -> None:
    config = tmp_path / "staniel.toml"
    config.write_text(SMALL)
    command = [*Server(tmp_path).command, "--config", str(config), "--workq-port", "0"]
    said = subprocess.run([*LIMITED, *command], capture_output=True, text=True)
    assert (said.returncode, said.stderr.count("\n")) == (1, 1)
    assert "lower max_memory_size, default_journal_size and cmdlog_seg_size" in said.stderr


def test_a_dangling_link_as_spool_is_named(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    said = run_staniel("serve", "--port", "0", "--spool", str(tmp_path / "link"))
    assert (said.returncode, said.stderr.count("\n")) == (1, 1)
    assert f"{tmp_path}/link: a symbolic link to {tmp_path}/nowhere, which is not there" in said.stderr


def test_what_is_no_journal_is_left_alone_and_named(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    for name in ("notes.txt", "jobs~", "jobs.12.old"):
        (spool / name).write_text("mine")
    with running(tmp_path) as server:
        for name in ("notes.txt", "jobs~", "jobs.12.old"):
            assert f"spool.foreign file={name} " in server.stderr
            assert (spool / name).read_text() == "mine"
        assert drain(server.address, "jobs") == []


def test_a_folder_in_the_place_of_a_journal_costs_only_that_queue(tmp_path: Path) -> None:
    (tmp_path / "spool" / "jobs").mkdir(parents=True)
    with running(tmp_path) as server, Wire(server.address) as wire:
        assert "spool.foreign file=jobs " in server.stderr
        assert wire.put("jobs", b"a").startswith(b"SERVER_ERROR cannot create the journal of queue jobs: ")
        assert wire.put("other", b"a") == b"STORED"


def test_a_pipe_in_the_place_of_a_journal_costs_only_that_queue(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    os.mkfifo(tmp_path / "spool" / "jobs")
    with running(tmp_path) as server, Wire(server.address) as wire:
        wire.sock.settimeout(60)
        assert wire.put("jobs", b"a").startswith(b"SERVER_ERROR")
        assert wire.put("other", b"a") == b"STORED"


def test_a_journal_full_of_rubbish_costs_only_what_it_held(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "jobs").write_bytes(b"\xff" * 1000)
    with running(tmp_path) as server, Wire(server.address) as wire:
        assert "journal.damaged queue=jobs file=jobs at=0 unread_bytes=1000" in server.stderr
        assert wire.put("jobs", b"a") == b"STORED"
        server.restart()
        assert drain(server.address, "jobs") == [b"a"]


@pytest.fixture
def public(tmp_path: Path) -> Iterator[Path]:
    """A folder that every user can reach: the parents of pytest's are the owner's alone."""
    folder = Path("/tmp") / f"staniel-test-{os.getpid()}-{tmp_path.name}"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.programs("setpriv")
def test_a_spool_that_may_not_be_written_is_one_line(public: Path) -> None:
    spool = public / "spool"
    spool.mkdir()
    spool.chmod(0o555)
    said = subprocess.run(
        [*AS_NOBODY, *Server(public).command], capture_output=True, text=True, timeout=START_SECONDS_MAX
    )
    assert (said.returncode, said.stdout, said.stderr.count("\n")) == (1, "", 1)
    assert said.stderr.startswith(
        f"staniel: cannot use the spool {spool}: cannot make {spool}/.staniel: Permission denied; "
    )


@pytest.mark.programs("setpriv")
def test_a_journal_that_may_not_be_read_costs_only_that_queue(public: Path) -> None:
    with running(public, wrapper=AS_NOBODY) as server:
        with Wire(server.address) as wire:
            wire.put("secret", b"a")
            wire.put("open", b"b")
        server.kill()
        journal = server.spool / "secret"
        journal.chmod(0)
        server.start()
        assert "journal.unreadable queue=secret" in server.stderr
        with Wire(server.address) as wire:
            assert wire.put("secret", b"c").startswith(b"SERVER_ERROR queue secret is not available")
            assert wire.ask(b"get secret").startswith(b"SERVER_ERROR queue secret is not available")
            assert wire.get("open") == b"b"
        server.stop()
        journal.chmod(0o600)
        server.start()
        assert drain(server.address, "secret") == [b"a"]


@pytest.mark.programs("setpriv")
def test_what_cannot_be_read_shows_in_the_greeting_in_stats_and_in_pings_exit_code(public: Path) -> None:
    with running(public, "--workq-port", "0", wrapper=AS_NOBODY) as server:
        with Wire(server.address) as wire, Wire(server.workq_address) as worker:
            wire.put("secret", b"a")
            assert worker.say(add(1)).line() == b"+OK"
        server.kill()
        files = [server.spool / "secret", *(server.spool / ".staniel" / "cmdlog").glob("*.log*")]
        for file in files:
            file.chmod(0)
        server.start()
        assert server.greeting.endswith(f", 1 unreadable queue, an unreadable command log ({BUILD})\n")
        with Wire(server.address) as wire:
            assert (
                wire.ask(b"delete secret") == b"SERVER_ERROR queue secret is not available: secret: Permission denied"
            )
        said = run_staniel("ping", "--port", str(server.port))
        assert (said.returncode, said.stdout.partition(", ")[2]) == (
            3,
            "1 unreadable queue, an unreadable command log\n",
        )
        found = stats(server.address)
        assert (found["unreadable_queues"], found["unreadable_command_logs"]) == ("1", "1")
        assert found["queue_secret_unreadable"] == "secret: Permission denied"
        for file in files:
            file.chmod(0o600)
        server.signal(signal.SIGHUP)
        assert until(lambda: run_staniel("ping", "--port", str(server.port)).returncode == 0)
