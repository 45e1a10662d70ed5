"""The end of a file inside a record: every tool says the same of it, in every format.

Of the file that was written to when the server died it is a torn end, and no error. Of a sealed file it is damage.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.server.test_log_lines import lines
from tests.support.job_world import job_id
from tests.support.process import run_staniel, running
from tests.support.wire import Wire

CONFIG = """
queues.jobs.max_memory_size = 2000
queues.mail.journal_format = "libkestrel"
queues.mail.default_journal_size = 2000
[workq]
port = 0
cmdlog_seg_size = 2000
"""
CUT_BYTES = 3


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A spool with several files of each format, by a server that was killed."""
    folder = tmp_path_factory.mktemp("torn")
    with running(folder / "server", config=CONFIG) as server:
        with Wire(server.address) as wire, Wire(server.workq_address) as worker:
            assert wire.get("mail") is None
            for number in range(13):
                assert wire.put("jobs", b"%400d" % number) == wire.put("mail", b"%400d" % number) == b"STORED"
                line = b"add %b work 60000 600000 400\r\n%400d" % (job_id(number).encode(), number)
                assert worker.ask(line) == b"+OK"
            assert wire.get("mail/open") is not None and wire.ask(b"get mail/close") == b"END"
        server.kill()
        for path in (server.spool / ".staniel").glob("segments/*"):
            path.unlink()  # a sidecar knows that a sealed file was longer; here the records have to tell
        shutil.copytree(server.spool, folder / "spool", ignore=shutil.ignore_patterns("ballast", "*.new"))
    return folder / "spool"


@pytest.fixture
def spool(served: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(served, tmp_path / "spool"))


def cut(spool: Path, *, sealed: bool) -> list[str]:
    """Shorten one file of each format; their names."""
    mail, log = sorted(spool.glob("mail.1*")), sorted(spool.glob(".staniel/cmdlog/*.log"))
    assert len(mail) > 2 < len(log)
    files = [sorted(spool.glob("jobs.*"))[0], mail[1], log[1]] if sealed else [spool / "jobs", mail[-1], log[-1]]
    for path in [*files, *([] if sealed else spool.glob("mail.read.*"))]:
        path.write_bytes(path.read_bytes()[:-CUT_BYTES])
    return [path.name for path in [*files, *([] if sealed else spool.glob("mail.read.*"))]]


def findings(text: str) -> dict[str, str]:
    """What is said behind `byte N, M bytes: `, by the file's name."""
    found = [line for line in text.splitlines() if ": byte " in line]
    return {line.partition(": ")[0].rpartition("/")[2]: line.split(" bytes: ", 1)[1] for line in found}


@pytest.mark.parametrize("sealed", [False, True])
def test_dump_and_verify_say_the_same_of_it_in_every_format(spool: Path, sealed: bool) -> None:
    names = cut(spool, sealed=sealed)
    code = int(sealed)
    verified = run_staniel("journal", "verify", str(spool))
    assert verified.returncode == code and findings(verified.stdout).keys() == set(names)
    assert all(said.startswith("torn end, ") != sealed for said in findings(verified.stdout).values())
    for options in ([], ["--quiet"], ["--json"]):
        said = run_staniel("journal", "dump", *options, str(spool), str(spool / ".staniel" / "cmdlog"))
        assert said.returncode == code
        assert findings(said.stderr) == findings(verified.stdout)
    rows = [json.loads(line) for line in run_staniel("journal", "verify", "--json", str(spool)).stdout.splitlines()]
    assert {row["torn"] for row in rows[:-1]} == {not sealed} and rows[-1]["torn"] == (0 if sealed else len(names))


@pytest.mark.parametrize("sealed", [False, True])
def test_a_start_warns_of_it_with_file_place_and_size(spool: Path, sealed: bool) -> None:
    names = cut(spool, sealed=sealed)
    found = findings(run_staniel("journal", "verify", str(spool)).stdout)
    with running(spool.parent, config=CONFIG) as server:
        word, other = ("damaged", "torn") if sealed else ("torn", "damaged")
        told = lines(server, f"journal.{word}") + lines(server, f"cmdlog.{word}")
        assert not lines(server, f"journal.{other}") and not lines(server, f"cmdlog.{other}")
        assert len(told) == len(names)
        level = "error" if sealed else "warning"
        assert all(f" {level} " in line for line in server.stderr.splitlines() if f".{word} " in line)
        for line in told:
            fields = dict(part.split("=", 1) for part in line.split(" ") if "=" in part)
            assert fields["file"] in found and int(fields["unread_bytes"]) > 0 and "at" in fields
    assert sealed or run_staniel("journal", "verify", str(spool)).returncode in (0, 2)


def test_convert_tells_what_it_refuses_from_damage(spool: Path) -> None:
    said = run_staniel("journal", "convert", str(spool), "--queue", "nonesuch", "--to", "libkestrel")
    assert said.returncode == 2 and said.stderr.startswith("Error: "), said.stderr


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize(("queue", "wanted"), [("jobs", "libkestrel"), ("mail", "kestrel")])
def test_convert_calls_it_no_failure_unless_the_file_is_sealed(
    spool: Path, queue: str, wanted: str, sealed: bool
) -> None:
    cut(spool, sealed=sealed)
    said = run_staniel("journal", "convert", str(spool), "--queue", queue, "--to", wanted)
    assert said.returncode == int(sealed), said.stderr
    found = findings(said.stderr)
    assert found and all(text.startswith("torn end, ") != sealed for text in found.values())
