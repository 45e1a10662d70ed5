"""Every journal of the case files through the tools that look: what they show is what a recovery serves."""

from __future__ import annotations

import base64
import shutil
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from staniel.journal.disk.os_fs import OsFs
from staniel.journal.tools.contents import Contents, contents
from staniel.journal.tools.history import history
from staniel.journal.tools.repair import Repair, Repaired
from staniel.journal.tools.source import JournalNotFound, ReadSource
from staniel.journal.tools.stats import QueueStats, stats
from staniel.journal.tools.verify import inspect
from staniel.journal.trace import Happened
from tests.conformance import replay
from tests.conformance.server import fill
from tests.conformance.spool import NOW_MS, recovered
from tests.conformance.test_journal import CASES, answers, config_of, expect
from tests.conformance.test_libkestrel import CASES as STREAM_CASES
from tests.conformance.test_libkestrel import check as check_stream
from tests.conformance.test_libkestrel import recovered as recovered_stream
from tests.conformance.test_workq_fixtures import DAMAGED, FIXTURES, TORN
from tests.conformance.test_workq_fixtures import check as check_jobs
from tests.support.job_world import JobWorld, disk_with_log

JOB_STATES = {0: ("ready", "scheduled"), 1: ("completed",), 2: ("failed",), 3: ("ready again",), 4: ("leased",)}


def data_of(found: Contents, state: str) -> list[bytes]:
    assert all(held.is_certain for held in found.items)
    return [found.read(held, held.data_bytes) for held in found.items if held.state == state]


def stats_of(source: ReadSource) -> dict[str, QueueStats]:
    found = {each.name: each for each in stats(source, NOW_MS)}
    for each in found.values():
        assert each.packed_bytes <= each.bytes + 64 and sum(each.records.values()) < 1 << 20
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_the_state_of_kestrels_files_is_shown_as_the_judge_reads_it(case: dict[str, Any], tmp_path: Path) -> None:
    fill(tmp_path, case["files"])
    queue, source = case["queue"], ReadSource(OsFs(), str(tmp_path))
    wanted = replay.replay(queue, {name: bytes.fromhex(content) for name, content in case["files"].items()})
    if queue not in source.listing.kestrel:
        with pytest.raises(JournalNotFound):
            contents(source, queue, NOW_MS, NOW_MS, jobs=False)
        assert not wanted.items
        return
    with closing(contents(source, queue, NOW_MS, NOW_MS, jobs=False)) as found:
        check_contents(found, case, wanted)
    line = stats_of(source)[queue].lines[queue]
    assert line.states.get("waiting", 0) == len(wanted.items) and line.states.get("open", 0) == len(wanted.open)
    assert line.item_bytes == sum(len(each.data) for each in [*wanted.items, *wanted.open.values()])
    for held in found.items[:50]:
        life = history(source, queue, held.id)
        assert life.is_there and {event.id for event in life.events} == {held.id}
        assert life.events[0].happened is Happened.ADDED or life.events[0].record == "DUMP"
        under = history(source, queue, f"xid={held.xid}") if held.xid is not None else life
        assert {event.id for event in under.events} >= {held.id}


def check_contents(found: Contents, case: dict[str, Any], wanted: replay.State) -> None:
    assert data_of(found, "waiting") == [record.data for record in wanted.items]
    assert {held.xid: found.read(held, held.data_bytes) for held in found.items if held.state == "open"} == {
        xid: record.data for xid, record in wanted.open.items()
    }
    valid = case["expect"].get("valid_prefix", {})
    assert {each.file: each.flaw.at for each in found.flaws} == valid


@pytest.mark.parametrize("case", STREAM_CASES, ids=lambda case: str(case["name"]))
def test_the_state_of_libkestrels_files_is_shown_as_they_say(case: dict[str, Any], tmp_path: Path) -> None:
    for name, content in case["files"].items():
        (tmp_path / name).write_bytes(bytes.fromhex(content))
    family, source = case["queue"], ReadSource(OsFs(), str(tmp_path))
    if family not in source.listing.streams:
        assert not any(stats(source, NOW_MS))
        return
    answers = [case["expect"]["readers"], *case["expect"].get("readers_also", [])]
    lines, shown = stats_of(source)[family].lines, dict[str, list[str]]()
    for queue in lines:
        with closing(contents(source, queue, NOW_MS, NOW_MS, jobs=False)) as found:
            alive = [held for held in found.items if not 0 < held.expires_ms < NOW_MS and held.expires_ms >= 0]
            reader = queue.partition("+")[2] or ("" if "" in answers[0] else family)
            shown[reader] = [found.read(held, held.data_bytes).decode("latin-1") for held in alive]
        assert all(held.is_certain for held in found.items) and len(found.items) == sum(lines[queue].states.values())
        for held in found.items:
            life = history(source, queue, held.id)
            assert life.events[0].happened is Happened.ADDED and (queue != family or life.is_there)
    assert shown in answers


@pytest.mark.parametrize("name", FIXTURES)
def test_the_jobs_of_a_log_are_shown_as_the_original_had_them(name: str, tmp_path: Path) -> None:
    fixture = FIXTURES[name]
    for file, data in fixture["files"].items():
        (tmp_path / file).write_bytes(zlib.decompress(base64.b64decode(data)))
    source, at_ms = ReadSource(OsFs(), str(tmp_path)), int(fixture["truth_at_epoch"] * 1000)
    if not fixture["files"]:
        assert not fixture["jobs"] and not source.cmdlog
        return
    (log,) = stats(source, at_ms)
    shown = {}
    for queue in log.lines:
        with closing(contents(source, queue, at_ms, at_ms, jobs=True)) as found:
            items = found.items
        for held in items:
            shown[held.id] = held
            life = history(source, queue, held.id)
            assert life.is_there and life.events[0].from_ms == life.events[0].until_ms
    assert set(shown) == set(fixture["jobs"])
    for job_id, wanted in fixture["jobs"].items():
        assert shown[job_id].state in JOB_STATES[wanted["state"]]
        assert shown[job_id].data_bytes == wanted["payload_size"]
    assert any(not each.flaw.is_torn for each in log.flaws) == (name in DAMAGED)
    assert any(each.flaw.is_torn for each in log.flaws) == (name in TORN)


def repaired(folder: Path, target: Path) -> dict[str, Repaired]:
    """A copy of a folder, of which nothing is changed; what became of each journal."""
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    fs = OsFs()
    run = Repair(fs, str(folder), None, str(target), NOW_MS, lambda size: None)
    found = {each.name: each for each in run.run()}
    fs.close()
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    assert not any(flaw for each in inspect(OsFs(), str(target)) for flaw in each.flaws)
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_a_repaired_copy_serves_what_kestrels_files_would(case: dict[str, Any], tmp_path: Path) -> None:
    spool, queue = tmp_path / "spool", case["queue"]
    spool.mkdir()
    fill(spool, case["files"])
    found = repaired(spool, tmp_path / "copy")
    valid = case["expect"].get("valid_prefix", {})
    assert {each.file: each.flaw.at for each in found[queue].lost} == valid if queue in found else not valid
    shutil.rmtree(tmp_path / "copy" / ".staniel")
    with recovered(tmp_path / "copy", config_of(case)) as copy:
        assert not copy.damages
        expect("items delivered", copy.drain(queue), *answers(case["expect"]))


@pytest.mark.parametrize("case", STREAM_CASES, ids=lambda case: str(case["name"]))
def test_a_repaired_copy_holds_what_libkestrels_files_do(case: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    for name, content in case["files"].items():
        (tmp_path / "old" / name).write_bytes(bytes.fromhex(content))
    repaired(tmp_path / "old", tmp_path / "copy")
    copy = recovered_stream(tmp_path / "copy", case["queue"])
    assert not copy.damages
    if any(name for name in copy.files.names()):
        check_stream(case, copy)


@pytest.mark.parametrize("name", FIXTURES)
def test_a_repaired_log_gives_the_jobs_that_the_original_had(name: str, tmp_path: Path) -> None:
    fixture = FIXTURES[name]
    (tmp_path / "old").mkdir()
    for file, data in fixture["files"].items():
        (tmp_path / "old" / file).write_bytes(zlib.decompress(base64.b64decode(data)))
    found = repaired(tmp_path / "old", tmp_path / "copy")
    assert any(each.has_losses for each in found.values()) == (name in DAMAGED)
    files = {path.name: path.read_bytes() for path in (tmp_path / "copy").glob("*.log")}
    world = JobWorld(disk=disk_with_log(files), now_ms=int(fixture["truth_at_epoch"] * 1000))
    check_jobs(world, fixture)
    assert not {"cmdlog.damaged", "cmdlog.torn"} & set(world.events)
