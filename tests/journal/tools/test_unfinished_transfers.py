"""A spool whose server was killed with transfers under way: every tool refuses it, or carries them on as a start does.

The copies of items of `old` are durable in `late`, and their removal from `old` is not: without the intents, each item
would be in both queues.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from staniel.journal.disk.os_fs import OsFs
from staniel.journal.spool import Spool
from staniel.journal.tools.convert import Conversion, ConversionRefused
from staniel.journal.tools.repair import Repair
from staniel.journal.tools.unfinished import Unfinished, Work, unfinished_work
from staniel.pipeline.tasks.convert import convert_spool
from staniel.pipeline.tasks.pack import _ready
from staniel.queues.config import Format
from staniel.server.backup import store as stores
from staniel.server.backup.adopt import survey
from staniel.server.backup.manifest import BackupError
from staniel.server.backup.restore import restore
from staniel.server.backup.source import RestingSource
from staniel.server.backup.take import make_backup
from staniel.server.cli.backup import open_store
from staniel.sim.disk.disk import Disk
from tests.faults.rich import LATER_MS, _asks, _puts, _transfers, files, start
from tests.support.world import World

CONFIG = """
default.sync_journal = "always"
server.expiration_timer_frequency = "none"
queues.old.expire_to_queue = "late"
queues.old.journal_format = "{old}"
queues.late.journal_format = "{late}"
"""
KESTREL, LIBKESTREL = Format.KESTREL, Format.LIBKESTREL
FORMS = [(KESTREL, KESTREL), (KESTREL, LIBKESTREL), (LIBKESTREL, KESTREL), (LIBKESTREL, LIBKESTREL)]
NAMES = [f"{old.value} to {late.value}" for old, late in FORMS]
ON_THE_WAY = "items are on their way to another queue"


def served(disk: Disk) -> dict[str, list[bytes]]:
    """What a start on a copy of the spool serves."""
    found = start(disk.copy())
    assert not found.refusal and not found.blocked, found
    return {name: items for name, items in found.content.items() if items}


def killed_amid_transfers(old: Format, late: Format) -> Disk:
    world = World(CONFIG.format(old=old.value, late=late.value))
    _puts(world, "other", 5, 30)
    _asks(world, "get other")
    _transfers(world)
    disk = world.disk.copy()
    assert [each.work for each in unfinished_work(disk.copy(), "s")] == [Work.TRANSFERS] * 2
    return disk


@pytest.fixture(params=FORMS, ids=NAMES)
def killed(request: pytest.FixtureRequest) -> Disk:
    return killed_amid_transfers(*request.param)


def check(disk: Disk, killed: Disk) -> None:
    """Check that each item is there once, as after a start on the killed server's spool."""
    found, wanted = served(disk), served(killed)
    assert found == wanted
    moved = Counter(item for queue in ("old", "late") for item in found.get(queue, []))
    assert sorted(moved.values()) == [1] * 4, moved


def on_disk(disk: Disk, folder: Path) -> Path:
    """The spool as real files."""
    for path in files(disk):
        if not path.endswith((".room", "ballast")):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(disk.read(path, 0, 1 << 30))
    return folder / "s"


def simulated(folder: Path) -> Disk:
    """A spool of real files on the simulated disk."""
    disk = Disk()
    disk.make_folder("s")
    for path in sorted(folder.rglob("*")):
        name = f"s/{path.relative_to(folder)}"
        if path.is_dir():
            disk.make_folder(name)
        elif path.name != "lock":
            file = disk.append(name)
            file.write(path.read_bytes())
            file.close()
    disk.sync_all("")
    return disk


def content(folder: Path) -> dict[str, bytes]:
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: data for name, data in found.items() if not name.endswith(("lock", ".room"))}


def test_a_start_leaves_each_item_in_one_queue(killed: Disk) -> None:
    check(killed, killed)


@pytest.mark.parametrize("queue", ["old", "late"])
@pytest.mark.parametrize("wanted", list(Format))
def test_a_conversion_of_either_queue_is_refused_and_another_queue_is_converted(
    killed: Disk, queue: str, wanted: Format
) -> None:
    disk = killed.copy()
    spool = Spool(disk, "s")
    listed = spool.listing()
    there = LIBKESTREL if queue in listed.streams else KESTREL
    if wanted is not there:
        before = {path: disk.read(path, 0, 1 << 30) for path in files(disk)}
        with pytest.raises(ConversionRefused, match=ON_THE_WAY):
            Conversion(spool, queue, LATER_MS, lambda *args: None).run(wanted)
        assert {path: disk.read(path, 0, 1 << 30) for path in files(disk)} == before
    assert Conversion(spool, "other", LATER_MS, lambda *args: None).run(LIBKESTREL) == 4
    disk.kill()
    check(disk, killed)


def test_a_repaired_copy_goes_on_with_them(killed: Disk) -> None:
    disk = killed.copy()
    told = list(Repair(disk, "s", None, "copy", LATER_MS, lambda size: None).run())
    assert not any(each.has_losses for each in told)
    disk.rename("s", "first")
    disk.rename("copy", "s")
    check(disk, killed)


@pytest.mark.parametrize("names", [{"old"}, {"late"}])
def test_a_repair_of_one_queues_files_names_what_it_leaves_behind(killed: Disk, names: set[str]) -> None:
    disk = killed.copy()
    chosen = frozenset(name for name, regular in disk.list("s") if regular and name.partition(".")[0] in names)
    told = list(Repair(disk, "s", chosen, "copy", LATER_MS, lambda size: None).run())
    assert [each.why_not for each in told if each.name == "intents"] and any(
        ON_THE_WAY in each.why_not for each in told
    )


@pytest.mark.parametrize("has_version", [True, False])
def test_adopt_refuses_them(killed: Disk, tmp_path: Path, has_version: bool) -> None:
    spool = on_disk(killed, tmp_path)
    if not has_version:
        (spool / ".staniel/version").unlink()
    before = content(spool)
    with pytest.raises(BackupError, match="is a spool of Staniel already" if has_version else ON_THE_WAY):
        survey(str(spool), LATER_MS, lambda size: None)
    assert content(spool) == before


def test_a_backup_at_rest_and_its_restore_have_them_and_a_start_goes_on(killed: Disk, tmp_path: Path) -> None:
    spool = on_disk(killed, tmp_path)
    store = open_store(str(tmp_path / "backups"), writes=True)
    stores.prepare(store)
    source = RestingSource(str(spool), LATER_MS)
    manifest = make_backup(store, source, lambda: 0, lambda size: None)
    source.close()
    left = restore(store, manifest, str(tmp_path / "new"), lambda size: None)
    store.close()
    path = f"{tmp_path}/new/.staniel/intents"
    assert sorted(left, key=lambda each: each.queue) == [
        Unfinished(Work.TRANSFERS, path, "late"), Unfinished(Work.TRANSFERS, path, "old")
    ]  # fmt: skip
    check(simulated(tmp_path / "new"), killed)


def test_the_pipeline_neither_converts_nor_packs_either_queue(killed: Disk, tmp_path: Path) -> None:
    spool = on_disk(killed, tmp_path)
    before = content(spool)
    for wanted in Format:
        for queue in ("old", "late"):
            (found,) = convert_spool((str(spool), queue, wanted, LATER_MS))
            assert found.items == -1 or ON_THE_WAY in found.refusal, found
    disk = OsFs()
    with pytest.raises(ValueError, match=ON_THE_WAY):
        _ready(disk, str(spool))
    disk.close()
    assert {name: data for name, data in content(spool).items() if name in before} == before
    check(simulated(spool), killed)
