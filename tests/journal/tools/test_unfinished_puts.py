"""A spool whose server was killed with puts with keys under way: tools carry the keys, or say what they leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from staniel.journal.spool import Spool
from staniel.journal.tools.convert import Conversion, ConversionRefused
from staniel.journal.tools.repair import Repair
from staniel.journal.tools.unfinished import Unfinished, Work, unfinished_work
from staniel.queues.config import Format
from staniel.server.backup import store as stores
from staniel.server.backup.restore import restore
from staniel.server.backup.source import RestingSource
from staniel.server.backup.take import make_backup
from staniel.server.cli.backup import open_store
from staniel.sim.disk.disk import Disk
from tests.faults.rich import LATER_MS
from tests.journal.tools.test_unfinished_transfers import on_disk, simulated
from tests.support.streams import asks
from tests.support.world import World

NOT_NOTED = Work.PUT_KEYS.value


def put(world: World, key: str) -> str:
    return asks(world, f"set q/key={key} 0 0 {len(key)}", key)


@pytest.fixture(params=list(Format))
def killed(request: pytest.FixtureRequest) -> Disk:
    """Key `done` is noted as stored, `late` is not; the item of `lost` has not been written."""
    world = World(f'default.journal_format = "{request.param.value}"\n')
    assert put(world, "done") == "STORED" and asks(world, "set other 0 0 1", "o") == "STORED"
    world.client().says("set q/key=late 0 0 4", "late")
    disk = world.disk.copy()
    disk.kill()
    assert unfinished_work(disk, "s")[-1:] == [Unfinished(Work.PUT_KEYS, "s/.staniel/keys", "q")]
    return disk


def check(disk: Disk, *, late: str = "EXISTS") -> None:
    world = World("", disk.copy(), LATER_MS)
    assert (put(world, "done"), put(world, "late")) == ("EXISTS", late)
    assert sorted(world.items()) == sorted([b"done", *[b"late"] * (1 if late == "EXISTS" else 2)])


def test_a_start_knows_both(killed: Disk) -> None:
    check(killed)


def test_a_conversion_is_refused_until_a_start_has_noted_them_and_then_keeps_them(killed: Disk) -> None:
    disk = killed.copy()
    spool = Spool(disk, "s")
    wanted = Format.KESTREL if "q" in spool.listing().streams else Format.LIBKESTREL
    with pytest.raises(ConversionRefused, match=NOT_NOTED):
        Conversion(spool, "q", LATER_MS, lambda *args: None).run(wanted)
    disk = disk.kill()
    World("", disk, LATER_MS).broker.shutdown(LATER_MS)
    disk = disk.kill()
    assert Conversion(Spool(disk, "s"), "q", LATER_MS, lambda *args: None).run(wanted) == 2
    check(disk.kill())


def test_a_repaired_copy_knows_both(killed: Disk) -> None:
    disk = killed.copy()
    assert not any(each.has_losses for each in Repair(disk, "s", None, "copy", LATER_MS, lambda size: None).run())
    disk.rename("s", "first")
    disk.rename("copy", "s")
    check(disk)


def test_a_repair_that_writes_the_queue_anew_names_the_keys_that_it_cannot_follow(
    killed: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = killed.copy()
    monkeypatch.setattr(Repair, "_is_lost_on", lambda self, source, target: True)
    told = list(Repair(disk, "s", None, "copy", LATER_MS, lambda size: None).run())
    assert [each.why_not for each in told if each.name == "keys"] == [
        "keys of puts to q had not been noted as stored: what a client puts again may be there twice"
    ]
    disk.rename("s", "first")
    disk.rename("copy", "s")
    check(disk, late="STORED")


def test_a_repair_of_one_queues_files_names_what_it_leaves_behind(killed: Disk) -> None:
    disk = killed.copy()
    names = [name for name, regular in disk.list("s") if regular]
    for queue, is_told in (("q", True), ("other", False)):
        chosen = frozenset(name for name in names if name.partition(".")[0] == queue)
        told = list(Repair(disk, "s", chosen, f"copy-{queue}", LATER_MS, lambda size: None).run())
        assert any(NOT_NOTED in each.why_not for each in told) is is_told


def test_a_backup_at_rest_and_its_restore_have_the_keys(killed: Disk, tmp_path: Path) -> None:
    spool = on_disk(killed, tmp_path)
    store = open_store(str(tmp_path / "backups"), writes=True)
    stores.prepare(store)
    source = RestingSource(str(spool), LATER_MS)
    manifest = make_backup(store, source, lambda: 0, lambda size: None)
    source.close()
    left = restore(store, manifest, str(tmp_path / "new"), lambda size: None)
    store.close()
    assert left == [Unfinished(Work.PUT_KEYS, f"{tmp_path}/new/.staniel/keys", "q")]
    check(simulated(tmp_path / "new"))
