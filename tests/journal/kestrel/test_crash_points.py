"""The power fails before every single step that a journal takes on the disk: nothing safe is lost or comes twice."""

from __future__ import annotations

import pytest

from staniel.journal.kestrel import files as kestrel_files
from staniel.journal.kestrel.replay import Replay
from staniel.journal.spool import Spool
from staniel.queues.config import JournalDialect, QueueConfig
from staniel.queues.item import Item
from staniel.queues.queue import Queue
from staniel.sim.disk.disk import Disk, PowerCut
from staniel.sim.disk.durable import Crash
from tests.support.records import content, state
from tests.support.spool import EMPTY, Scenario, Service, crashes, journals, new_disk, recover, recovered_state


def some_work(service: Service) -> None:
    service.start()
    service.put(3, flags=7)
    service.commit()
    service.open()
    service.put()
    service.commit()
    service.open()
    service.take()
    service.abort()
    service.commit()


def rotate_often(service: Service) -> None:
    some_work(service)
    service.rotate()
    service.put(2)
    service.confirm()
    service.commit()
    service.put()
    service.spool.group.write(service.now_ms)
    service.rotate()
    service.take()
    service.commit()


def start_over(service: Service) -> None:
    some_work(service)
    service.rewrite()
    service.open()
    service.put()
    service.commit()
    service.rewrite()
    service.take()
    service.commit()


def pack(service: Service) -> None:
    rotate_often(service)
    service.rewrite()
    service.put(2)
    service.open()
    service.commit()
    service.rotate()
    service.abort()
    service.commit()
    service.rewrite()
    service.take()
    service.commit()


def recorded_while_rotating(service: Service) -> None:
    """Changes that are recorded while a sync runs are written before the file is sealed behind it."""
    some_work(service)
    service.put(2)
    service.seal()
    service.commit()
    service.take()
    service.seal()
    service.commit()


def long_items(service: Service) -> None:
    """Records over several sectors, so that sectors can tear."""
    service.start()
    service.put(3, size=1300)
    service.commit()
    service.put(2, size=2000)
    service.open()
    service.commit()
    service.rewrite()
    service.put(1, size=900)
    service.commit()


SCENARIOS = [some_work, rotate_often, start_over, pack, recorded_while_rotating, long_items]
DIALECTS = {dialect: QueueConfig(journal_dialect=dialect) for dialect in JournalDialect}


def steps_of(scenario: Scenario, config: QueueConfig | None = None) -> range:
    service = Service(new_disk(), config)
    first = len(service.disk.log)
    scenario(service)
    return range(first, len(service.disk.log) + 1)


def interrupted(scenario: Scenario, stop: int, config: QueueConfig | None = None) -> Service:
    """The scenario, stopped before step `stop`."""
    service = Service(new_disk(), config)
    service.disk.stop_at = stop
    try:
        scenario(service)
    except PowerCut:
        pass
    return service


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_power_fails_before_any_step(scenario: Scenario, dialect: JournalDialect) -> None:
    config = DIALECTS[dialect]
    for stop in steps_of(scenario, config):
        service = interrupted(scenario, stop, config)
        for how in crashes(25):
            disk = service.disk.crash(how)
            found = recovered_state(disk)
            assert found in service.possible(), (stop, how)
            assert all(
                kestrel_files.parse(name).kind in (kestrel_files.Kind.CURRENT, kestrel_files.Kind.ARCHIVE)
                for name in journals(disk)
            )


@pytest.mark.parametrize("scenario", [pack, start_over])
def test_power_fails_again_at_any_step_of_the_recovery(scenario: Scenario) -> None:
    for stop in steps_of(scenario):
        service = interrupted(scenario, stop)
        for how in crashes(4):
            expected = recovered_state(service.disk.crash(how)) if isinstance(how, Crash) else None
            left = service.disk.crash(how)
            begin_again(left, service, expected)


def begin_again(left: Disk, service: Service, expected: object) -> None:
    for steps in range(40):
        disk = left.crash(Crash.KEEP)
        try:
            recover(disk, steps)
        except PowerCut:
            for how in crashes(5):
                found = recovered_state(disk.crash(how))
                assert found in service.possible()
                assert expected is None or found == expected
        else:
            return
    raise AssertionError("recovery takes more steps than expected")


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_what_is_recovered_can_be_written_on_and_recovered_again(scenario: Scenario) -> None:
    for stop in steps_of(scenario):
        disk = interrupted(scenario, stop).disk.crash(Crash.KEEP)
        spool, log, replay = recover(disk)
        if log is None:
            continue
        queue = Queue("q", QueueConfig(), log, 0)
        queue.load(replay.line, replay.open, replay.counter)
        queue.return_open_reads(0)
        queue.add(Item(b"late", 1, 0, 3), 1)
        assert queue.open(1)
        spool.group.sync_all(1)
        items, opened = recovered_state(disk.crash(Crash.DROP))
        assert items == [content(item) for item in queue.line.items()]
        assert opened == {xid: content(taken.item) for xid, taken in queue.open_reads.items()}


def delete_it(service: Service) -> None:
    rotate_often(service)
    service.spool.erase(service.log, service.now_ms)


def test_a_delete_is_done_once_its_batch_is_durable() -> None:
    service = Service(new_disk())
    delete_it(service)
    service.commit()
    for how in crashes(10):
        disk = service.disk.crash(how)
        assert recovered_state(disk) == EMPTY and journals(disk) == []


def test_power_fails_during_a_delete_and_no_old_state_comes_back() -> None:
    whole = steps_of(rotate_often)
    for stop in range(whole[-1], steps_of(delete_it)[-1] + 1):
        service = interrupted(delete_it, stop)
        for how in crashes(5):
            assert recovered_state(service.disk.crash(how)) in [*service.possible(), EMPTY]


def delete_it_before_a_sync(service: Service) -> None:
    """Bytes of the current file are written and not durable when its queue is deleted."""
    rotate_often(service)
    service.put(2, size=1300)
    service.spool.group.write(service.now_ms)
    service.spool.erase(service.log, service.now_ms)


def test_power_fails_during_a_delete_and_no_sealed_file_has_a_torn_end() -> None:
    whole = steps_of(rotate_often)
    for stop in range(whole[-1], steps_of(delete_it_before_a_sync)[-1] + 1):
        service = interrupted(delete_it_before_a_sync, stop)
        for how in crashes(10):
            disk = service.disk.crash(how)
            spool = Spool(disk, "s")
            queues = spool.listing().kestrel
            if "q" in queues:
                damages = spool.recover("q", queues["q"], service.config, service.now_ms)[0].damages
                assert {damage.file for damage in damages} <= {"q"}, (stop, how)
            assert recovered_state(disk.kill()) in [*service.possible(), EMPTY], (stop, how)


def test_a_deleted_queue_can_be_made_again_and_owes_nothing_to_the_first() -> None:
    service = Service(new_disk())
    delete_it(service)
    service.log = service.spool.create("q", service.config, service.now_ms)
    service.queue = Queue("q", service.config, service, service.now_ms)
    service.states, service.safe = [EMPTY], 0
    service.put(2)
    service.commit()
    assert recovered_state(service.disk.crash(Crash.DROP)) == service.states[-1]


def test_the_second_life_of_a_replayed_state_numbers_its_reads_as_the_first() -> None:
    service = Service(new_disk())
    pack(service)
    _, log, replay = recover(service.disk.crash(Crash.DROP))
    assert isinstance(replay, Replay) and log is not None
    assert log.encoder.counter == replay.counter == service.log.encoder.counter
    assert log.archives == service.log.archives and log.archived_bytes == service.log.archived_bytes
    assert state(replay)[:2] == service.states[-1]
