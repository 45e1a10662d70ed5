"""`staniel journal verify`: what it says of a spool in three formats, sound, damaged and torn, and when it refuses."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.job_world import job_id
from tests.support.process import Server, run_staniel, running, until
from tests.support.wire import Wire

CONFIG = """
queues.jobs.max_memory_size = 20000
queues.mail.journal_format = "libkestrel"
queues.mail.default_journal_size = 20000
[workq]
port = 0
"""
WORD = b"a word that stands in every item; "


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A spool that a server has filled, in all formats, and left."""
    folder = tmp_path_factory.mktemp("verify")
    with running(folder / "server", config=CONFIG) as server:
        fill(server)
        server.stop()
        shutil.copytree(server.spool, folder / "spool", ignore=shutil.ignore_patterns("ballast", "*.new"))
    return folder / "spool"


def fill(server: Server) -> None:
    with Wire(server.address) as wire:
        for number in range(600):
            for queue in ("jobs", "mail"):
                assert wire.put(queue, WORD * 4 + b"%d" % number) == b"STORED"
    with Wire(server.workq_address) as wire:
        for number in range(20):
            line = b"add %b work 60000 600000 %d" % (job_id(number).encode(), len(WORD))
            assert wire.ask(line + b"\r\n" + WORD) == b"+OK"
    sealed = {path.name for path in server.spool.glob("jobs.*")}
    own = server.spool / ".staniel" / "segments"
    assert len(sealed) > 2 and until(lambda: {path.name for path in own.iterdir()} == sealed)


@pytest.fixture
def spool(served: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(served, tmp_path / "spool"))


def verify(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    said = run_staniel("journal", "verify", *map(str, arguments))
    assert "Traceback" not in said.stderr
    return said


def sealed_file(spool: Path) -> Path:
    return sorted(spool.glob("jobs.*"))[1]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 16
    path.write_bytes(data)


def test_a_sound_spool_is_one_line_of_totals(spool: Path) -> None:
    said = verify(spool)
    files = [path for path in spool.glob("*") if path.is_file()]
    log = list(spool.glob(".staniel/cmdlog/*.log"))
    size = sum(path.stat().st_size for path in [*files, *log])
    checked = len(list(spool.glob("jobs.*"))) + len(log)
    assert len(log) == 1 and (said.returncode, said.stderr) == (0, "")
    records = json.loads(verify(spool, "--json").stdout)["records"]
    assert records > 1220
    assert said.stdout == (
        f"{len(files) + 1} files, {records:,} records, {size:,} bytes; {checked} files have checksums; 0 damaged.\n"
    )


def test_a_flipped_bit_in_an_item_is_found_where_there_are_checksums(spool: Path) -> None:
    path = sealed_file(spool)
    at = path.read_bytes().index(WORD, 9000)
    flip(path, at)
    said = verify(spool)
    assert said.returncode == 1
    line, total = said.stdout.splitlines()
    block = at // 4096 * 4096
    size = min(4096, path.stat().st_size - block)
    assert line == f"{path}: byte {block}, {size} bytes: not what was written, by the checksum"
    assert total.endswith("; 1 damaged.")
    assert verify(spool, "--queue", "mail").returncode == 0
    quiet = verify(spool, "--quiet", "-Q", "jobs")
    assert quiet.returncode == 1 and len(quiet.stdout.splitlines()) == 1
    place, totals = map(json.loads, verify(spool, "--json").stdout.splitlines())
    assert place == {"file": str(path), "at": block, "bytes": size, "why": line.partition("bytes: ")[2], "torn": False}
    assert totals["damaged"] == 1


def test_a_file_cut_short_is_found_in_every_format(spool: Path) -> None:
    shortened = [sealed_file(spool), sorted(spool.glob("mail.[0-9]*"))[0]]
    for path in shortened:
        path.write_bytes(path.read_bytes()[:-7])
    flip(spool / ".staniel/cmdlog/000000001.log", 100)
    said = verify(spool)
    assert said.returncode == 1
    lines = said.stdout.splitlines()
    assert {line.partition(": ")[0] for line in lines[:-1]} == {
        *map(str, shortened),
        str(spool / ".staniel/cmdlog/000000001.log"),
    }
    assert any("7 bytes: missing at the end of a sealed file" in line for line in lines)
    assert lines[-1].endswith("; 3 damaged.")


def test_what_a_killed_server_was_writing_is_torn_and_no_damage(spool: Path) -> None:
    sound = verify(spool, "--json").stdout
    for path in (spool / "jobs", sorted(spool.glob("mail.[0-9]*"))[-1], *spool.glob(".staniel/cmdlog/*.log")):
        path.write_bytes(path.read_bytes()[:-3])
    said = verify(spool)
    assert said.returncode == 0
    lines = said.stdout.splitlines()
    assert len(lines) == 4 and all("torn end" in line for line in lines)
    assert lines[-1].endswith("; 0 damaged, 3 with a torn end.")
    *places, totals = map(json.loads, verify(spool, "--json").stdout.splitlines())
    assert [place["torn"] for place in places] == [True] * 3
    assert totals["records"] == json.loads(sound)["records"] - 3


def test_a_command_log_elsewhere_is_verified_by_its_own_folder(spool: Path, tmp_path: Path) -> None:
    log = Path(shutil.move(spool / ".staniel" / "cmdlog", tmp_path / "log"))
    said = verify(log)
    assert said.returncode == 0 and said.stdout.startswith("1 files, ")
    flip(log / "000000001.log", 200)
    assert verify(log).returncode == 1 and verify(spool).returncode == 0


def test_a_spool_that_a_server_has_open_is_refused(tmp_path: Path) -> None:
    config = f'[workq]\nport = 0\ncmdlog_path = "{tmp_path}/log"\n'
    with running(tmp_path / "server", config=config) as server:
        for folder in (server.spool, tmp_path / "log"):
            said = verify(folder)
            assert (said.returncode, said.stdout) == (2, "")
            assert said.stderr == (
                f"Error: staniel, process {server.pid} has {folder} open; stop it first, or verify a copy\n"
            )


def test_where_there_is_nothing_to_verify_nothing_is_called_sound(spool: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    said = verify(tmp_path / "empty")
    assert (said.returncode, said.stderr) == (2, f"Error: no journal file in {tmp_path}/empty\n")
    assert list((tmp_path / "empty").iterdir()) == []
    said = verify(spool, "-Q", "nobody")
    assert (said.returncode, said.stderr) == (2, f"Error: no journal file of such a queue in {spool}\n")
    assert verify(tmp_path / "nowhere").returncode == 2


@pytest.mark.parametrize("queue", ["jobs", "mail"])
def test_a_last_item_that_ends_in_zeros_is_pointed_at_and_is_no_damage(spool: Path, queue: str) -> None:
    with running(spool.parent, config=CONFIG) as server:
        with Wire(server.address) as wire:
            assert wire.put(queue, WORD + bytes(7)) == b"STORED"  # as a number may
        server.kill()
        written = spool / "jobs" if queue == "jobs" else max(spool.glob("mail.1*"))
        assert verify(spool).stdout.endswith(" 0 damaged.\n")
        with written.open("r+b") as file:
            file.seek(-20, 2)
            file.write(bytes(20))
        said = verify(spool)
        size = written.stat().st_size
        assert said.returncode == 0 and f"{written}: byte {size - 20}, 20 bytes: the last item, " in said.stdout
        assert "ends in zeros: written so, or left by a power loss; no damage for certain" in said.stdout
        assert said.stdout.endswith(" 0 damaged, 1 with a last item that ends in zeros.\n")
        place, totals = map(json.loads, verify(spool, "--json").stdout.splitlines())
        assert place["suspect"] and place["bytes"] == 20 and (totals["suspect"], totals["damaged"]) == (1, 0)


def test_a_sealed_file_that_is_gone_is_damage_and_a_start_names_it(spool: Path) -> None:
    gone = sealed_file(spool)
    gone.unlink()
    said = verify(spool)
    assert said.returncode == 1 and f"{gone}: byte 0, " in said.stdout
    assert "a missing sealed file, with " in said.stdout
    with running(spool.parent, config=CONFIG) as server:
        assert "journal.gone" in server.stderr and gone.name in server.stderr


def test_a_path_that_the_system_refuses_to_look_at_is_not_called_missing(tmp_path: Path) -> None:
    done = run_staniel("journal", "verify", str(tmp_path / ("x" * 300)))
    assert done.returncode == 2 and "File name too long" in done.stderr and "does not exist" not in done.stderr
