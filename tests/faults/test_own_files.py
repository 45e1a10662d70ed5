"""The server's own files in a spool, damaged: named, kept aside, and the start goes on with everything else."""

from __future__ import annotations

import errno
import os
from random import Random

import pytest

from staniel.broker import protocols
from staniel.broker.events import Level
from staniel.journal.disk.replace_file import replace_file
from staniel.journal.undo_file import Began, frame
from staniel.sim.disk.disk import Disk
from tests.faults.rich import CONFIG, LATER_MS, OWN, Told, check, chosen, harmed, rich, sound, start
from tests.faults.rich import Harm as Harmed
from tests.support.job_world import job_id
from tests.support.streams import asks, settle
from tests.support.world import Client, World

FLIPS = 40


def put_back(disk: Disk, path: str, data: bytes) -> None:
    replace_file(disk, path, data)


@pytest.mark.parametrize("name", ["intents", "paused", "status", "last_backup", "ballast", "lock", "failed_sync"])
def test_a_folder_in_the_place_of_an_own_file_is_moved_away_and_named(name: str) -> None:
    disk = rich().copy()
    if name not in ("failed_sync", "last_backup"):
        disk.remove(f"{OWN}/{name}")
    disk.make_folder(f"{OWN}/{name}")
    served = start(disk)
    assert not served.refusal and f"{OWN}/damaged/{name}" in str(served.reports)
    assert (name, False) in disk.list(f"{OWN}/damaged")
    assert served.content["plain"] == start(rich().copy()).content["plain"]


@pytest.mark.parametrize("name", ["append.lock", "read.lock"])
def test_a_folder_in_the_place_of_a_lock_of_the_command_log_is_moved_away(name: str) -> None:
    disk = harmed(Harmed(f"{OWN}/cmdlog/{name}", "folder", 0))
    served = start(disk)
    assert not served.refusal and len(served.content["jobs"]) == 11
    assert any(line.startswith("spool.cleared") for line in served.reports)


def test_a_version_file_that_is_not_ours_to_read_refuses_in_one_line() -> None:
    for what in ("flip", "garbage", "empty", "folder", "unreadable"):
        refusal = start(harmed(Harmed(f"{OWN}/version", what, 3))).refusal
        assert refusal and "\n" not in refusal


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.EMFILE, errno.ENOMEM])
@pytest.mark.parametrize(
    "name", ["version", "intents", "paused", "status", "last_backup", "convert.plan", "undo/3", "failed_sync"]
)
def test_an_own_file_that_cannot_be_read_just_now_refuses_the_start_and_changes_nothing(name: str, number: int) -> None:
    disk = rich().copy()
    if name == "failed_sync":
        put_back(disk, f"{OWN}/failed_sync", b"null\n")
    elif name == "last_backup":
        put_back(disk, f"{OWN}/last_backup", b'{"made_at_ms":1,"where":"/b"}\n')
    elif name == "undo/3":
        disk.make_folder(f"{OWN}/undo")
        put_back(disk, f"{OWN}/undo/3", frame(Began(1, 3, LATER_MS, 2 * LATER_MS, "purge", b"plain")))
    disk.fail("read", f"{OWN}/{name}", number, times=1 << 30)
    refusal = start(disk).refusal
    assert f"{OWN}/{name}: {os.strerror(number)}; " in refusal and "\n" not in refusal
    assert not any(entry == "damaged" for entry, _ in disk.list(OWN))
    again = start(disk.kill())
    assert {queue: items for queue, items in again.content.items() if items} == sound()


@pytest.mark.parametrize("data", [b"", b"{", b"null", b'{"made_at_ms":"1"}', b"\xff", b"[" * 100_000])
def test_a_damaged_note_of_the_last_backup_is_told_and_forgotten(data: bytes) -> None:
    disk = rich().copy()
    put_back(disk, f"{OWN}/last_backup", data)
    world = Told(CONFIG, disk, LATER_MS)
    assert any(line.startswith("last_backup.damaged") for line in world.lines)
    assert world.broker.last_backup.made is None


@pytest.mark.parametrize("what", ["flips", "cut", "empty", "garbage", "folder", "zeros"])
def test_a_plan_that_cannot_be_read_holds_back_the_queue_that_it_moves_and_no_other(what: str) -> None:
    disk = harmed(Harmed(f"{OWN}/convert.plan", what, 1))
    world = Told(CONFIG, disk, LATER_MS)
    (said,) = [line for line in world.lines if line.startswith("convert.plan_damaged")]
    assert "'held': 'moving'" in said and "convert.plan" in said
    assert asks(world, "get moving").startswith("SERVER_ERROR queue moving is not available: the plan ")
    assert asks(world, "set moving 0 0 1", "x").startswith("SERVER_ERROR queue moving is not available: the plan ")
    assert asks(world, "get plain").startswith("VALUE plain ")
    if what != "folder":
        assert any(name.startswith("convert.plan@0+") for name, _ in disk.list(f"{OWN}/damaged")) or what == "empty"
    # The plan stays where it is: what it moves must not be served by halves at the next start either.
    world.broker.shutdown(world.now_ms)
    again = start(disk.kill())
    assert "moving" in again.blocked and not again.content.get("moving")


def test_no_flipped_bit_of_a_plan_moves_another_file() -> None:
    for seed in range(FLIPS):
        served = start(harmed(Harmed(f"{OWN}/convert.plan", "flip", seed)))
        assert served.content["plain"] and "moving" in served.blocked and "plain" not in served.blocked


def test_a_plan_of_an_earlier_version_has_no_checksum_and_is_carried_out() -> None:
    disk = rich().copy()
    whole = disk.read(f"{OWN}/convert.plan", 0, 1 << 20)
    before, _, _ = whole.rpartition(b',"crc":')
    put_back(disk, f"{OWN}/convert.plan", before + b"}")
    assert len(start(disk).content["moving"]) == 12


@pytest.mark.parametrize("data", [b"\xff\xfe", b'{"version":1,"queues":{"\xff":{}}}', b'{"x":' + b"[" * 100_000, b""])
def test_pauses_that_cannot_be_read_are_kept_aside_and_pause_nothing(data: bytes) -> None:
    disk = rich().copy()
    put_back(disk, f"{OWN}/paused", data)
    world = Told(CONFIG, disk, LATER_MS)
    assert any(line.startswith("pauses.damaged") for line in world.lines)
    if data:
        kept = [name for name, _ in disk.list(f"{OWN}/damaged") if name.startswith("paused@")]
        assert [disk.read(f"{OWN}/damaged/{name}", 0, 1 << 20) for name in kept] == [data]
    assert asks(world, "get other").startswith("VALUE other ")


def test_a_mark_of_a_failed_sync_that_cannot_be_read_names_nothing_and_all_is_written_anew() -> None:
    disk = rich().copy()
    put_back(disk, f"{OWN}/failed_sync", b'["\xff"]\nnot json\n[1]\n')
    world = World(CONFIG, disk, LATER_MS)
    assert "spool.renewed" in world.events


def test_an_unreadable_file_costs_its_queue_and_the_error_names_it() -> None:
    disk = rich().copy()
    archive = next(name for name, _ in disk.list("s") if name.startswith("sealed."))
    disk.fail("read", f"s/{archive}", errno.EIO, times=1 << 30)
    said: list[tuple[Level, str]] = []
    world = Told(CONFIG, disk, LATER_MS)
    said += [(Level.ERROR, line) for line in world.lines if line.startswith("journal.unreadable")]
    assert len(said) == 1 and f"s/{archive}" in said[0][1]
    why = f"SERVER_ERROR queue sealed is not available: {archive}: Input/output error"
    assert asks(world, "get sealed") == why
    assert asks(world, "get big").startswith("VALUE big ")
    assert asks(world, "get mail").startswith("VALUE mail ")


def test_one_flipped_bit_of_the_intents_loses_and_doubles_nothing() -> None:
    wrong = [line for seed in range(FLIPS) for line in check(Harmed(f"{OWN}/intents", "flip", seed))]
    assert wrong == []
    reports = start(harmed(Harmed(f"{OWN}/intents", "flip", 1))).reports
    assert sum(line.startswith("intents.damaged") and "'lost': 0" in line for line in reports) == 1


@pytest.mark.parametrize("what", ["flips", "cut", "empty", "gone", "garbage", "zeros", "folder"])
def test_intents_that_cannot_be_read_are_named_and_lose_nothing(what: str) -> None:
    for seed in range(5):
        disk = harmed(Harmed(f"{OWN}/intents", what, seed))
        size = disk.size(f"{OWN}/intents") if what in ("flips", "garbage") else 0
        before = disk.read(f"{OWN}/intents", 0, size) if size else b""
        served = start(disk)
        assert not served.refusal and not served.blocked - {"moving"}
        assert set(served.content["late"]) == {b"old.0.", b"old.1.", b"old.2."}
        reports = [line for line in served.reports if line.startswith("intents.")]
        if what in ("flips", "garbage") and before.count(b"\n"):
            assert len(reports) == 1 and "damaged/intents" in reports[0]
            kept = [name for name, _ in disk.list(f"{OWN}/damaged") if name.startswith("intents@0+")]
            assert [disk.read(f"{OWN}/damaged/{name}", 0, 1 << 20) for name in kept] == [before]


def test_intents_of_an_earlier_version_have_no_checksum_and_are_finished() -> None:
    disk = rich().copy()
    lines = disk.read(f"{OWN}/intents", 0, 1 << 20).splitlines()
    put_back(disk, f"{OWN}/intents", b"".join(line.rpartition(b',"check":')[0] + b"}\n" for line in lines))
    assert start(disk).content == start(rich().copy()).content


def test_a_command_log_that_cannot_be_read_costs_the_jobs_alone_until_a_reload() -> None:
    disk = rich().copy()
    disk.fail("read", f"{OWN}/cmdlog/000000001.log", errno.EACCES, times=1 << 30)
    world = Told(CONFIG, disk, LATER_MS)
    assert asks(world, "get plain").startswith("VALUE plain ")
    assert sum(line.startswith("cmdlog.unreadable") for line in world.lines) == 1
    worker = Client(world, protocols.workq())
    world.clients.append(worker)
    why = "-SERVER-ERROR the command log is not available: 000000001.log: Permission denied"
    for line in ("lease work 0", f"delete {job_id(1)}", "inspect server"):
        assert worker.says(line).hears() == why
    assert asks(world, "reload") != "" and worker.says("lease work 0").hears() == why
    disk._faults.clear()
    asks(world, "reload")
    worker.says("lease work 0")
    settle(world)
    assert worker.hears().startswith("+OK 1")
    world.broker.shutdown(world.now_ms)
    assert len(start(disk.kill()).content["jobs"]) == 11


def test_who_has_not_said_who_it_is_does_not_learn_why_there_are_no_jobs() -> None:
    disk = rich().copy()
    disk.fail("read", f"{OWN}/cmdlog/000000001.log", errno.EACCES, times=1 << 30)
    world = Told(CONFIG + '[users.worker]\nroles = ["read"]\nqueues = ["work"]\nuids = [7]\n', disk, LATER_MS)
    for address, why in [("192.0.2.1:7", "unauthenticated"), ("unix:pid=1,uid=7", "the command log is not available")]:
        worker = Client(world, protocols.workq(), address)
        world.clients.append(worker)
        assert worker.says("lease work 0").hears().startswith(f"-SERVER-ERROR {why}")


@pytest.mark.parametrize("seed", range(4))
def test_a_start_on_a_spool_with_any_file_harmed_serves_the_rest_and_invents_nothing(seed: int) -> None:
    chance = Random(seed)
    assert [line for _ in range(60) for line in check(chosen(chance))] == []
