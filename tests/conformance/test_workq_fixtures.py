"""Command logs captured from the original server, and damaged copies of them, replayed: every job is what it was there.

`fixtures.json`: files as base64 of zlib; `jobs`, `gone` and the orders are the original's own account (where it refuses
to start, its account of a repaired copy); `truth_at_epoch` is the clock of that account.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from staniel.protocol.workq.fields import show_id, show_time
from staniel.queues.jobs.job import Job
from tests.support.job_world import JobWorld, disk_with_log

FIXTURES: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "workq" / "fixtures.json").read_text())
DAMAGED = {
    "bad_magic_middle_segment", "bit_flip_in_payload", "disk_full_retry", "garbage_tail", "version_2_segment",
}  # fmt: skip
TORN = {
    "short_header_last_segment", "torn_tail_in_time", "torn_tail_minus_03", "torn_tail_minus_05", "torn_tail_minus_40",
}  # fmt: skip


def world_of(name: str) -> JobWorld:
    fixture = FIXTURES[name]
    files = {file: zlib.decompress(base64.b64decode(data)) for file, data in fixture["files"].items()}
    return JobWorld(disk=disk_with_log(files), now_ms=int(fixture["truth_at_epoch"] * 1000))


def shown(job: Job, like: dict[str, Any]) -> dict[str, Any]:
    """What `like` says of a job, of this one."""
    terms = job.terms
    result: dict[str, Any] = {"size": len(job.result), "success": int(job.state.value == 1)}
    if "sha256" in (like.get("result") or {}):
        result["sha256"] = hashlib.sha256(job.result).hexdigest()
    else:
        result["hex"] = job.result.hex()
    every = {
        "attempts": job.attempts,
        "created": show_time(job.created_ns).decode(),
        "fails": job.fails,
        "max_attempts": terms.max_attempts,
        "max_fails": terms.max_fails,
        "name": terms.queue.name.decode(),
        "payload_hex": job.payload.hex(),
        "payload_sha256": hashlib.sha256(job.payload).hexdigest(),
        "payload_size": len(job.payload),
        "priority": terms.priority,
        "result": result,
        "state": job.state.value,
        "time": show_time(job.time_ns).decode() if job.time_ns else None,
        "ttl": terms.ttl_ms,
        "ttr": terms.ttr_ms,
    }
    return {key: every[key] for key in like}


def check(world: JobWorld, fixture: dict[str, Any]) -> None:
    jobs = world.jobs
    assert {id: shown(job, fixture["jobs"][id]) for id, job in jobs.items() if id in fixture["jobs"]} == fixture["jobs"]
    assert set(jobs) == set(fixture["jobs"]) and not set(jobs) & set(fixture["gone"])
    queues = world.broker.workq.jobs.queues
    for name, order in fixture["ready_order"].items():
        assert [show_id(job.id).decode() for job in queues[name.encode()].ready] == order
    for name, order in fixture["scheduled_order"].items():
        assert [show_id(job.id).decode() for job in queues[name.encode()].scheduled] == order
    world.check()


@pytest.mark.parametrize("name", FIXTURES)
def test_a_log_of_the_original_gives_the_jobs_that_it_had(name: str) -> None:
    world = world_of(name)
    check(world, FIXTURES[name])
    assert ("cmdlog.damaged" in world.events) == (name in DAMAGED)
    assert ("cmdlog.torn" in world.events) == (name in TORN)


@pytest.mark.parametrize("name", FIXTURES)
def test_a_second_start_finds_the_same_and_damage_that_was_cut_is_gone(name: str) -> None:
    first = world_of(name)
    first.stop()
    again = JobWorld(disk=first.disk.kill(), now_ms=first.now_ms)
    check(again, FIXTURES[name])
    # Damage amid a segment stays where it is until that is cleaned; ends and headers are mended at once.
    amid = {"bit_flip_in_payload", "disk_full_retry"}
    assert ("cmdlog.damaged" in again.events) == (name in amid)


@pytest.mark.parametrize("name", FIXTURES)
def test_new_jobs_follow_and_the_whole_is_read_again(name: str) -> None:
    world = world_of(name)
    worker = world.worker()
    assert worker.adds(0xABCDEF, "later", name="new") == "+OK"
    assert worker.leases("new") == str(0xABCDEF)
    world.stop()
    again = world.again()
    job = again.job(0xABCDEF)
    assert job is not None and (job.payload, job.state.value, job.attempts) == (b"later", 4, 1)
    assert set(again.jobs) >= set(FIXTURES[name]["jobs"]) and len(again.jobs) == len(FIXTURES[name]["jobs"]) + 1
