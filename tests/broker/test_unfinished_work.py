"""Tools on a spool that a killed server has left amid a purge, an undo or a move: they refuse, or lose nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from staniel.broker.operations import purge
from staniel.journal.spool import Spool
from staniel.journal.tools.convert import Conversion, ConversionRefused
from staniel.journal.tools.unfinished import Work, unfinished_in, unfinished_work
from staniel.journal.undo_file import HOMEWARD_VERSION, Began, frame
from staniel.queues.config import Format
from staniel.sim.disk.disk import Disk, PowerCut
from staniel.sim.world import START_MS, World, content
from tests.broker.operations.test_undo import asked, settles

FORMATS = [Format.KESTREL, Format.LIBKESTREL]


def story(disk: Disk, form: Format) -> None:
    """Six items are purged in slices of two, and come back. Raises PowerCut."""
    world = World(f'default.journal_format = "{form.value}"', disk)
    for number in range(6):
        world.client().puts(f"item {number}")
    settles(world)
    purged = asked(world, "POST", "/api/queues/q/purge")[1]
    asked(world, "POST", f"/api/undo/{purged['undo']}")


def killed(form: Format) -> Iterator[Disk]:
    """The spool after each step of that."""
    for step in range(60, 400):
        disk = Disk()
        disk.make_folder("s")
        disk.sync_folder("")
        disk.stop_at = step
        try:
            story(disk, form)
        except PowerCut:
            yield disk.kill()
        else:
            return


def all_items(disk: Disk) -> Counter[bytes]:
    return sum((Counter(items) for items in content(disk).values()), Counter())


@pytest.mark.parametrize("form", FORMATS)
def test_a_queue_is_converted_whole_or_not_at_all(form: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purge, "ITEMS_PER_SLICE", 2)
    other = FORMATS[1 - FORMATS.index(form)]
    refused = 0
    for disk in killed(form):
        before = all_items(disk)
        if not before:
            continue
        twin = disk.fork()
        try:
            Conversion(Spool(twin, "s"), "q", START_MS + 10_000, lambda *_: None).run(other)
        except ConversionRefused as why:
            refused += Work.OPERATION.value in str(why)
        assert all_items(twin.kill()) == before
    assert refused > 4


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_left_is_told_until_a_start_has_done_it(form: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purge, "ITEMS_PER_SLICE", 2)
    seen: Counter[Work] = Counter()
    for disk in killed(form):
        left = unfinished_in(disk, "s", "q")
        seen.update([each.work for each in left])
        assert unfinished_in(disk, "s", "another") == []
        if left:
            World("", disk).broker.shutdown(START_MS)
            assert unfinished_work(disk, "s") == []
    assert seen[Work.OPERATION] > 4


def test_each_kind_of_work_is_found() -> None:
    disk = Disk()
    World("", _with_spool(disk)).broker.shutdown(START_MS)
    assert unfinished_work(disk.kill(), "s") == []
    disk.make_folder("s/.staniel/undo")
    later = frame(Began(HOMEWARD_VERSION + 1, 7, 0, 1, "", b"q", b""))
    intent = (
        b'{"begin":1,"source":"q+x","was_added_ms":1,"target":"t","after":0,"at":0,"added_ms":1,"size":1,"crc":1}\n'
    )
    texts = {"failed_sync": b"", "convert.plan": b"", "intents": intent, "undo/7": later, "undo/8": b"torn"}
    for name, data in texts.items():
        file = disk.append(f"s/.staniel/{name}")
        file.write(data)
        file.close()
    found = [(each.work, each.queue) for each in unfinished_work(disk, "s")]
    spool = [(work, "") for work in (Work.FAILED_SYNC, Work.CONVERSION)]
    assert found == [*spool, (Work.TRANSFERS, "q"), (Work.TRANSFERS, "t"), (Work.OPERATION, "")]


def _with_spool(disk: Disk) -> Disk:
    disk.make_folder("s")
    disk.sync_folder("")
    return disk
