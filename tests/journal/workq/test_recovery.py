"""A damaged command log: what is lost is what is damaged, it is kept aside, and the server starts."""

from __future__ import annotations

import errno
import os
from random import Random

import pytest
from google_crc32c import value as crc32c

from staniel.journal.disk.fs import JournalFailure
from staniel.journal.workq import cleaning
from staniel.journal.workq import encoder as cmdlog
from staniel.journal.workq.cleaning import STAYED_IDS_MAX
from staniel.queues.jobs.job import Job, Terms
from staniel.queues.jobs.queue import JobQueue
from staniel.sim.disk.durable import Crash
from tests.support.job_world import LOG, START_MS, JobWorld, disk_with_log, job_id
from tests.support.workq_log import files, state_of

SEGMENT = "000000001.log"
CREATED_NS = START_MS * 10**6


def add(number: int, payload: bytes = b"x", ttl_ms: int = 600_000, name: bytes = b"q") -> bytes:
    id = bytes.fromhex(job_id(number).replace("-", ""))
    job = Job(id, Terms(JobQueue(name), 60_000, ttl_ms), payload, CREATED_NS + number)
    return cmdlog.with_crc(cmdlog.encode_addition(job, cmdlog.encode_time(job.created_ns)))


def bare(kind: int, number: int) -> bytes:
    return cmdlog.encode_bare(cmdlog.encode_time(CREATED_NS + 10**6), kind, raw(number))


def raw(number: int) -> bytes:
    return bytes.fromhex(job_id(number).replace("-", ""))


def framed(payload: bytes) -> bytes:
    """A sound record with any payload."""
    record = cmdlog.encode_time(CREATED_NS) + cmdlog.encode_unsigned(len(payload)) + payload
    return record + crc32c(record).to_bytes(4, "big")


def started(*segments: bytes, workq: str = "") -> JobWorld:
    named = {f"{number:09}.log": cmdlog.MAGIC + data for number, data in enumerate(segments, 1)}
    return JobWorld(workq, disk_with_log(named))


def numbers(world: JobWorld) -> list[int]:
    return sorted(int(id[:8], 16) for id in world.jobs)


def test_a_log_cut_at_any_byte_gives_every_whole_record_and_keeps_the_rest_aside() -> None:
    records = [add(1), bare(7, 1), add(2, b"y" * 40), bare(5, 2), add(3)]
    whole = b"".join(records)
    ends = [sum(map(len, records[:count])) for count in range(len(records) + 1)]
    for cut in range(len(whole)):
        world = started(whole[:cut])
        done = max(count for count, end in enumerate(ends) if end <= cut)
        assert numbers(world) == [[], [1], [1], [1, 2], [1], [1, 3]][done]
        assert world.disk.read(f"{LOG}/{SEGMENT}", 0, 10_000) == cmdlog.MAGIC + whole[: ends[done]]
        kept = [name for name, is_file in world.disk.list("s/.staniel/damaged") if is_file] if cut > ends[done] else []
        assert [world.disk.read(f"s/.staniel/damaged/{name}", 0, 1000) for name in kept] == (
            [whole[ends[done] : cut]] if cut > ends[done] else []
        )
        world.worker().adds(9)
        assert numbers(world.again()) == sorted([*numbers(world)])


def test_jobs_created_in_the_year_1_stay_when_their_segment_is_cleaned() -> None:
    """Of two additions of the same terms the second one is read by what is known of the first."""

    def ancient(number: int) -> bytes:
        job = Job(raw(number), Terms(JobQueue(b"q"), 60_000, 2**64 - 1), b"x", cmdlog.YEAR_1_S * 10**9)
        return cmdlog.with_crc(cmdlog.encode_addition(job, cmdlog.encode_time(job.created_ns)))

    dead = b"".join(add(number) + bare(5, number) for number in range(3, 12))
    world = started(ancient(1) + ancient(2) + dead, add(20), workq="cmdlog_clean_int = 100")
    whole_bytes = world.disk.size(f"{LOG}/{SEGMENT}")
    world.pass_time(500)
    assert world.disk.size(f"{LOG}/{SEGMENT}") < whole_bytes - len(dead) // 2
    assert numbers(world.again()) == [1, 2, 20]


def test_one_flipped_bit_costs_one_record() -> None:
    random = Random(7)
    records = [add(number, bytes(random.randrange(256) for _ in range(30))) for number in range(1, 8)]
    whole = b"".join(records)
    for at in range(len(whole)):
        bent = bytearray(whole)
        bent[at] ^= 1 << random.randrange(8)
        world = started(bytes(bent))
        hit = next(number for number in range(1, 8) if at < sum(map(len, records[:number])))
        assert numbers(world) == [number for number in range(1, 8) if number != hit], at
        assert world.events.count("cmdlog.damaged") == 1


@pytest.mark.parametrize("seed", range(60))
def test_any_bytes_amid_a_log_cost_what_they_cover(seed: int) -> None:
    random = Random(seed)
    garbage = bytes(random.choice((0, 1, 1, 255, random.randrange(256))) for _ in range(random.randrange(1, 3000)))
    world = started(add(1) + garbage + add(2), add(3) + garbage, garbage + add(4))
    assert numbers(world) == [1, 2, 3, 4] and world.events.count("cmdlog.damaged") == 3


def test_damage_amid_a_segment_is_told_at_each_start_until_the_segment_is_cleaned() -> None:
    world = started(add(1) + b"rubbish" + add(2), add(3), workq="cmdlog_clean_int = 100")
    assert world.events == ["cmdlog.damaged"]
    again = world.again()
    assert again.events == ["cmdlog.damaged"] and numbers(again) == [1, 2, 3]
    again.worker().asks(f"delete {job_id(1)}")
    again.worker().asks(f"delete {job_id(2)}")
    again.pass_time(300)
    last = again.again()
    assert "cmdlog.damaged" not in last.events and numbers(last) == [3]


@pytest.mark.parametrize("header", [b"wqwq\x00", b"wqwq\x00\x00\x00\x02", b"wqWq\x00\x00\x00\x01", b"\x00" * 64])
def test_a_segment_with_another_header_is_set_aside_whole(header: bytes) -> None:
    disk = disk_with_log({SEGMENT: cmdlog.MAGIC + add(1), "000000002.log": header + add(2)[:20]})
    world = JobWorld(disk=disk)
    assert numbers(world) == [1] and world.events == ["cmdlog.damaged"]
    assert [name for name, _ in world.disk.list(LOG) if name.endswith(".damaged")] == ["000000002.log.damaged"]
    world.worker().adds(3)
    again = world.again()
    assert numbers(again) == [1, 3] and again.events == []


def test_a_newest_segment_without_a_byte_is_one_that_was_being_made() -> None:
    disk = disk_with_log({SEGMENT: cmdlog.MAGIC + add(1), "000000002.log": b""})
    world = JobWorld(disk=disk)
    assert numbers(world) == [1] and world.events == []
    world.worker().adds(3)
    again = world.again()
    assert numbers(again) == [1, 3] and again.events == []
    disk = disk_with_log({SEGMENT: b"", "000000002.log": cmdlog.MAGIC + add(1)})
    assert JobWorld(disk=disk).events == ["cmdlog.damaged"]


def test_what_was_set_aside_before_stays() -> None:
    bad = b"not a header" + add(2)
    world = JobWorld(disk=disk_with_log({SEGMENT: bad, SEGMENT + ".damaged": b"earlier"}))
    kept = {name: world.disk.read(f"{LOG}/{name}", 0, 1000) for name, _ in world.disk.list(LOG) if "damaged" in name}
    assert kept == {SEGMENT + ".damaged": b"earlier", SEGMENT + ".damaged.2": bad}


def test_nine_digits_are_a_segment_whatever_the_number_and_other_digits_are_not() -> None:
    disk = disk_with_log({"000000000.log": cmdlog.MAGIC + add(1), "٠٠٠٠٠٠٠٠٧.log": b"x", "0000000002.log": b"x"})
    world = JobWorld("cmdlog_seg_size = 50\ncmdlog_clean_int = 100", disk)
    assert numbers(world) == [1] and world.events == []
    world.worker().adds(2)
    world.worker().asks(f"delete {job_id(1)}")
    world.pass_time(300)
    assert "000000000.log" not in world.segments()
    assert numbers(world.again()) == [2]


FORGED = bare(5, 1) + bare(5, 2)


@pytest.mark.parametrize("payload", [FORGED, FORGED + b"x" * 200_000, b"x" * 77 + FORGED * 2000, FORGED + bytes(9000)])
def test_records_in_the_payload_of_a_torn_one_are_not_believed(payload: bytes) -> None:
    torn = add(3, payload)
    head = len(torn) - len(payload) - 34
    cuts = {head, head + 36, head + 72, head + 73, head + len(payload), len(torn) - 1}
    for cut in sorted(cuts):
        world = started(add(1) + add(2) + torn[:cut])
        assert numbers(world) == [1, 2], cut
        assert files(world.disk) == [cmdlog.MAGIC + add(1) + add(2)]
        kept = [name for name, is_file in world.disk.list("s/.staniel/damaged") if is_file]
        assert [world.disk.size(f"s/.staniel/damaged/{name}") for name in kept] == [cut]


@pytest.mark.parametrize("gone", [(0, 30), (15, 17), (16, 80), (3, 300)])
@pytest.mark.parametrize("rest", [[], [4], [4, 5, 6]])
def test_records_in_the_payload_of_one_with_a_lost_head_are_not_believed(
    gone: tuple[int, int], rest: list[int]
) -> None:
    lost = bytearray(add(3, FORGED * 30 + add(7) + FORGED))
    lost[slice(*gone)] = bytes(gone[1] - gone[0])
    for between in (b"", bytes(5000)):
        world = started(add(1) + add(2) + between + bytes(lost) + b"".join(map(add, rest)))
        assert numbers(world) == [1, 2, *rest]


def test_records_in_the_payload_of_a_damaged_one_are_not_believed_whichever_byte_it_is() -> None:
    for value in (add(3, FORGED), add(3, b"-" + FORGED * 4 + b"-")):
        for at in range(len(value)):
            bent = bytearray(value)
            bent[at] ^= 1 << at % 8
            assert numbers(started(add(1) + add(2) + bytes(bent) + add(4))) == [1, 2, 4], at


def test_records_behind_a_lost_head_count_if_no_payload_could_hold_them() -> None:
    """Later in the file another record is torn: they are believed where they are more than fits into one payload."""
    many = b"".join(add(number, b"x" * 500_000) for number in range(4, 8))
    assert numbers(started(add(1) + bytes(100) + many + add(8)[:-1])) == [1, 4, 5, 6, 7]
    assert numbers(started(add(1) + bytes(100) + add(4) + add(8)[:-1])) == [1]


def test_a_tail_of_zeros_is_cut() -> None:
    world = started(add(1) + bytes(5000))
    assert numbers(world) == [1] and files(world.disk) == [cmdlog.MAGIC + add(1)]


@pytest.mark.parametrize(
    "payload",
    [b"\x09", b"\x00" + bytes(16), b"\x07" + bytes(15), b"\x05" + bytes(17), b"\x01" + bytes(16), b"\x03" + bytes(16) +
     b"\x05abc", b"\x01" + bytes(16) + b"\x01q\x01\x01\x00\x00\x00\x05abc"],
)  # fmt: skip
def test_a_sound_record_with_a_command_that_makes_no_sense_is_told_and_left_out(payload: bytes) -> None:
    world = started(add(1) + framed(payload) + add(2))
    assert numbers(world) == [1, 2] and world.events == ["cmdlog.damaged"]


@pytest.mark.parametrize("payload", [b"\x00", b"\x01" + bytes(16), add(7)[16:-4] + b"more", b"\x05" + raw(3) + b"more"])
def test_cleaning_drops_a_command_that_makes_no_sense(payload: bytes) -> None:
    sealed = framed(payload) + add(1) + add(2) + add(3) + bare(5, 1) + bare(5, 2)
    world = started(sealed, add(4), workq="cmdlog_clean_int = 100")
    world.pass_time(300)
    assert files(world.disk)[0] == cmdlog.MAGIC + add(3)
    last = world.again()
    assert numbers(last) == [3, 4] and last.events == []


@pytest.mark.parametrize("facts", [[3], [7, 3], [7, 8, 7, 4]])
def test_cleaning_keeps_what_stands_in_an_earlier_segment_than_its_addition(facts: list[int]) -> None:
    early = b"".join(bare(kind, 9) for kind in facts)
    world = started(add(1) + early + bare(5, 1), add(9) + add(2), add(3), workq="cmdlog_clean_int = 100")
    before = state_of(world.jobs[job_id(9)])
    assert world.jobs[job_id(9)].is_processed
    for _ in range(2):
        world.pass_time(300)
        assert files(world.disk)[0] == cmdlog.MAGIC + early
        world = world.again()
        assert state_of(world.jobs[job_id(9)]) == before and numbers(world) == [2, 3, 9]
    world.worker().asks(f"delete {job_id(9)}")
    world.worker().asks(f"delete {job_id(2)}")
    world.pass_time(300)
    assert numbers(world) == [3] == numbers(world.again())


def test_a_completion_in_the_documents_short_form_has_an_empty_result() -> None:
    world = started(add(1) + framed(b"\x03" + raw(1)) + add(2) + framed(b"\x04" + raw(2)))
    assert [(job.state.value, job.result) for job in world.jobs.values()] == [(1, b""), (2, b"")]


def test_numbers_written_longer_than_needed_are_read() -> None:
    record = cmdlog.encode_time(CREATED_NS) + b"\x91\x80\x00" + b"\x05" + raw(1)
    world = started(add(1) + record + crc32c(record).to_bytes(4, "big") + add(2))
    assert numbers(world) == [2] and world.events == []


def test_a_life_longer_than_the_protocol_allows_is_kept() -> None:
    assert numbers(started(add(1, ttl_ms=2**63))) == [1]


def test_a_job_without_a_life_is_over_also_if_the_clock_was_set_back() -> None:
    world = JobWorld(disk=disk_with_log({SEGMENT: cmdlog.MAGIC + add(1, ttl_ms=0) + add(2)}), now_ms=START_MS - 60_000)
    assert numbers(world) == [2]
    assert [world.worker().leases() for _ in range(2)] == ["2", "-TIMEOUT"]


def test_a_missing_segment_is_told() -> None:
    disk = disk_with_log({"000000003.log": cmdlog.MAGIC + add(1), "000000006.log": cmdlog.MAGIC + add(2)})
    world = JobWorld(disk=disk)
    assert world.events == ["cmdlog.hole"] and numbers(world) == [1, 2]
    world.worker().adds(3)
    assert world.segments() == ["000000003.log", "000000006.log"]


def test_a_result_for_a_job_that_nobody_knows_is_nothing() -> None:
    world = started(bare(7, 5) + bare(6, 5) + bare(8, 6) + bare(5, 7) + add(1))
    assert numbers(world) == [1] and world.events == []


def test_the_log_goes_on_in_the_highest_segment_and_rotates_by_its_size() -> None:
    world = started(add(1) + add(2), add(3), workq="cmdlog_seg_size = 150")
    worker = world.worker()
    worker.adds(4)
    assert world.segments() == ["000000001.log", "000000002.log"]
    worker.adds(5)
    assert world.segments() == ["000000001.log", "000000002.log", "000000003.log"]
    assert numbers(world.again()) == [1, 2, 3, 4, 5]


REFUSALS = [errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.EMFILE, errno.ENOMEM, errno.EBUSY]


@pytest.mark.parametrize("number", REFUSALS)
def test_a_log_whose_next_segment_is_refused_grows_on_in_the_present_one(number: int) -> None:
    world = started(add(1) + add(2), workq="cmdlog_seg_size = 150\ncmdlog_clean_int = 100")
    world.disk.fail("create", f"{LOG}/000000002", number, times=1 << 30)
    worker = world.worker()
    for each in range(3, 30):
        assert worker.adds(each) == "+OK"
    assert world.segments() == ["000000001.log"]
    assert next(fields["file"] for fields in world.reported("journal.rotate_failed")) == f"{LOG}/000000001.log"
    assert worker.asks(f"delete {job_id(3)}") == "+OK"
    world.pass_time(300)
    again = world.again()
    assert numbers(again) == [1, 2, *range(4, 30)] and "cmdlog.damaged" not in again.events
    worker = again.worker()
    for each in range(30, 34):
        assert worker.adds(each) == "+OK"
    assert len(again.segments()) > 1
    again.pass_time(300)
    assert numbers(again.again()) == [1, 2, *range(4, 34)]


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS])
def test_a_broken_disk_that_refuses_the_next_segment_ends_the_server(number: int) -> None:
    world = started(add(1) + add(2), workq="cmdlog_seg_size = 150")
    world.disk.fail("create", f"{LOG}/000000002", number, times=1 << 30)
    with pytest.raises(JournalFailure, match="cannot write log"):
        world.worker().adds(3)
    assert numbers(world.again()) == [1, 2]


@pytest.mark.parametrize("number", [*REFUSALS, errno.EIO])
def test_empty_segments_that_stay_take_the_next_records(number: int) -> None:
    disk = disk_with_log({SEGMENT: cmdlog.MAGIC + add(1), "000000002.log": b"", "000000003.log": b""})
    disk.fail("remove", LOG, number, times=1 << 30)
    world = JobWorld("cmdlog_seg_size = 60", disk)
    assert numbers(world) == [1] and world.events == ["cmdlog.not_cleaned", "cmdlog.not_cleaned"]
    worker = world.worker()
    for each in range(2, 6):
        assert worker.adds(each) == "+OK"
    assert world.disk.size(f"{LOG}/000000002.log") and world.disk.size(f"{LOG}/000000003.log")
    assert numbers(world.again()) == [1, 2, 3, 4, 5]


def test_left_over_successors_and_locks_are_ignored() -> None:
    disk = disk_with_log({SEGMENT: cmdlog.MAGIC + add(1), SEGMENT + ".rw": cmdlog.MAGIC, "append.lock": b"",
                          "read.lock": b"", "1.log": b"x", "000000002.log.bak": b"x"})  # fmt: skip
    world = JobWorld("cmdlog_clean_int = 50\ncmdlog_seg_size = 60", disk)
    assert numbers(world) == [1] and world.events == []
    world.worker().asks(f"delete {job_id(1)}")
    world.worker().adds(2)
    world.worker().adds(3)
    world.pass_time(200)
    assert SEGMENT + ".rw" not in [name for name, _ in world.disk.list(LOG)]
    assert numbers(world.again()) == [2, 3]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EBUSY, errno.EMFILE])
def test_a_segment_that_cannot_be_removed_stays_and_the_others_are_cleaned(number: int) -> None:
    """Its jobs are over, and do not come back."""
    world = JobWorld("cmdlog_seg_size = 50\ncmdlog_clean_int = 100")
    for each in range(1, 7):
        world.worker().adds(each)
    first, *others = world.segments()
    world.disk.fail("remove", f"{LOG}/{first}", number, times=1 << 30)
    for each in range(1, 6):
        world.worker().asks(f"delete {job_id(each)}")
    for _ in range(3):
        world.pass_time(300)
        world = world.again()
        world.disk.fail("remove", f"{LOG}/{first}", number, times=1 << 30)
        assert numbers(world) == [6]
    world.pass_time(300)
    (*_, said) = world.reported("cmdlog.not_cleaned")
    assert first in str(said["why"]) and os.strerror(number) in str(said["why"])
    assert first in world.segments() and others[0] not in world.segments()
    assert world.broker.refused_removals == 1
    world.disk._faults.clear()
    world.pass_time(500)
    assert world.broker.refused_removals == 0
    assert first not in world.segments() and numbers(world.again()) == [6]


@pytest.mark.parametrize("size_max", [STAYED_IDS_MAX, 0])
def test_records_of_jobs_that_are_over_go_beside_a_segment_that_stays(
    size_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but the ends of the jobs that it has; too many to be known, and all ends stay."""
    monkeypatch.setattr(cleaning, "STAYED_IDS_MAX", size_max)
    world = JobWorld("cmdlog_seg_size = 50\ncmdlog_clean_int = 100")
    world.worker().adds(1)
    (first,) = world.segments()
    world.disk.fail("rename", f"{LOG}/{first}", errno.EPERM, times=1 << 30)
    for each in range(2, 12):
        world.worker().adds(each)
        world.worker().asks(f"delete {job_id(each)}")
    world.worker().asks(f"delete {job_id(1)}")
    for each in (20, 21):
        world.worker().adds(each)
    world.pass_time(1000)
    assert (len(world.segments()) <= 4) == bool(size_max), world.segments()
    for how in Crash:
        assert numbers(world.crash(how)) == [20, 21]
    again = world.again()
    again.disk.fail("remove", f"{LOG}/{first}", errno.EPERM, times=1 << 30)
    again.pass_time(1000)
    assert first in again.segments() and numbers(again.again()) == [20, 21]
    again.disk._faults.clear()
    again.pass_time(2000)
    assert len(again.segments()) <= 3 and numbers(again.again()) == [20, 21]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EBUSY])
def test_a_successor_that_does_not_get_its_name_takes_no_room(number: int) -> None:
    world = JobWorld("cmdlog_seg_size = 120\ncmdlog_clean_int = 100")
    for each in range(1, 6):
        world.worker().adds(each)
    first = world.segments()[0]
    world.disk.fail("rename", f"{LOG}/{first}.rw", number, times=1 << 30)
    world.worker().asks(f"delete {job_id(1)}")
    world.pass_time(500)
    (*_, said) = world.reported("cmdlog.not_cleaned")
    assert f"{first}.rw" in str(said["why"]) and world.broker.refused_removals == 1
    assert not [name for name, _ in world.disk.list(LOG) if name.endswith(".rw")]
    assert numbers(world.again()) == [2, 3, 4, 5]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EBUSY])
def test_a_successor_that_stays_keeps_no_other_segment_from_being_cleaned(number: int) -> None:
    world = JobWorld("cmdlog_seg_size = 120\ncmdlog_clean_int = 100")
    for each in range(1, 9):
        world.worker().adds(each)
    first, second, *_ = world.segments()
    for verb in ("remove", "rename"):
        world.disk.fail(verb, f"{LOG}/{first}.rw", number, times=1 << 30)
    size = world.disk.size(f"{LOG}/{second}")
    rounds = world.broker.workq.cleanings
    for each in (1, 3, 4, 5):
        world.worker().asks(f"delete {job_id(each)}")
    while world.broker.workq.cleanings == rounds:
        world.turn(10)
    assert f"{first}.rw" in [name for name, _ in world.disk.list(LOG)]
    assert second not in world.segments() or world.disk.size(f"{LOG}/{second}") < size
    assert numbers(world.again()) == [2, 6, 7, 8]
