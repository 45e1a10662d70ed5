"""What a crash has left of jobs, judged by hand-made histories of the command log."""

from __future__ import annotations

import errno

import pytest

from staniel.journal.workq import encoder as cmdlog
from staniel.protocol.workq.fields import read_id
from staniel.sim.history import SeedPlan
from staniel.sim.jobs.conversation import JobConversation, Request, Want
from staniel.sim.jobs.conversation import job_id as written
from staniel.sim.jobs.model import Fact, JobModel, JobRecord, Verb
from staniel.sim.jobs.promises import check_jobs
from staniel.sim.jobs.run import JobRun
from staniel.sim.profiles import PROFILES
from staniel.sim.queues.promises import Accident
from staniel.sim.violations import Kind, Violation

NEW_JOB = JobRecord("q", 10, 60_000, 0, 0, 0, b"x", 1, 0)


def job_id(number: int) -> bytes:
    found = read_id(written(number).encode())
    assert found is not None
    return found


def history(*added: int, segments: tuple[int, ...] = (), promised: int = 0) -> JobModel:
    """Jobs added one after the other, each in its segment of the log (the first if none is given)."""
    model = JobModel({}, {}, False)
    for number, segment in zip(added, segments or (1,) * len(added), strict=True):
        model.apply(Fact(Verb.ADD, job_id(number), segment, NEW_JOB))
    model.promised_after_kill = model.promised_after_power_loss = promised
    return model


def verdict(model: JobModel, *found: int, has_holes: bool = False) -> Kind | None:
    try:
        check_jobs(model, {job_id(number): NEW_JOB for number in found}, Accident.POWER, has_holes=has_holes)
    except Violation as violation:
        return violation.kind
    return None


def test_a_first_part_may_be_left() -> None:
    assert verdict(history(1, 2, 3), 1, 2) is None
    assert verdict(history(1, 2, 3)) is None


def test_another_part_may_not() -> None:
    assert verdict(history(1, 2, 3), 1, 3) is Kind.NO_PREFIX


def test_another_part_may_where_damage_was_stepped_over() -> None:
    assert verdict(history(1, 2, 3), 1, 3, has_holes=True) is None


@pytest.mark.parametrize("has_holes", [False, True])
def test_what_is_promised_is_there_whatever_was_damaged(has_holes: bool) -> None:
    assert verdict(history(1, 2, 3, promised=2), 1, 3, has_holes=has_holes) is Kind.LOST
    assert verdict(history(1, 2, 3, promised=2), 1, 2, has_holes=has_holes) is None


@pytest.mark.parametrize("has_holes", [False, True])
def test_nothing_is_there_that_never_was(has_holes: bool) -> None:
    assert verdict(history(1), 1, 2, has_holes=has_holes) is Kind.INVENTED


def test_a_file_may_lose_its_end_while_the_next_one_is_there() -> None:
    assert verdict(history(1, 2, 3, segments=(1, 1, 2)), 1, 3) is None


def test_a_server_without_room_to_keep_a_torn_end_aside_has_its_jobs_back_after_a_reload() -> None:
    run = JobRun(SeedPlan(1, PROFILES["jobs-faults"]))
    run.begin_life()
    run.make_world().broker.shutdown(run.now_ms)
    run.disk = run.disk.kill()
    log = run.disk.append(f"{run.workload.folder}/000000001.log")
    log.write(cmdlog.MAGIC + bytes(3))
    log.close()
    run.disk.fail("write", "damaged", errno.ENOSPC)
    with pytest.raises(Violation, match="No space left") as found:
        run.make_world()
    assert found.value.kind is Kind.NO_START
    run.disk = run.disk.kill()
    run.disk.fail("write", "damaged", errno.ENOSPC)
    run.has_faults = True
    assert not run.make_world().broker.workq.trouble


def test_a_payload_with_line_ends_is_shown_whole() -> None:
    talk = JobConversation()
    talk.expect(Request(Want.INSPECT, b"", job_id(1)))
    answer = b"+OK 1\r\nid 3\r\npayload-size 6\r\npayload a\r\nb\r\n\r\ncreated x\r\n"
    assert talk.feed(answer[:-16]) == []
    (heard,) = talk.feed(answer[-16:])
    assert heard.keys == {"payload-size": "6", "payload": "a\r\nb\r\n", "created": "x"}
