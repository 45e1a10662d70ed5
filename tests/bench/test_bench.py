"""The benchmark's own arithmetic, text and refusals, and its generator against a queue of thirty lines."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from staniel.bench.__main__ import cut_short, main
from staniel.bench.harness import machine
from staniel.bench.harness.contestant import Contestant, Launch, Sync
from staniel.bench.harness.process import StartFailed, free_port, running
from staniel.bench.peers import figures, generator
from staniel.bench.peers.figures import Row, Side, Spread, Versus
from staniel.bench.peers.generator import CannotBuild, Latency, Report
from staniel.bench.peers.rounds import Arena, Run, line_up, planned, play, run
from staniel.bench.peers.servers import OURS, ours
from staniel.bench.peers.workloads import WORKLOADS, Mode, Workload, steps

FAKE_QUEUE = """
import collections, itertools, socketserver, sys
items = collections.deque()
sets = itertools.count(1)
fault = sys.argv[2] if len(sys.argv) > 2 else "none"

class Client(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            words = line.split()
            if words[0] == b"set":
                data = self.rfile.read(int(words[4]) + 2)
                kept = [data]
                if next(sets) == 3:
                    damaged = data[:-3] + bytes([data[-3] ^ 1]) + b"\\r\\n"
                    kept = {"loses": [], "doubles": [data, data], "damages": [damaged]}.get(fault, kept)
                items.extend(kept)
                self.wfile.write(b"STORED\\r\\n")
            elif items:
                data = items.popleft()
                self.wfile.write(b"VALUE bench 0 %d\\r\\n%sEND\\r\\n" % (len(data) - 2, data))
            else:
                self.wfile.write(b"END\\r\\n")

class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 64

Server(("127.0.0.1", int(sys.argv[1])), Client).serve_forever()
"""

TINY = Workload("tiny", Mode.PUT, conns=3, ops=60)


def report(ops_per_s: float = 1000.0, mode: str = "put", p50: float = 500.0, **counts: int) -> Report:
    delay = Latency(n=1, mean=p50, p50=p50, p90=p50, p99=2 * p50, p999=p50, max=p50)
    fields = ("put_failures", "misses", "errors", "lost", "duplicated", "corrupted", "foreign")
    zeros = dict.fromkeys(fields, 0) | counts
    return Report(
        mode=mode, ops=60, seconds=0.06, ops_per_s=ops_per_s, stalled=False, timed_out=False, client_cpu=0.5,
        put_us=delay, get_us=delay, e2e_us=delay, **zeros,
    )  # fmt: skip


def measured(number: int, contestant: str, ops_per_s: float) -> Run:
    return Run(number, "put", contestant, report(ops_per_s))


def fake(tmp_path: Path, fault: str = "none") -> Contestant:
    script = tmp_path / "fake_queue.py"
    script.write_text(FAKE_QUEUE)
    return ours(f"{shlex.quote(sys.executable)} {shlex.quote(str(script))} {{port}} {fault}")


def interrupt(pid: int) -> None:
    os.kill(pid, 0)  # it is there, or this raises something else
    raise KeyboardInterrupt


def arena(tmp_path: Path) -> Arena:
    return Arena(generator.build(tmp_path / "build"), tmp_path, None, None)


def test_a_ratio_is_the_median_of_the_ratios_of_each_round() -> None:
    mine = {0: report(100.0), 1: report(300.0), 2: report(90.0)}
    peer = {0: report(200.0), 1: report(100.0), 2: report(100.0)}
    assert figures.ratio(mine, peer) == Spread(median=0.9, low=0.5, high=3.0)


def test_a_round_that_only_one_side_finished_counts_for_no_ratio() -> None:
    assert figures.ratio({0: report(100.0), 1: report(1.0)}, {0: report(50.0)}) == Spread(2.0, 2.0, 2.0)
    assert figures.ratio({0: report(100.0)}, {1: report(100.0)}) is None


def test_a_failed_run_is_in_no_figure() -> None:
    runs = [measured(0, OURS, 2000.0), Run(0, "put", "redis", failure="1 items lost")]
    (row,) = figures.rows(runs, ["put", "get"], ["redis"])
    assert row.workload == "put"
    assert row.ours is not None
    assert row.ours.kops == Spread(2.0, 2.0, 2.0)
    assert row.peers == ()


def test_figures_are_medians_with_all_rounds_in_the_spread() -> None:
    runs = [measured(number, OURS, rate) for number, rate in enumerate([1000.0, 9000.0, 2000.0])]
    (row,) = figures.rows(runs, ["put"], [])
    assert row.ours == Side(OURS, Spread(2.0, 1.0, 9.0), p50_ms=0.5, p99_ms=1.0, p999_ms=0.5, server_cpu=-1.0)


def test_the_latency_of_a_row_is_that_of_what_it_measures() -> None:
    delays = {
        "put_us": Latency(1, 1, 1, 1, 1, 1, 1),
        "get_us": Latency(1, 2, 2, 2, 2, 2, 2),
        "e2e_us": Latency(1, 3, 3, 3, 3, 3, 3),
    }
    means = []
    for mode in Mode:
        base = report(mode=mode.value)
        changed = {name: getattr(base, name) for name in base.__struct_fields__} | delays
        means.append(figures.latency(Report(**changed)).mean)
    assert means == [1, 2, 3, 2]


def test_where_the_load_sets_the_rate_the_ratio_is_that_of_the_delays() -> None:
    ours, theirs = report(mode="pingpong", p50=500.0), report(mode="pingpong", p50=1000.0)
    assert figures.ratio({0: ours}, {0: theirs}) == Spread(2.0, 2.0, 2.0)


def test_the_table_lines_up_and_shows_ratio_with_spread() -> None:
    side = Side(OURS, Spread(98.04, 90.0, 99.0), p50_ms=1.0, p99_ms=2.345, p999_ms=4.5, server_cpu=1.0)
    redis = Side("redis", Spread(104.0, 100.0, 110.0), p50_ms=1.0, p99_ms=2.0, p999_ms=3.0, server_cpu=1.0)
    rows = [
        Row("put", side, (Versus(redis, Spread(0.943, 0.9, 1.02)),)),
        Row("flood-1+1", None, (Versus(redis, None),)),
    ]
    assert figures.render(rows, ["redis", "memcached"]).splitlines() == [
        "workload   ours k/s  p50/p99/p99.9 ms  redis k/s         ours/redis  memcached k/s  ours/memcached",
        "put            98.0    1.00/2.35/4.50      104.0  0.94 (0.90..1.02)              -               -",
        "flood-1+1         -                 -      104.0                  -              -               -",
    ]


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({"lost": 2}, "2 items lost"),
        ({"duplicated": 1}, "1 items duplicated"),
        ({"corrupted": 3}, "3 items corrupt"),
        ({"foreign": 4}, "4 items not of this run"),
        ({"put_failures": 5}, "5 items refused"),
        ({"errors": 6}, "6 errors"),
    ],
)
def test_every_kind_of_harm_is_named(counts: dict[str, Any], said: str) -> None:
    assert generator.wrongs(report(**counts), 60) == [said]


def test_items_that_never_came_are_missed_even_when_the_generator_counts_no_loss() -> None:
    assert generator.wrongs(report(), 60) == []
    assert generator.wrongs(report(), 61) == ["60 of 61 items arrived"]


def test_every_workload_checks_what_it_put() -> None:
    for workload in WORKLOADS:
        modes = [step.args[step.args.index("--mode") + 1] for step in steps(workload, "memcache", kv=False)]
        assert modes in (["put", "get"], ["flood"], ["pingpong"])
        assert [step.measured for step in steps(workload, "memcache", kv=False)].count(True) == 1


def test_a_backlog_stays_below_the_128_mb_that_kestrel_keeps_in_memory() -> None:
    assert max(workload.ops * workload.size_bytes for workload in WORKLOADS) < 128 * 1024 * 1024


def test_only_the_memcache_protocol_is_asked_for_a_reliable_read() -> None:
    workload = Workload("reliable", Mode.GET, conns=1, ops=1, reliable=True)
    asked = {
        proto: any("--reliable" in step.args for step in steps(workload, proto, kv=False))
        for proto in ("memcache", "redis", "beanstalk")
    }
    assert asked == {"memcache": True, "redis": False, "beanstalk": False}


def test_contestants_turn_round_with_every_round_and_ours_needs_no_mention() -> None:
    def named(name: str) -> Contestant:
        return Contestant(name, "memcache", name, lambda launch: [name])

    field = [named(name) for name in (OURS, "redis", "memcached")]
    workload = Workload("put", Mode.PUT, conns=1, ops=1, peers=("redis",))
    assert [[one.name for one in line_up(workload, field, number)] for number in (0, 1)] == [
        [OURS, "redis"],
        ["redis", OURS],
    ]


def test_runs_that_the_time_limit_left_out_are_counted(tmp_path: Path) -> None:
    field = [Contestant(OURS, "memcache", "ours", lambda launch: [])]
    nowhere = Arena(tmp_path / "no-generator", tmp_path, None, None)
    assert list(play(nowhere, [TINY], field, rounds=3, seconds_max=-1.0)) == []
    assert planned([TINY], field, rounds=3) == 3
    assert cut_short(0, 3, 100.0) == ["cut off after 100 s: 3 of 3 runs were not made"]
    assert cut_short(3, 3, 100.0) == []


def test_the_server_command_is_filled_in_word_by_word() -> None:
    contestant = ours("run --at={port} '--in={dir}' --sync {sync}")
    command = contestant.command(Launch(port=7, folder=Path("/a b"), sync=Sync.DURABLE))
    assert command == ["run", "--at=7", "--in=/a b", "--sync", "always"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--only", "putt"], "no workload 'putt'; there are: put, get"),
        (["--peers", "rabbit"], "no peer 'rabbit'; there are: redis, beanstalkd, memcached"),
        (["--server", "none", "--peers", "none"], "nothing to measure"),
        (["--server", ""], "--server: an empty command"),
    ],
)
def test_a_wrong_option_is_refused_with_what_would_be_right(args: list[str], said: str) -> None:
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 2
    assert said in result.output


def test_a_peer_that_is_not_installed_is_named_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    result = CliRunner().invoke(main, ["--server", "none", "--peers", "redis"])
    assert "left out: redis (redis-server is not on the PATH)" in result.output


def test_without_a_compiler_the_generator_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(CannotBuild, match="install cc"):
        generator.build(tmp_path, compiler="no-such-compiler")


def test_a_folder_in_memory_is_warned_of() -> None:
    mounts = "/dev/vda / ext4 rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\n"
    assert machine.file_system(Path("/dev/shm"), mounts) == "tmpfs"
    assert machine.file_system(Path("/dev"), mounts) == "ext4"
    facts = machine.Machine("", "", 1, "", "", "/dev/shm", "tmpfs", 0.0, {})
    assert [line.split(":")[0] for line in machine.warnings(facts)] == [
        "/dev/shm is in memory (tmpfs)",
        "only one core",
    ]


def test_strangers_on_the_machine_are_counted_in_cores() -> None:
    before = machine.Ticks(at_seconds=10.0, whole_seconds=100.0, own_seconds=1.0)
    after = machine.Ticks(at_seconds=20.0, whole_seconds=116.0, own_seconds=12.0)
    assert machine.others_cores(before, after) == 0.5
    assert machine.busy_warning(0.5)[0].startswith("other programs used 0.50 cores")
    assert machine.busy_warning(0.1) == []


def test_a_server_that_ends_at_once_is_reported_with_its_last_words(tmp_path: Path) -> None:
    dying = ours(f"{shlex.quote(sys.executable)} -c \"import sys; sys.exit('no such option')\"")
    with (
        pytest.raises(StartFailed, match="ended with status 1 at once: no such option"),
        running(dying, Sync.JOURNALED, tmp_path, None),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_program_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with (
        pytest.raises(StartFailed, match="no-such-server"),
        running(ours("no-such-server"), Sync.JOURNALED, tmp_path, None),
    ):
        pass


def test_server_and_folder_are_gone_when_a_run_is_interrupted(tmp_path: Path) -> None:
    contestant = fake(tmp_path)
    with pytest.raises(KeyboardInterrupt), running(contestant, Sync.JOURNALED, tmp_path, None) as server:
        interrupt(server.pid)
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["fake_queue.py"]


@pytest.mark.programs("cc")
def test_the_generator_compiles_and_reports_against_a_small_queue(tmp_path: Path) -> None:
    for mode in (Mode.PUT, Mode.GET):
        done = run(arena(tmp_path), Workload("tiny", mode, conns=3, ops=60), fake(tmp_path), 0)
        assert done.failure == ""
        assert done.report is not None
        assert (done.report.mode, done.report.ops) == (mode.value, 60)
        assert done.report.ops_per_s > 0


@pytest.mark.programs("cc")
def test_the_built_generator_is_kept_until_its_source_is_newer(tmp_path: Path) -> None:
    built = generator.build(tmp_path).stat().st_mtime_ns
    assert generator.build(tmp_path, compiler="no-such-compiler").stat().st_mtime_ns == built


@pytest.mark.programs("cc")
@pytest.mark.parametrize(
    ("fault", "said"), [("loses", "1 items lost"), ("damages", "1 items corrupt"), ("doubles", "1 items duplicated")]
)
def test_a_queue_that_harms_an_item_fails_its_run(
    tmp_path: Path, fault: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generator, "IDLE_MS", 200)
    done = run(arena(tmp_path), TINY, fake(tmp_path, fault), 0)
    assert done.report is None
    assert said in done.failure


@pytest.mark.programs("cc")
def test_the_whole_benchmark_exits_1_when_an_item_was_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "IDLE_MS", 200)
    monkeypatch.setattr("staniel.bench.__main__.WORKLOADS", (TINY,))
    outcomes = {}
    for fault in ("none", "loses"):
        args = ["--server", fake(tmp_path, fault).described, "--peers", "none", "--rounds", "1", "--dir", str(tmp_path)]
        outcomes[fault] = CliRunner().invoke(main, args)
    assert outcomes["none"].exit_code == 0, outcomes["none"].output
    assert outcomes["loses"].exit_code == 1
    assert "FAILED: ours, tiny, round 1: 1 items lost" in outcomes["loses"].output


def test_a_workload_is_as_many_times_as_long_as_is_asked_for() -> None:
    for times in (1, 10):
        said = CliRunner().invoke(main, ["--list", "--only", "durable-10c", "--times", str(times)])
        assert said.exit_code == 0 and str(times * 10_000) in said.output.split()


@pytest.mark.programs("cc")
def test_a_terminated_benchmark_leaves_no_server_and_no_folder(tmp_path: Path) -> None:
    generator.build()
    args = ["--server", fake(tmp_path).described, "--peers", "none", "--only", "put", "--dir", str(tmp_path)]
    child = subprocess.Popen(
        [sys.executable, "-m", "staniel.bench", *args],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    give_up = time.monotonic() + 60
    while not list(tmp_path.glob("bench-ours-*/data")) and time.monotonic() < give_up:
        time.sleep(0.01)
    assert list(tmp_path.glob("bench-ours-*")), "the benchmark never started its server"
    child.terminate()
    assert child.wait(timeout=60) == 128 + 15
    assert list(tmp_path.glob("bench-ours-*")) == []


def test_a_free_port_is_outside_the_range_that_clients_get() -> None:
    assert all(10_240 <= free_port() < 32_000 for _ in range(50))
