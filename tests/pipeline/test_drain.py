"""Draining loses nothing, whatever is killed and when; what comes twice is one batch at most, and is counted."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from staniel.pipeline.sources.connection import BlockingConnection, ServerLost, ServerRefused
from staniel.pipeline.sources.drain import BatchLimits, Drain, DrainStep, UnknownQueue
from staniel.pipeline.sources.drain_spool import SCHEMA, DrainSpool, SpoolTaken, encode_items
from staniel.pipeline.sources.live import EVERYTHING, LiveStream, Offset
from staniel.pipeline.sources.live_options import DrainOptions
from staniel.protocol.client.replies import Answer
from staniel.protocol.memcache import requests as memcache
from tests.support.process import Server, running, until

ITEMS = 300
ROOT = Path(__file__).resolve().parents[2]
REPEATS_AFTER = {
    "drainer": {DrainStep.SYNCED},  # it was spooled, and nobody confirmed it
    "server": {
        DrainStep.RESERVED,
        DrainStep.SPOOLED,
        DrainStep.SYNCED,
    },  # the drainer lives on and spools what it holds
}


def fill(server: str, queue: str, count: int) -> list[bytes]:
    values = [b"item %06d" % number for number in range(count)]
    connection = BlockingConnection(server)
    assert set(connection.ask(*[memcache.Set(queue, value) for value in values])) == {Answer.STORED}
    connection.close()
    return values


def spooled(spool: DrainSpool) -> list[tuple[bytes, int | None]]:
    names = [name for _, names in sorted(spool.batches().items()) for name in names]
    return [(row["value"], row["id"]) for batch in spool.read(names) for row in batch.to_pylist()]


def drain(server: str, place: Path, batch: int, after: Callable[[DrainStep], None] = lambda step: None) -> int:
    spool = DrainSpool(str(place))
    with spool:
        drainer = Drain([server], ["jobs"], spool, connections=2, timeout_s=10.0, after=after)
        count = drainer.fill(batch, BatchLimits(10_000, 1 << 40), 0)
        drainer.close()
    return count


def server_address(server: Server) -> str:
    return f"127.0.0.1:{server.port}"


def check(place: Path, values: list[bytes], step: DrainStep, closing_line: Callable[[str], None], who: str) -> None:
    """Nothing is missing; what is there twice has the same id twice, and is no more than one round."""
    found = spooled(DrainSpool(str(place)))
    times = Counter(value for value, _ in found)
    assert set(times) == set(values), "lost"
    repeats = sum(times.values()) - len(values)
    assert len(set(found)) == len(values), "an item that comes again has the id that it had"
    assert repeats <= 200 and (repeats == 0 or step in REPEATS_AFTER[who]), f"{repeats} repeats"
    closing_line(f"drain: {who} killed after {step.value}: {len(values)} items, 0 missing, {repeats} repeated")


@pytest.mark.parametrize("step", DrainStep)
def test_a_drainer_killed_at_any_step_loses_nothing(
    tmp_path: Path, step: DrainStep, closing_line: Callable[[str], None]
) -> None:
    with running(tmp_path / "server") as server:
        values = fill(server_address(server), "jobs", ITEMS)
        place = tmp_path / "drained"
        command = [sys.executable, "-m", "tests.pipeline.drainer", server_address(server), "jobs", str(place)]
        with subprocess.Popen([*command, "1", "200", step.value], stdout=subprocess.PIPE, cwd=ROOT) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"at %s\n" % step.value.encode()
            child.kill()
        batch = 2
        while drain(server_address(server), place, batch):
            batch += 1
        check(place, values, step, closing_line, "drainer")


@pytest.mark.parametrize("step", DrainStep)
def test_a_server_killed_at_any_step_loses_nothing(
    tmp_path: Path, step: DrainStep, closing_line: Callable[[str], None]
) -> None:
    with running(tmp_path / "server") as server:
        values = fill(server_address(server), "jobs", ITEMS)
        place = tmp_path / "drained"
        killed: list[DrainStep] = []

        def kill(at: DrainStep) -> None:
            if at is step and not killed:
                killed.append(at)
                server.kill()

        with contextlib.suppress(ServerLost):
            drain(server_address(server), place, 1, kill)
        server.start()
        batch = 2
        while drain(server_address(server), place, batch):
            batch += 1
        check(place, values, step, closing_line, "server")


def test_several_servers_and_queues_are_drained_within_the_limits(tmp_path: Path) -> None:
    with running(tmp_path / "a") as first, running(tmp_path / "b") as second:
        servers = [server_address(first), server_address(second)]
        for server in servers:
            fill(server, "jobs", 150)
            fill(server, "mail", 70)
        spool = DrainSpool(str(tmp_path / "drained"))
        with spool:
            drainer = Drain(servers, ["jobs", "mail"], spool, connections=1)
            assert drainer.waiting() == 440
            counts = []
            while count := drainer.fill(len(counts) + 1, BatchLimits(100, 1 << 40), 0):
                counts.append(count)
            drainer.close()
        assert max(counts) <= 103 and sum(counts) == 440
        assert len(spooled(spool)) == 440


def test_a_batch_keeps_its_limits_within_one_item_when_items_become_large(tmp_path: Path) -> None:
    """Nobody knows the size of what he reserves: what turns out to be too much goes back to its queue."""
    large = b"L" * (1 << 20)
    with running(tmp_path / "server") as server:
        address = server_address(server)
        values = fill(address, "jobs", 2000)
        connection = BlockingConnection(address)
        for number in range(80):
            assert connection.ask(memcache.Set("jobs", b"%06d" % number + large)) == [Answer.STORED]
        connection.close()
        spool = DrainSpool(str(tmp_path / "drained"))
        with spool:
            drainer = Drain([address], ["jobs"], spool)
            held_bytes, sizes, limit = 0, [], 6 << 20
            tracemalloc.start()
            while drainer.fill(len(sizes) + 1, BatchLimits(1_500, limit), 200):
                held_bytes = max(held_bytes, tracemalloc.get_traced_memory()[1])
                found = [data for data, _ in spooled(spool)]
                sizes.append((len(found), sum(map(len, found))))
                spool.forget(len(sizes))
                tracemalloc.reset_peak()
            tracemalloc.stop()
            drainer.close()
    assert sum(count for count, _ in sizes) == len(values) + 80
    assert max(count for count, _ in sizes) <= 1_500
    assert max(size for _, size in sizes) <= limit + len(large) + 6 and held_bytes < 6 * limit


def test_a_queue_that_no_server_has_is_no_empty_queue(tmp_path: Path) -> None:
    with running(tmp_path / "a") as first, running(tmp_path / "b") as second:
        servers = [server_address(first), server_address(second)]
        fill(servers[1], "jobs", 3)
        with DrainSpool(str(tmp_path / "drained")) as spool:
            with pytest.raises(UnknownQueue, match=f"there is no queue job on {servers[0]} and {servers[1]}"):
                Drain(servers, ["job"], spool).fill(1, BatchLimits(10, 1 << 20), 0)
            drainer = Drain(servers, ["jobs"], spool)
            assert drainer.fill(1, BatchLimits(10, 1 << 20), 0) == 3, "one of them has it"
            drainer.close()
        assert not Path(tmp_path / "a" / "spool" / "job").exists(), "and looking for it has made none"


def test_one_dead_server_of_two_is_an_error_and_no_empty_queue(tmp_path: Path) -> None:
    with running(tmp_path / "a") as first, running(tmp_path / "b") as second:
        servers = [server_address(first), server_address(second)]
        for server in servers:
            fill(server, "jobs", 50)
        with DrainSpool(str(tmp_path / "drained")) as spool:
            drainer = Drain(servers, ["jobs"], spool, connections=1, timeout_s=0.5)
            assert drainer.waiting() == 100
            second.kill()
            assert drainer.fill(1, BatchLimits(1000, 1 << 20), 0) == 50, "what the other one has"
            with pytest.raises(ServerLost, match=f"no answer from {servers[1]}"):
                drainer.fill(2, BatchLimits(1000, 1 << 20), 0)
            with pytest.raises(ServerLost, match=f"no answer from {servers[1]}"):
                Drain(servers, ["jobs"], spool, timeout_s=0.5).waiting()


def stream(place: str, server: str) -> LiveStream:
    options = DrainOptions({"servers": server, "queue": "jobs", "spoolPath": place, "pollTimeoutMs": "0"})
    return LiveStream(options, SCHEMA)


def delivered(stream: LiveStream, start: Offset, end: Offset) -> list[bytes]:
    """What Spark would store of a batch."""
    return [
        row["value"]
        for each in stream.partitions(start, end)
        for batch in stream.read(each)
        for row in batch.to_pylist()
    ]


@pytest.mark.parametrize("where", ["local", "remote"])
def test_two_queries_with_one_spool_lose_nothing_and_one_is_told(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A second query numbers its batches from what it finds, so each would take the other's files for its own."""
    monkeypatch.setattr("staniel.pipeline.sources.drain_spool.LOCK_WAIT_S", 0.1)
    place = request.getfixturevalue("bucket") if where == "remote" else str(tmp_path / "drained")
    with running(tmp_path / "server") as server:
        address = server_address(server)
        values = fill(address, "jobs", 20)
        first = stream(place, address)
        zero = first.initialOffset()
        one = first.latestOffset(zero, ReadMaxRows(20))
        assert one["batch"] == 1 and delivered(first, zero, one) == values
        second = stream(place, address)
        if where == "local":
            with pytest.raises(SpoolTaken, match="one query a spool"):
                second.initialOffset()
            first.stop()
        begin = second.initialOffset()
        late = fill(address, "jobs", 30)
        if where == "remote":
            with pytest.raises(SpoolTaken, match="another query drains into"):
                first.latestOffset(one, ReadMaxRows(20))
            with pytest.raises(SpoolTaken, match="another query drains into"):
                first.commit(one)
            first.stop()
        found, at = [], begin
        while (end := second.latestOffset(at, ReadMaxRows(20))) != at:
            found += delivered(second, at, end)
            second.commit(end)
            at = end
        second.stop()
        assert set(found) == {*values, *late}, "what the first had confirmed, and what it could not"
        again = stream(place, address)
        with pytest.raises(SpoolTaken, match="belongs to another query"):
            again.latestOffset(one, ReadMaxRows(20))
        again.stop()
        same = stream(place, address)
        assert same.latestOffset(at, ReadMaxRows(20)) == at, "a restart of the second goes on"
        same.stop()


def available_now(place: Path, server: str, items_a_trigger: int) -> LiveStream:
    given = {"servers": server, "queue": "jobs", "spoolPath": str(place), "pollTimeoutMs": "0"}
    stream = LiveStream(DrainOptions({**given, "maxItemsPerTrigger": str(items_a_trigger)}), SCHEMA)
    stream.prepareForTriggerAvailableNow()
    return stream


def test_available_now_drains_the_next_batch_while_spark_stores_one(tmp_path: Path) -> None:
    with running(tmp_path / "server") as server:
        values = fill(server_address(server), "jobs", 50)
        stream = available_now(tmp_path / "drained", server_address(server), 20)
        limit, at = stream.getDefaultReadLimit(), stream.initialOffset()
        end = stream.latestOffset(at, limit)
        assert until(lambda: len(DrainSpool(str(tmp_path / "drained")).batches()) == 2), "nobody has asked for it yet"
        fill(server_address(server), "jobs", 5)  # later than the start: not for this query
        found = []
        while end != at:
            found.append(delivered(stream, at, end))
            stream.commit(end)
            at, end = end, stream.latestOffset(end, limit)
        stream.stop()
        assert [len(batch) for batch in found] == [20, 20, 10] and sorted(chain(*found)) == sorted(values)
        connection = BlockingConnection(server_address(server))
        assert connection.queue_items(["jobs"]) == {"jobs": 5}
        connection.close()


def test_without_available_now_items_stay_in_the_queue_until_their_batch(tmp_path: Path) -> None:
    with running(tmp_path / "server") as server:
        fill(server_address(server), "jobs", 50)
        stream = available_now(tmp_path / "drained", server_address(server), 20)
        stream.left = EVERYTHING
        stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
        stream.stop()
        connection = BlockingConnection(server_address(server))
        assert connection.queue_items(["jobs"]) == {"jobs": 30}
        connection.close()


def test_a_batch_ahead_ends_with_its_round_at_a_stop(tmp_path: Path) -> None:
    """What it had spooled is the first batch of a restart; the rest is in the queue."""
    synced, go_on = threading.Event(), threading.Event()

    def after(step: DrainStep) -> None:
        if threading.current_thread() is not threading.main_thread() and step is DrainStep.SYNCED:
            synced.set()
            assert go_on.wait(60)

    with running(tmp_path / "server") as server:
        values = fill(server_address(server), "jobs", 6000)
        stream = available_now(tmp_path / "drained", server_address(server), 2000)
        begin, limit = stream.initialOffset(), stream.getDefaultReadLimit()
        assert stream._drain is not None
        stream._drain.after = after
        first = stream.latestOffset(begin, limit)
        found, ahead = delivered(stream, begin, first), stream._ahead
        assert len(found) == 2000 and ahead is not None and synced.wait(60)
        stopping = threading.Thread(target=stream.stop)
        stopping.start()
        assert until(lambda: ahead._limits.is_ended)
        go_on.set()
        stopping.join(60)
        assert not stopping.is_alive()
        again, at = available_now(tmp_path / "drained", server_address(server), 2000), first
        sizes = []
        while (end := again.latestOffset(at, limit)) != at:
            batch = delivered(again, at, end)
            sizes.append(len(batch))
            found += batch
            at = end
        again.stop()
        assert sorted(found) == sorted(values) and 0 < sizes[0] < 2000


def test_what_ends_a_batch_ahead_is_raised_at_the_next_call(tmp_path: Path) -> None:
    with running(tmp_path / "server") as server:
        values = fill(server_address(server), "jobs", 50)
        stream = available_now(tmp_path / "drained", server_address(server), 20)
        begin, limit = stream.initialOffset(), stream.getDefaultReadLimit()
        assert stream._drain is not None

        def after(step: DrainStep) -> None:
            if threading.current_thread() is not threading.main_thread() and step is DrainStep.SPOOLED:
                raise OSError(28, "No space left on device")

        stream._drain.after = after
        first = stream.latestOffset(begin, limit)
        found = delivered(stream, begin, first)
        with pytest.raises(OSError, match="No space"):
            stream.latestOffset(first, limit)
        stream.stop()
        again, at = available_now(tmp_path / "drained", server_address(server), 20), first
        while (end := again.latestOffset(at, limit)) != at:
            found += delivered(again, at, end)
            at = end
        again.stop()
        assert sorted(found) == sorted(values)


def test_a_refused_read_is_told_in_the_servers_words(tmp_path: Path) -> None:
    with running(tmp_path / "server") as server:
        connection = BlockingConnection(server_address(server))
        connection.request_reads("a~b", 1, 0)
        with pytest.raises(ServerRefused, match="CLIENT_ERROR"):
            connection.receive_items(1, 1)
        connection.close()


def test_a_spool_that_cannot_be_written_gives_everything_back(tmp_path: Path) -> None:
    with running(tmp_path / "server") as server:
        fill(server_address(server), "jobs", 10)

        def full(step: DrainStep) -> None:
            if step is DrainStep.SPOOLED:
                raise OSError(28, "No space left on device")

        with pytest.raises(OSError, match="No space"):
            drain(server_address(server), tmp_path / "drained", 1, full)
        assert drain(server_address(server), tmp_path / "drained", 1) == 10


def test_what_was_stored_is_forgotten_and_nothing_else(tmp_path: Path) -> None:
    spool = DrainSpool(str(tmp_path))
    with spool:
        for batch in (1, 2, 3):
            spool.put(batch, 0, encode_items([("s:1", "q", [])]), lambda: None)
        (tmp_path / "000000000001.000009.0000000000000000.arrow.new").write_bytes(b"half")
        spool.forget(2)
    assert list(spool.batches()) == [3]
    assert sorted(path.suffix for path in tmp_path.iterdir() if path.name != "lock") == [".arrow"]


def test_a_drain_waits_for_enough_items_or_long_enough_and_reserves_nothing_meanwhile(tmp_path: Path) -> None:
    now_s = 0.0
    with running(tmp_path / "server") as server:
        address = server_address(server)
        fill(address, "jobs", 10)
        given = {"servers": address, "queue": "jobs", "spoolPath": str(tmp_path / "spool"), "pollTimeoutMs": "0"}
        given |= {"minItemsPerTrigger": "5", "maxTriggerDelay": "1m"}
        stream = LiveStream(DrainOptions(given), SCHEMA, lambda: now_s)
        limit = stream.getDefaultReadLimit()
        start = stream.initialOffset()
        first = stream.latestOffset(start, limit)
        assert first != start, "the first batch does not wait"
        fill(address, "jobs", 4)
        assert stream.latestOffset(first, limit) == first
        connection = BlockingConnection(address)
        assert connection.queue_items(["jobs"]) == {"jobs": 4}
        fill(address, "jobs", 1)
        second = stream.latestOffset(first, limit)
        assert second != first and connection.queue_items(["jobs"]) == {"jobs": 0}
        fill(address, "jobs", 1)
        assert stream.latestOffset(second, limit) == second
        now_s = 60.0
        assert stream.latestOffset(second, limit) != second
        connection.ask(memcache.Delete("jobs"))
        now_s = 70.0
        assert stream.latestOffset(third := {**second, "batch": second["batch"] + 1}, limit) == third
        connection.close()
        stream.stop()
