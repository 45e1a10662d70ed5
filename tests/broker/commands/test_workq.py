"""What workq's commands do to the queues, without a socket."""

from __future__ import annotations

from tests.support.job_world import JobWorld, job_id

PAST, FUTURE = "2001-01-01T00:00:00Z", "2200-01-01T00:00:00Z"


def test_a_job_that_is_refused_makes_no_queue() -> None:
    client = JobWorld().worker()
    client.adds(1, name="first")
    assert client.adds(1, name="other").endswith("Duplicate job")
    for number, time in ((1, FUTURE), (2, PAST)):
        assert client.says(f"schedule {job_id(number)} other 1 1 {time} 1", "x").hears().startswith("-CLIENT-ERROR")
    assert client.says(f"run {job_id(1)} other 1 1 1", "x").hears().endswith("Duplicate job")
    assert client.asks("inspect queue other") == client.asks("inspect jobs other 0 9") == "-NOT-FOUND"


def test_a_lease_that_stops_at_a_bad_name_has_made_the_queues_before_it() -> None:
    client = JobWorld().worker()
    assert client.asks("lease before bad! behind 1") == "-CLIENT-ERROR Invalid Name"
    assert (
        client.asks("inspect queue before").startswith("+OK 1") and client.asks("inspect queue behind") == "-NOT-FOUND"
    )


def test_who_waits_for_the_result_of_a_job_that_is_deleted_is_told_at_once() -> None:
    world = JobWorld()
    boss, others = world.worker(), [world.worker(), world.worker()]
    assert boss.adds(1) == "+OK"
    for other in others:
        assert other.asks(f"result {job_id(1)} 60000") == ""
    assert boss.asks(f"delete {job_id(1)}") == "+OK"
    assert [other.hears() for other in others] == ["-NOT-FOUND", "-NOT-FOUND"]
    assert others[0].asks("inspect server").startswith("+OK 1")


def test_and_of_one_whose_time_to_live_ends() -> None:
    world = JobWorld()
    boss, other = world.worker(), world.worker()
    assert boss.adds(1, ttr=10, ttl=500) == "+OK"
    assert other.asks(f"result {job_id(1)} 60000") == ""
    world.pass_time(600)
    assert other.hears() == "-NOT-FOUND"
