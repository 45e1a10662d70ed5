"""The log of transfers by itself: which intents are still in it after it has been written anew."""

from __future__ import annotations

import pytest

from staniel.journal.disk.fs import File
from staniel.journal.transfer_log import Intent, TransferLog
from staniel.queues.item import Delivery, Item
from staniel.sim.disk.disk import Disk

PATH = "s/intents"


def test_an_intent_that_is_abandoned_stays_in_the_file_until_its_end() -> None:
    """Its source is deleted, and a power cut may bring that back: then the intent must still be known."""
    disk = Disk()
    disk.make_folder("s")
    TransferLog(disk, PATH).restart([Intent(1, "gone", 5, "target", 0, 0, 6, 1, 7)])
    log = TransferLog(disk, PATH)
    log.restart(log.read())
    log.abandon(1)
    item = Item(b"x", 5)
    number = log.log_intent("q", Delivery(item, 1, 1, 0, 0), "target", (0, 0), item)
    log.write_and_sync()
    log.end_intent(number)
    log.end_synced()
    log._restart_bytes = 100
    log.write_and_sync()
    assert [each.begin for each in TransferLog(disk, PATH).read()] == [1]
    log.end_intent(1)
    log.write_and_sync()
    assert TransferLog(disk, PATH).read() == []


def test_abandoned_intents_that_are_dropped_when_nothing_is_under_way_would_be_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = TransferLog._go_on_in_another_file

    def go_on(self: TransferLog, file: File) -> None:
        if self._under_way:
            right(self, file)
        else:
            self.restart(self.kept.values())

    monkeypatch.setattr(TransferLog, "_go_on_in_another_file", go_on)
    with pytest.raises(AssertionError):
        test_an_intent_that_is_abandoned_stays_in_the_file_until_its_end()
