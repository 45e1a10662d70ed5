"""Tools and servers without a cluster leave the spool of a member alone, and say what to do instead."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staniel.cluster.durable import Appended, Entries, Fitness, Joined, Marked, Promised, encode_entry, new_file
from staniel.cluster.follower_spool import FILE, FollowerSpool, SpoolDiffers, forget_place
from staniel.cluster.places import Place
from staniel.cluster.spool_names import SpoolPaths
from staniel.cluster.stream import RecordKind
from staniel.journal import membership as journal_membership
from staniel.journal.disk.fs import AlreadyLocked
from staniel.journal.disk.os_fs import OsFs
from staniel.journal.membership import Membership, Standing, membership
from staniel.journal.spool import LOCK, Spool, SpoolError, lock_spool
from staniel.journal.tools.convert import Conversion
from staniel.journal.tools.repair import CannotRepair, Repair
from staniel.journal.tools.unfinished import Work, unfinished_work
from staniel.journal.tools.verify import inspect
from staniel.pipeline.tasks import pack
from staniel.pipeline.tasks.convert import convert_spool
from staniel.queues.config import Format
from staniel.sim.disk.disk import Disk, PowerCut
from staniel.sim.disk.durable import Crash
from tests.cluster.spools import EPOCH, empty_disk
from tests.cluster.test_codecs import HISTORY
from tests.cluster.test_follower_spool import apply_all, stream
from tests.faults.rich import files
from tests.support.process import run_staniel
from tests.support.world import World

A, C = b"a" * 16, b"c" * 16
JOINED = new_file(A) + encode_entry(Joined(C, 1))
FILES: dict[Standing, dict[str, bytes]] = {
    Standing.ALONE: {"member": new_file(A)},
    Standing.MEMBER: {"member": JOINED},
    Standing.SHORT: {"member": JOINED + encode_entry(Marked(Fitness.SHORT))},
    Standing.HALF: {"member": JOINED + encode_entry(Marked(Fitness.HALF)), "follower": b""},
    Standing.FOLLOWER: {"member": JOINED, "follower": b""},
    Standing.DAMAGED: {"member": b"something else"},
}
REFUSED = [standing for standing in Standing if standing is not Standing.ALONE]


def member_disk(standing: Standing) -> Disk:
    """The spool of a server that has stopped, with files of a cluster's member."""
    world = World()
    world.client().puts("an item")
    world.sync()
    world.broker.shutdown(world.now_ms)
    disk = world.disk.kill()
    for name, data in FILES[standing].items():
        disk.append(f"s/.staniel/{name}").write(data)
    return disk


def real_spool(folder: Path, standing: Standing) -> Path:
    """The same on the real disk."""
    fs = OsFs()
    spool = Spool(fs, str(folder))
    (folder / "q").write_bytes(b"")
    assert spool.listing().kestrel.keys() == {"q"}
    fs.close()
    for name, data in FILES[standing].items():
        (folder / ".staniel" / name).write_bytes(data)
    return folder


@pytest.mark.parametrize("standing", Standing)
def test_the_standing_of_a_spool_is_unfinished_work_unless_it_stands_alone(standing: Standing) -> None:
    disk = member_disk(standing)
    found = [left for left in unfinished_work(disk, "s") if left.path == membership(disk, "s").path]
    assert membership(disk, "s").standing is standing
    assert [left.work.value for left in found] == ([] if standing is Standing.ALONE else [standing.value])
    assert {each.value for each in REFUSED} <= {work.value for work in Work}


def refuse_by_start(disk: Disk) -> None:
    World(disk=disk)


def refuse_by_conversion(disk: Disk) -> None:
    Conversion(Spool(disk, "s"), "q", 1, lambda *_: None).run(Format.LIBKESTREL)


def refuse_by_repair(disk: Disk) -> None:
    list(Repair(disk, "s", None, "copy", 1, lambda *_: None).run())


@pytest.mark.parametrize("standing", REFUSED)
@pytest.mark.parametrize("use", [refuse_by_start, refuse_by_conversion, refuse_by_repair])
def test_a_members_spool_is_refused_and_unchanged(use: Callable[[Disk], None], standing: Standing) -> None:
    disk = member_disk(standing)
    before = {path: disk.read(path, 0, 1 << 20) for path in files(disk)}
    with pytest.raises((SpoolError, CannotRepair)) as refused:
        use(disk)
    assert standing.value in str(refused.value) and "To do: " in str(refused.value)
    lock = f"s/.staniel/{LOCK}"
    assert {path: disk.read(path, 0, 1 << 20) for path in files(disk) if path != lock} == {
        path: data for path, data in before.items() if path != lock
    }


@pytest.mark.parametrize("standing", REFUSED)
def test_commands_refuse_a_members_spool_in_one_line(standing: Standing, tmp_path: Path) -> None:
    spool = str(real_spool(tmp_path / "spool", standing))
    new = str(tmp_path / "new")
    calls = {
        "convert": ("journal", "convert", spool, "--to", "libkestrel", "--queue", "q"),
        "repair": ("journal", "repair", spool, "--to", new),
        "adopt": ("adopt", spool, new),
        "serve": ("serve", "--spool", spool, "--port", "0"),
        "backup": ("backup", str(tmp_path / "backups"), "--spool", spool),
    }
    for name, call in calls.items():
        said = run_staniel(*call)
        if name == "backup" and standing is Standing.MEMBER:
            assert said.returncode == 0, said.stderr
            assert not (tmp_path / "spool/.staniel/last_backup").exists(), "a member's files change by the stream alone"
            continue
        assert said.returncode and standing.value in said.stderr, (name, said.stderr)
        assert "Traceback" not in said.stderr and "To do: " in said.stderr
    assert not (tmp_path / "new").exists()


def test_a_restored_backup_of_a_member_belongs_to_no_cluster(tmp_path: Path) -> None:
    spool = real_spool(tmp_path / "spool", Standing.MEMBER)
    assert run_staniel("backup", str(tmp_path / "backups"), "--spool", str(spool)).returncode == 0
    assert run_staniel("restore", str(tmp_path / "backups"), str(tmp_path / "new")).returncode == 0
    restored = OsFs()
    assert membership(restored, str(tmp_path / "new")).is_alone
    assert not (tmp_path / "new/.staniel/member").exists()


def test_verify_names_the_mark(tmp_path: Path) -> None:
    for standing in REFUSED:
        spool = real_spool(tmp_path / standing.name, standing)
        said = run_staniel("journal", "verify", str(spool))
        assert said.returncode == 0, said.stderr
        assert (standing.value in said.stderr) is (standing is not Standing.MEMBER)


@pytest.mark.slow
def test_a_followers_spool_has_no_damage_after_any_power_cut() -> None:
    records, _ = stream()
    whole = empty_disk()
    whole.log.clear()
    apply_all(whole, records).close()
    chance, torn = Random(5), 0
    for stop in range(20, len(whole.log), 7):
        disk = empty_disk()
        disk.log.clear()
        disk.stop_at = stop
        with pytest.raises(PowerCut):
            apply_all(disk, records).close()
        left = disk.crash(chance.randrange)
        if membership(left, "s").standing is not Standing.FOLLOWER:
            continue
        flaws = [flaw for each in inspect(left, "s", is_follower=True) for flaw in each.flaws]
        assert all(flaw.is_torn for flaw in flaws), (stop, flaws)
        torn += len(flaws)
    assert torn


@given(st.integers(0, 700), st.binary(max_size=40))
def test_the_two_readers_of_a_members_file_agree(cut: int, garbage: bytes) -> None:
    entries: list[Entries] = [*HISTORY, Marked(Fitness.HALF), Appended(4, 8, RecordKind.PUT, b"x" * 5000), Promised(7)]
    pieces = [new_file(A), *map(encode_entry, entries)]
    disk = empty_disk()
    disk.make_folder("s/.staniel")
    data = b"".join(pieces)
    disk.append("s/.staniel/member").write(data[: max(len(pieces[0]), cut)] + garbage)
    kept_entries = []
    left = max(len(pieces[0]), cut) - len(pieces[0])
    for piece, entry in zip(pieces[1:], entries, strict=True):
        left -= len(piece)
        if left >= 0:
            kept_entries.append(entry)
    marks = [entry.fitness for entry in kept_entries if isinstance(entry, Marked)]
    standing = membership(disk, "s").standing
    if not any(isinstance(entry, Joined) for entry in kept_entries):
        assert standing in (Standing.ALONE, Standing.DAMAGED)
    else:
        assert standing is journal_membership.FITNESS[marks[-1] if marks else Fitness.WHOLE]


def test_a_member_keeps_the_lock_while_it_becomes_the_leader(tmp_path: Path) -> None:
    folder = str(tmp_path)
    fs, other = OsFs(), OsFs()
    lock_spool(fs, folder)
    follower = FollowerSpool(fs, SpoolPaths(folder))
    follower.apply(Place(EPOCH, 1), b"")
    follower.close()
    with pytest.raises(AlreadyLocked):
        Spool(other, folder, is_member=False)
    with pytest.raises(AlreadyLocked):
        lock_spool(other, folder)
    spool = Spool(fs, folder, is_member=True)
    assert spool.check_files_in_place()
    with pytest.raises(AlreadyLocked):
        lock_spool(other, folder)
    fs.close()
    lock_spool(other, folder)
    other.close()


def test_a_member_whose_lock_was_taken_away_does_not_lead(tmp_path: Path) -> None:
    fs = OsFs()
    lock_spool(fs, str(tmp_path))
    lock = tmp_path / ".staniel" / LOCK
    lock.unlink()
    lock.touch()
    with pytest.raises(SpoolError, match="was removed or replaced"):
        Spool(fs, str(tmp_path), is_member=True)
    fs.close()
    with pytest.raises(SpoolError, match="was removed or replaced"):
        Spool(OsFs(), str(tmp_path), is_member=True)


def test_the_texts_say_what_to_do() -> None:
    texts = {Membership(standing, "path").refusal("spool") for standing in Standing}
    assert len(texts) == len(Standing) and json.dumps(sorted(texts)).count("To do: ") == len(Standing)
    assert FILE == journal_membership.PLACE_FILE


def test_conversions_and_packs_on_many_machines_refuse_it_too(tmp_path: Path) -> None:
    spool = str(real_spool(tmp_path / "spool", Standing.MEMBER))
    (result,) = convert_spool((spool, "", Format.LIBKESTREL, 1))
    assert Standing.MEMBER.value in result.refusal
    fs = OsFs()
    with pytest.raises(ValueError, match=Standing.MEMBER.value):
        pack._ready(fs, spool)
    fs.close()


@pytest.mark.parametrize("how", [Crash.DROP, Crash.KEEP])
def test_a_member_that_leads_has_no_place_any_more_after_any_accident(how: Crash) -> None:
    records, _ = stream()
    disk = empty_disk()
    apply_all(disk, records).close()
    assert membership(disk, "s").standing is Standing.FOLLOWER
    forget_place(disk, SpoolPaths("s"))
    forget_place(disk, SpoolPaths("s"))
    left = disk.crash(how)
    assert membership(left, "s").is_alone
    with pytest.raises(SpoolDiffers, match="no place in a stream"):
        FollowerSpool(left, SpoolPaths("s"))
