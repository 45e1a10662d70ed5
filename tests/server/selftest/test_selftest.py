"""What the self-test finds, on this disk and on ones that are worse."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from staniel.bench.harness.small_disk import TMPFS, small_disk
from staniel.journal.spool import SpoolError
from staniel.server.selftest import crashes, machine, power_cut
from staniel.server.selftest.child import QUEUES, Child, ChildFailed
from staniel.server.selftest.crashes import Books, item_for, number_of
from staniel.server.selftest.findings import CheckResult, Verdict, conclusion, fail, ok, warning
from tests.support.process import STANIEL, run_staniel

SELFTEST_S_MAX = 240.0
FILES_MAX = 1000  # of a small disk: without a bound it has as many as the machine's memory has pages
CHECKS = [
    *("file system", "space", "sync", "sync of all", "past the cache", "abilities", "open files", "memory", "clock"),
    *("kill -9", "torn files", "a write fails", "a sync fails"),
]


def selftest(*arguments: str, wrapper: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    command = [*wrapper, *STANIEL, "selftest", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=SELFTEST_S_MAX)


@pytest.mark.slow
def test_a_sound_disk_passes_and_nothing_is_left_behind(tmp_path: Path) -> None:
    said = selftest(str(tmp_path), "--seconds", "1", "--json")
    *found, last = map(json.loads, said.stdout.splitlines())
    assert said.returncode == 0 and said.stderr == "", said
    names = [each["name"] for each in found]
    assert [name for name in CHECKS if name != "past the cache"] == [n for n in names if n != "past the cache"]
    crashed = [each for each in found if each["name"] in CHECKS[-4:]]
    assert all(each["verdict"] == "ok" for each in crashed), crashed
    assert last["verdict"] == "ok" and last["text"].startswith("fit for every sync_journal")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_selftest_that_is_ended_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [*STANIEL, "selftest", str(tmp_path), "--seconds", "600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline().startswith(("ok ", "warning "))
        assert len(list(tmp_path.iterdir())) == 1
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        assert process.wait() == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_numbers_that_were_acknowledged_are_there_after_the_end_and_missing_ones_are_counted(tmp_path: Path) -> None:
    """A kill in the place of the power cut; then a disk that had said more than it kept."""
    with subprocess.Popen(
        [*STANIEL, "selftest", str(tmp_path), "--write"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("pull the plug")
        shown = [int(process.stdout.readline().split()[1]) for _ in range(20)]
        process.kill()
    assert shown == sorted(shown) and shown[0] > 0
    kept = selftest(str(tmp_path), "--verify", "--acknowledged", str(shown[-1]))
    assert kept.returncode == 0 and f"every number up to {shown[-1]:,} that was acknowledged is there" in kept.stdout
    told = selftest(str(tmp_path), "--verify")
    assert told.returncode == 0 and "are there, none is missing between them" in told.stdout
    lied = selftest(str(tmp_path), "--verify", "--acknowledged", "1000000", "--json")
    assert lied.returncode == 1 and "lies about its cache" in json.loads(lied.stdout.splitlines()[0])["advice"]


@pytest.mark.programs("unshare", "nsenter", "mount")
@pytest.mark.parametrize("has_inodes", [True, False])
def test_a_full_disk_is_a_verdict_and_what_would_write_to_it_is_left_out(tmp_path: Path, has_inodes: bool) -> None:
    with small_disk(tmp_path / "disk", 1 << 20, TMPFS.replace("size=", f"nr_inodes={FILES_MAX},size=")) as disk:
        while disk.free_bytes():
            disk.fill(0)
        with suppress(OSError):
            for number in range(0 if has_inodes else FILES_MAX):
                (disk.view / f"f{number}").touch()
        assert (os.statvfs(disk.view).f_favail > 0) is has_inodes
        said = selftest(str(disk.folder), "--json", wrapper=disk.wrapper)
    *found, last = map(json.loads, said.stdout.splitlines())
    failed = [each for each in found if each["verdict"] == "fail"]
    assert said.returncode == 1 and said.stderr == "", said
    assert {each["name"] for each in failed} == {"space"} and all("df -i" in each["advice"] for each in failed)
    assert last == {"verdict": "fail", "text": "not fit for a spool: space"}
    assert ("crashes" in [each["name"] for each in found]) is has_inodes


@pytest.mark.programs("unshare", "nsenter", "mount")
def test_a_small_disk_is_fit_but_no_crash_is_tried_on_it(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 20 << 20) as disk:
        said = selftest(str(disk.folder), "--seconds", "2", "--json", wrapper=disk.wrapper)
    *found, last = map(json.loads, said.stdout.splitlines())
    assert said.returncode == 0 and found[-1]["name"] == "crashes" and "64 MB" in found[-1]["text"]
    assert last["text"].endswith("no crash was tried, for lack of room")


@pytest.mark.programs("unshare", "nsenter", "mount")
def test_a_disk_of_few_files_is_no_place_for_crashes(tmp_path: Path) -> None:
    script = TMPFS.replace("size=", "nr_inodes=40,size=")
    with small_disk(tmp_path / "disk", 200 << 20, script) as disk:
        said = selftest(str(disk.folder), "--seconds", "1", "--json", wrapper=disk.wrapper)
    *found, last = map(json.loads, said.stdout.splitlines())
    assert said.returncode == 0 and said.stderr == "" and "200 files" in found[-1]["text"]
    assert last["text"].endswith("no crash was tried, for lack of room")


@pytest.mark.parametrize("error", [SpoolError("cannot use it"), ChildFailed("no"), OSError(28, "No space left")])
def test_a_check_that_cannot_be_made_is_a_finding(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object) -> CheckResult:
        raise error

    for name in ("kills", "torn_files", "failed_write", "failed_sync"):
        monkeypatch.setattr(crashes, name, fails)
    found = list(crashes.crash(str(tmp_path), 1, Random(1)))
    assert [each.verdict for each in found] == [Verdict.FAIL] * 4
    assert all(each.text == f"a server cannot work here: {error}" for each in found)


def test_a_check_that_fails_once_others_have_filled_the_disk_asks_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: str) -> CheckResult:
        monkeypatch.setattr(crashes, "has_room_for_crashes", lambda folder: False)
        return fail("a sync fails", "puts are refused", crashes.SOFTWARE)

    for name in ("kills", "torn_files", "failed_write"):
        monkeypatch.setattr(crashes, name, lambda *arguments: ok("", ""))
    monkeypatch.setattr(crashes, "failed_sync", full)
    assert list(crashes.crash(str(tmp_path), 1, Random(1)))[-1] == fail(
        "a sync fails", "puts are refused", machine.ROOM
    )


def test_what_cannot_be_tested_is_no_verdict(tmp_path: Path) -> None:
    before = run_staniel("selftest", str(tmp_path), "--verify")
    assert before.returncode == 2 and "begin with --write" in before.stderr
    assert run_staniel("selftest", str(tmp_path), "--write", "--verify").returncode == 2
    assert run_staniel("selftest", str(tmp_path), "--acknowledged", "3").returncode == 2
    assert run_staniel("selftest", "/proc").returncode == 2


@pytest.mark.parametrize(
    ("numbers", "acknowledged", "verdict"),
    [
        ([1, 2, 3], None, Verdict.OK),
        ([1, 2, 3], 3, Verdict.OK),
        ([1, 2, 3], 2, Verdict.OK),  # more than was answered may be there
        ([1, 2, 3], 4, Verdict.FAIL),
        ([], 4, Verdict.FAIL),
        ([], None, Verdict.WARNING),
        ([1, 3], None, Verdict.FAIL),
        ([1, 2, -1], 2, Verdict.FAIL),
        ([2, 1], 2, Verdict.FAIL),
    ],
)
def test_the_power_cut_is_judged_by_the_numbers(numbers: list[int], acknowledged: int | None, verdict: Verdict) -> None:
    assert power_cut.judged(numbers, acknowledged).verdict is verdict


@pytest.mark.parametrize(
    ("took_ms", "verdict"),
    [
        (0.001, Verdict.WARNING),
        (0.014, Verdict.WARNING),
        (0.1, Verdict.OK),
        (19.0, Verdict.OK),
        (21.0, Verdict.WARNING),
    ],
)
def test_syncs_that_are_too_fast_or_slow_are_named(took_ms: float, verdict: Verdict) -> None:
    found = machine._judge_sync([took_ms] * 50)
    assert found.verdict is verdict and bool(found.advice) == (verdict is not Verdict.OK)


def test_the_books_know_what_is_lost_doubled_damaged_or_back() -> None:
    def wrong(found: list[bytes]) -> list[str]:
        books = Books()
        books.kept["plain"], books.open["plain"], books.gone["plain"] = {1, 2}, {3}, {4}
        books.compare("plain", found)
        return books.wrong

    both = [item_for(1), item_for(2)]
    assert wrong(both) == wrong([*both, item_for(3)]) == []
    assert wrong(both[:1]) == ["1 answered items of plain are lost"]
    assert wrong([*both, both[0]]) == ["1 answered items of plain are there twice"]
    assert wrong([*both, item_for(4)]) == ["1 answered items of plain came back"]
    assert wrong([*both, item_for(3)[:-1]]) == ["1 answered items of plain are damaged"]
    assert number_of(item_for(7)) == 7 and number_of(b"") == number_of(b"7:") == -1


def test_the_verdict_names_the_policy_that_the_disk_is_fit_for() -> None:
    sound = ok("space", "")
    assert '"always"' in conclusion([sound])
    assert "look at the warning" in conclusion([sound, warning("sync", "", "")])
    assert '"os" alone' in conclusion([sound, fail("file system", "", "", breaks_syncs=True)])
    memory = [warning("file system", "", "", breaks_syncs=True), warning("sync", "", "")]
    assert '"os" alone' in conclusion(memory) and "machine restarts" in conclusion(memory)
    both = [fail("file system", "", "", breaks_syncs=True), fail("kill -9", "", "")]
    assert conclusion(both) == "not fit for a spool: kill -9"


def lose(child: Child) -> None:
    """A file of a queue is gone at the next start."""
    for queue in QUEUES:
        Path(f"{child.folder}/spool/{queue}").unlink(missing_ok=True)


def shorten(child: Child) -> None:
    """A journal has lost its end."""
    path = Path(f"{child.folder}/spool/plain")
    if path.exists():
        os.truncate(path, path.stat().st_size // 2)


@pytest.mark.slow
@pytest.mark.parametrize("harm", [lose, shorten])
def test_a_disk_that_loses_what_was_answered_fails(
    tmp_path: Path, harm: Callable[[Child], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Child.start

    def harmed(child: Child) -> None:
        harm(child)
        start(child)

    monkeypatch.setattr(Child, "start", harmed)
    found = crashes.kills(str(tmp_path), 0.1, Random(1))
    assert found.verdict is Verdict.FAIL and "are lost" in found.text


@pytest.mark.slow
def test_a_disk_that_keeps_a_mangled_copy_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = Child.start

    def mangled(child: Child) -> None:
        path = Path(f"{child.folder}/spool/plain")
        if child.folder.endswith("torn") and path.exists() and path.stat().st_size > 100:
            data = bytearray(path.read_bytes())
            data[60] ^= 1
            path.write_bytes(data)
        start(child)

    monkeypatch.setattr(Child, "start", mangled)
    assert crashes.torn_files(str(tmp_path), Random(1)).verdict is Verdict.FAIL


def test_a_file_system_of_memory_is_a_warning_and_one_without_syncs_a_failure(tmp_path: Path) -> None:
    found = list(machine.run_checks(str(tmp_path), 0.1, {"LD_PRELOAD": "libeatmydata.so"}))
    (first,) = [each for each in found if each.name == "file system"]
    assert first.verdict is Verdict.FAIL and first.breaks_syncs
    assert {each.name for each in found} >= {"space", "sync", "abilities", "memory", "clock"}
