"""The views of workq's command log: records, and what became of the jobs. No Spark here."""

from __future__ import annotations

from pathlib import Path

import pytest

from staniel.pipeline.formats.adapters import list_segments
from staniel.pipeline.formats.base import CorruptJournal, OnCorrupt, Part, Reading
from staniel.pipeline.lake.folders import LocalFolder
from tests.support.job_world import job_id
from tests.support.workq_log import Script, by_chance, files, snapshot


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """A log of several segments: jobs that wait, are worked on, are done, and are gone."""
    script = Script(settings="cmdlog_seg_size = 260")
    for number in range(6):
        script.add(number)
    script.lease()
    script.lease()
    write(script, tmp_path)
    return script


def write(script: Script, folder: Path) -> None:
    for number, data in enumerate(files(script.world.disk), start=1):
        (folder / f"{number:09}.log").write_bytes(data)


def rows(folder: Path, view: str, reading: Reading = Reading()) -> list[dict[str, object]]:  # noqa: B008
    place = LocalFolder(str(folder))
    form, queues = list_segments(place, "auto")
    assert form.name == "workq"
    ((queue, segments),) = queues.items()
    return [row for batch in form.view(view)(place, Part(queue, segments), reading) for row in batch.to_pylist()]


def test_jobs_are_as_the_server_has_them(script: Script, tmp_path: Path) -> None:
    found = {bytes.fromhex(str(row["id"]).replace("-", "")): row for row in rows(tmp_path, "jobs")}
    held = snapshot(script.world)
    assert found.keys() == held.keys() and len(found) == 6
    for id, (_, attempts, payload, _, _, _, queue) in held.items():
        row = found[id]
        assert (row["attempts"], row["value"], str(row["queue"]).encode()) == (attempts, payload, queue)
        assert row["state"] == ("leased" if attempts else "queued") and (row["firstStart"] is not None) == bool(
            attempts
        )


def test_records_come_in_order_with_their_time(script: Script, tmp_path: Path) -> None:
    found = rows(tmp_path, "ops")
    assert [row["op"] for row in found] == ["add"] * 6 + ["start-attempt"] * 2
    assert found[0]["value"] == b"job 0" and all(row["asOf"] is not None for row in found)
    assert len({row["file"] for row in found}) > 1
    assert str(found[3]["id"]).replace("-", "") == job_id(3).replace("-", "")


def test_damage_is_stepped_over_and_told(script: Script, tmp_path: Path) -> None:
    segment = tmp_path / "000000001.log"
    data = bytearray(segment.read_bytes())
    data[40] ^= 0xFF
    segment.write_bytes(data)
    with pytest.raises(CorruptJournal, match=r"000000001\.log: byte 8: .*onCorrupt"):
        rows(tmp_path, "ops")
    found = rows(tmp_path, "ops", Reading(on_corrupt=OnCorrupt.PERMISSIVE))
    assert len(found) == 8 and sum(row["_corrupt"] is not None for row in found) == 1


def test_the_state_has_jobs_in_the_order_in_which_they_are_handed_out(tmp_path: Path) -> None:
    script = Script()
    for number in range(6):
        script.add(number, flags="-priority=5" if number == 4 else "")
    script.add(6, name="other")
    for number, at in ((7, "2200-01-01T00:00:00Z"), (8, "2023-11-14T22:13:21Z")):
        assert script.client.says(f"schedule {job_id(number)} q 60000 600000 {at} 5", f"job {number}").hears() == "+OK"
    script.wait(1200)
    assert script.lease() == "4"
    write(script, tmp_path)
    found = rows(tmp_path, "state")
    assert [(row["queue"], row["state"], row["position"], row["value"], row["deliveries"]) for row in found] == [
        ("other", "queued", 0, b"job 6", 0),
        *(("q", "queued", at, b"job %d" % number, 0) for at, number in enumerate((0, 1, 2, 3, 5, 8))),
        ("q", "open", None, b"job 4", 1),
        ("q", "delayed", None, b"job 7", 0),
    ]
    assert {row["id"] for row in found} == {None} and len({row["jobId"] for row in found}) == 9
    assert [row["priority"] for row in found if row["priority"]] == [5]
    assert all(row["expireTime"] is not None for row in found)
    assert [row["value"] for row in rows(tmp_path, "state", Reading(queues={"other"}))] == [b"job 6"]


@pytest.mark.parametrize("seed", range(8))
def test_the_state_is_what_the_server_has_after_anything(tmp_path: Path, seed: int) -> None:
    script = Script()
    by_chance(seed)(script)
    write(script, tmp_path)
    found = rows(tmp_path, "state")
    queue = next(iter(script.world.broker.workq.jobs.by_id.values())).terms.queue
    ready = [job.id.hex() for job in queue.ready]
    assert [str(row["jobId"]).replace("-", "") for row in found if row["position"] is not None] == ready
