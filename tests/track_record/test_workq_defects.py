"""What the original workq server got wrong, played through: each test is named after what happens here instead."""

from __future__ import annotations

import errno

import pytest

from staniel.broker.broker import Broker
from staniel.broker.config.load import parse
from staniel.journal.workq.encoder import encode_bare, encode_time
from staniel.protocol.workq.job_terms import JobTerms
from staniel.sim.disk.disk import Disk
from staniel.sim.disk.durable import Crash
from tests.support.job_world import LOG, JobWorld, disk_with_log, job_id
from tests.support.workq_log import as_the_original_reads, files
from tests.support.world import START_MS

TINY = "cmdlog_seg_size = 200\ncmdlog_clean_int = 100"


def clean(world: JobWorld) -> None:
    """Let a round of cleaning pass."""
    world.pass_time(400, 20)


def test_a_deleted_job_stays_deleted_when_its_log_has_been_cleaned() -> None:
    world = JobWorld(TINY)
    worker = world.worker()
    for number in range(1, 9):
        worker.adds(number, ttl=2_000_000)
    for number in (2, 4, 6):
        assert worker.asks(f"delete {job_id(number)}") == "+OK"
    for number in range(9, 13):
        worker.adds(number)
    clean(world)
    assert "cmdlog.cleaned" in world.events
    again = world.again()
    assert sorted(again.jobs) == [job_id(number) for number in (1, 3, 5, 7, 8, 9, 10, 11, 12)]


def test_a_delete_stays_as_long_as_the_addition_that_it_ends() -> None:
    # The first segment is long and mostly alive, so it does not pay to clean it; the delete lies in the second.
    world = JobWorld("cmdlog_seg_size = 900\ncmdlog_clean_int = 100")
    worker = world.worker()
    worker.adds(1, "x" * 50, ttl=2_000_000)
    worker.adds(2, "x" * 50, ttl=2_000_000)
    worker.adds(3, "x" * 3000, ttl=2_000_000)
    worker.asks(f"delete {job_id(1)}")
    worker.adds(4, "x" * 900)
    worker.adds(5)
    worker.asks(f"delete {job_id(4)}")
    assert len(world.segments()) == 3
    clean(world)
    assert "cmdlog.cleaned" in world.events
    assert sorted(world.again().jobs) == [job_id(number) for number in (2, 3, 5)]
    assert len(as_the_original_reads(world)) == 3


def test_an_id_that_was_used_twice_and_cleaned_is_read_again() -> None:
    world = JobWorld(TINY)
    worker = world.worker()
    for _ in range(3):
        assert worker.adds(1, "again and again") == "+OK"
        assert worker.asks(f"delete {job_id(1)}") == "+OK"
    worker.adds(2)
    worker.adds(1, "the last")
    clean(world)
    assert as_the_original_reads(world).keys() == world.broker.workq.jobs.by_id.keys()
    job = world.again().job(1)
    assert job is not None and job.payload == b"the last"


def test_a_pool_with_short_leases_leaves_a_log_in_the_order_of_what_happened() -> None:
    world = JobWorld()
    workers = [world.worker() for _ in range(6)]
    for number in range(1, 30):
        workers[0].adds(number, ttr=2)
    for turn in range(300):
        workers[turn % 6].asks("lease q 5")
        world.turn(3)
    read = as_the_original_reads(world)  # it would refuse two leases of a job without an end between them
    jobs = world.broker.workq.jobs.by_id
    assert {id: attempts for id, (_, attempts, _, _) in read.items()} == {id: job.attempts for id, job in jobs.items()}


def test_a_job_that_is_leased_as_it_comes_is_written_before_its_lease() -> None:
    world = JobWorld()
    for number in range(1, 50):
        waiting = world.worker()
        waiting.says("lease q 1000")
        world.worker().adds(number)
        assert waiting.hears().startswith(f"+OK 1 {job_id(number)}")
    assert {job.state.value for job in world.again().jobs.values()} == {4}
    assert {state for state, *_ in as_the_original_reads(world).values()} == {4}


@pytest.mark.parametrize("clock_ms", [1, 0])
def test_a_clock_that_has_not_been_set_leaves_whole_records(clock_ms: int) -> None:
    """What a start recorded first under a clock that stood at 1970 had no time, and was no record."""
    world = JobWorld()
    for number in (1, 2):
        world.worker().adds(number)
    unset = JobWorld(disk=world.disk.kill(), now_ms=clock_ms)
    assert unset.worker().says(f"delete {job_id(1)}").hears() == "+OK"
    unset.turn()
    later = JobWorld(disk=unset.disk.kill(), now_ms=world.now_ms + 1000)
    assert list(later.jobs) == [job_id(2)] and not later.events


def test_no_lease_ends_while_the_log_is_read() -> None:
    world = JobWorld()
    worker = world.worker()
    worker.adds(1, ttr=1, flags="-max-attempts=1")
    worker.says("lease q 0")
    worker.finishes(1, "done in time")
    for number in range(2, 400):
        worker.adds(number)
    job = world.again().job(1)
    assert job is not None and (job.state.value, job.result) == (1, b"done in time")


def test_a_torn_record_does_not_stop_the_start() -> None:
    world = JobWorld()
    worker = world.worker()
    worker.adds(1)
    worker.adds(2)
    [whole] = files(world.disk)
    for cut in range(1, 40):
        again = JobWorld(disk=disk_with_log({"000000001.log": whole[:-cut]}))
        assert list(again.jobs) == [job_id(1)] and again.events == ["cmdlog.torn"]


def test_a_life_is_counted_from_the_creation_not_from_the_restart() -> None:
    world = JobWorld()
    world.worker().adds(1, ttl=3000)
    world.pass_time(500)
    again = world.again()  # a second later
    again.pass_time(1400)
    assert again.job(1) is not None
    again.pass_time(150)
    assert again.job(1) is None and again.broker.workq.jobs.evicted == 1


def test_a_full_disk_leaves_no_half_record_and_is_forgotten_once_there_is_room() -> None:
    disk = disk_with_log()
    world = JobWorld(disk=disk)
    worker = world.worker()
    worker.adds(1)
    disk.fail("write", LOG, errno.ENOSPC, short=30)
    assert worker.adds(2) == "+OK"  # the reserve made room for it
    assert "Read-only mode triggered by cmdlog circuit breaker" in worker.adds(3)
    assert worker.leases() == "1" and worker.asks(f"delete {job_id(1)}") == "+OK"
    world.pass_time(1200)
    assert worker.adds(3) == "+OK"
    again = world.again()
    assert sorted(again.jobs) == [job_id(2), job_id(3)] and "cmdlog.damaged" not in again.events
    assert len(as_the_original_reads(world)) == 2


def test_a_run_that_is_deleted_while_it_is_waited_for_is_answered_and_the_server_lives() -> None:
    world = JobWorld()
    client, other = world.worker(), world.worker()
    client.says(f"run {job_id(1)} q 1000 400 1", "x")
    assert other.asks(f"delete {job_id(1)}") == "+OK"
    assert client.hears() == "-NOT-FOUND"
    world.pass_time(2000)
    assert other.asks(f"inspect job {job_id(1)}") == "-NOT-FOUND"


@pytest.mark.parametrize("size", range(4000, 4060))
def test_where_the_data_ends_in_the_buffer_does_not_matter(size: int) -> None:
    world = JobWorld()
    line = f"add {job_id(1)} q 60000 60000 {size}\r\n".encode()
    assert world.worker().feeds(line + b"x" * size + b"\r\n").hears() == "+OK"
    halves = world.worker()
    halves.feeds(line.replace(b"00000001-", b"00000002-") + b"x" * size + b"\r")
    assert halves.hears() == "" and halves.feeds(b"\n").hears() == "+OK"


def test_everybody_who_waits_for_a_result_gets_it() -> None:
    world = JobWorld()
    worker, waiting = world.worker(), [world.worker() for _ in range(5)]
    worker.adds(1)
    runner = world.worker()
    runner.says(f"run {job_id(2)} other 60000 5000 1", "x")
    for client in waiting:
        client.says(f"result {job_id(1)} 5000", f"result {job_id(2)} 5000")
    worker.finishes(1, "one")
    worker.finishes(2, "two")
    one, two = f"+OK 1 {job_id(1)} 1 3 one", f"+OK 1 {job_id(2)} 1 3 two"
    assert runner.hears() == two
    # A run is gone once it is done: who has asked for the first result before may come too late for the second.
    assert all(client.hears() in (f"{one} {two}", f"{one} -NOT-FOUND") for client in waiting)


def test_a_lease_whose_client_has_hung_up_takes_no_job() -> None:
    world = JobWorld()
    gone, there = world.worker(), world.worker()
    gone.says("lease q 5000")
    gone.hangs_up()
    world.worker().adds(1)
    assert there.leases() == "1"
    job = world.job(1)
    assert job is not None and job.attempts == 1


def test_a_client_that_hangs_up_as_it_is_given_a_job_gives_it_back_at_once() -> None:
    world = JobWorld()
    gone, adder = world.worker(), world.worker()
    gone.says("lease q 5000")
    data = f"add {job_id(1)} q 60000 60000 1\r\nx\r\n".encode()
    adder.session.execute(adder.parser.feed(data), world.now_ms)  # no turn yet: the job is on its way
    gone.session.close(world.now_ms)
    world.turn()
    job = world.job(1)
    assert job is not None and job.state.value == 3
    assert world.worker().leases() == "1"
    assert as_the_original_reads(world)[job.id][:2] == (4, 2)


def test_a_delete_of_what_is_no_job_id_is_refused() -> None:
    worker = JobWorld().worker()
    assert worker.asks("delete 6ba7b810-9dad-11d1-80b4-00c04fd430c4") == "-CLIENT-ERROR Invalid ID"


def test_a_lease_that_does_not_wait_takes_what_is_there() -> None:
    worker = JobWorld().worker()
    worker.adds(1)
    assert worker.leases(wait=0) == "1" and worker.leases(wait=0) == "-TIMEOUT"


@pytest.mark.parametrize("size", [1, 7, 8, 9])
def test_a_tiny_segment_size_makes_a_segment_a_record_and_no_more(size: int) -> None:
    world = JobWorld(f"cmdlog_seg_size = {size}")
    worker = world.worker()
    for number in range(1, 6):
        worker.adds(number)
    assert len(world.segments()) == 5
    world.stop()
    assert len(world.again().jobs) == 5


def test_a_path_with_wildcards_is_found_again() -> None:
    text = b'server.spool = "s"\n[workq]\nport = 0\ncmdlog_path = "a[b]*?c"'
    disk = Disk()
    disk.make_folder("s")
    first = Broker(parse(text, ""), disk)
    first.recover(START_MS)
    first.workq.jobs.add(bytes(16), first.workq.intern(JobTerms(b"q", 1000, 60_000)), b"x", START_MS)
    first.shutdown(START_MS)
    assert Broker(parse(text, ""), disk.kill()).recover(START_MS).jobs == 1


def test_a_segment_is_on_the_disk_before_anything_in_it_is_answered() -> None:
    world = JobWorld("cmdlog_seg_size = 150")
    worker = world.worker()
    for number in range(1, 8):
        worker.adds(number)
        assert len(world.crash(Crash.DROP).jobs) == number


def test_one_sync_serves_everybody_who_waits() -> None:
    world = JobWorld()
    world.syncs = False
    workers = [world.worker() for _ in range(20)]
    before = sum(op.verb == "sync" for op in world.disk.log)
    for number, worker in enumerate(workers, 1):
        data = f"add {job_id(number)} q 60000 60000 1\r\nx\r\n".encode()
        worker.session.execute(worker.parser.feed(data), world.now_ms)
    world.turn()
    assert [worker.hears() for worker in workers] == [""] * 20
    assert world.sync()
    assert [worker.hears() for worker in workers] == ["+OK"] * 20
    assert sum(op.verb == "sync" for op in world.disk.log) == before + 1


def test_a_segment_with_nothing_to_drop_is_not_written_again() -> None:
    world = JobWorld(TINY)
    worker = world.worker()
    for number in range(1, 5):
        worker.adds(number, ttl=2_000_000)
    world.pass_time(3000, 20)
    assert not [op for op in world.disk.log if op.verb == "rename" and op.path.endswith(".rw")]


def test_a_damaged_segment_does_not_keep_the_others_from_being_cleaned() -> None:
    world = JobWorld(TINY)
    worker = world.worker()
    for number in range(1, 13):
        worker.adds(number)
    content = bytearray(world.disk.read(f"{LOG}/000000001.log", 0, 10_000))
    content[40] ^= 1
    world.disk.truncate(f"{LOG}/000000001.log", 0)
    file = world.disk.append(f"{LOG}/000000001.log")
    file.write(bytes(content))
    file.close()
    again = world.again()
    assert len(again.jobs) == 11
    worker = again.worker()
    for number in range(3, 11):
        worker.asks(f"delete {job_id(number)}")
    clean(again)
    assert "cmdlog.cleaned" in again.events
    last = again.again()
    assert sorted(last.jobs) == [job_id(number) for number in (2, 11, 12)]


def test_a_length_is_not_believed_before_its_checksum() -> None:
    class Watched(Disk):
        largest = 0

        def read(self, path: str, at: int, count: int) -> bytes:
            self.largest = max(self.largest, count)
            return super().read(path, at, count)

    record = encode_bare(encode_time(10**18), 5, bytes(16))
    absurd = record[:15] + b"\xff\xff\xff\xff\xff\xff\xff\x7f" + record[16:]
    disk = Watched()
    disk.make_folder("s")
    disk.make_folder(LOG)
    file = disk.append(f"{LOG}/000000001.log")
    file.write(b"wqwq\x00\x00\x00\x01" + absurd + record * 3)
    file.close()
    world = JobWorld(disk=disk)
    assert world.events.count("cmdlog.damaged") == 1 and disk.largest <= 4 << 20
