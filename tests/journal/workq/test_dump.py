"""A command log as readable records: all of them, in order, with damage in its place, and nothing changed."""

from __future__ import annotations

import pytest

from staniel.journal.workq.dump import Record, dump_segment, is_cmdlog, line, show_time
from staniel.sim.disk.disk import Disk
from tests.support.job_world import LOG, JobWorld, disk_with_log, job_id


def dump(disk: Disk) -> list[Record]:
    return [
        record
        for name, _ in sorted(disk.list(LOG))
        if name.endswith(".log")
        for record in dump_segment(disk, f"{LOG}/{name}")
    ]


def log_of_everything() -> Disk:
    world = JobWorld()
    worker = world.worker()
    worker.adds(1, "payload", ttr=5, flags="-priority=-3")
    worker.says("lease q 0")
    world.pass_time(30)
    worker.finishes(1, "done")
    worker.says(f"schedule {job_id(2)} later 1000 60000 2200-01-01T00:00:00Z 1", "x")
    worker.finishes(2, "no", "fail")
    worker.asks(f"delete {job_id(1)}")
    worker.adds(3, ttl=10)
    world.pass_time(50)
    return world.disk


def test_every_record_is_shown_in_its_order() -> None:
    records = dump(log_of_everything())
    assert [record["command"] for record in records] == [
        "add", "start-attempt", "timeout-attempt", "complete", "schedule", "fail", "delete", "add", "expire",
    ]  # fmt: skip
    assert records[0]["payload"] == b"payload" and records[0]["priority"] == -3 and records[0]["id"] == job_id(1)
    assert records[3]["result"] == b"done" and records[4]["scheduled"] == "2200-01-01T00:00:00.000000000Z"
    assert line(records[0]).startswith("8 add size=") and "payload='payload'" in line(records[0])
    assert all("\n" not in line(record) for record in records)


def test_damage_is_shown_in_its_place() -> None:
    disk = log_of_everything()
    content = bytearray(disk.read(f"{LOG}/000000001.log", 0, 10_000))
    content[200] ^= 1
    broken = disk_with_log({"000000001.log": bytes(content) + b"tail", "000000002.log": b"nothing"})
    records = dump(broken)
    assert [name for record in records for name in record if name == "damaged"] == ["damaged"] * 3
    offsets = [record["at"] for record in records if record["file"] == f"{LOG}/000000001.log"]
    assert offsets == sorted(offsets, key=lambda at: int(str(at))) and len(records) == 8 + 3
    assert "damaged size=" in line(records[-1])


def test_a_log_is_known_by_its_magic() -> None:
    disk = disk_with_log({"a": b"wqwq\x00\x00\x00\x07", "b": b"else"})
    assert is_cmdlog(disk, f"{LOG}/a") and not is_cmdlog(disk, f"{LOG}/b")


@pytest.mark.parametrize(("at_ns", "shown"), [(1, "1970-01-01T00:00:00.000000001Z"), (10**30, f"{10**30}ns")])
def test_times_are_shown_to_the_nanosecond(at_ns: int, shown: str) -> None:
    assert show_time(at_ns) == shown
