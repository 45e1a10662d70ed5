"""A real server's writes and syncs are recorded, and the power is cut behind any of them: what a start makes of what is
left holds each item and each job that was answered, whole, and nothing that was not put.

STANIEL_POWER_CUTS=11000 asks for so many states of each recording instead of a few hundred.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Container
from pathlib import Path
from random import Random

import pytest

from staniel.journal.disk.fs import is_missing
from staniel.journal.kestrel.files import OWN_FOLDER
from staniel.journal.redo.log import NAMES as REDO_FILES
from staniel.queues.jobs.job import Job
from staniel.queues.jobs.states import COMPLETED, LEASED, NEW
from staniel.sim.disk.disk import Disk
from staniel.sim.world import LONG_AGO_MS, World, content
from tests.crash.recording import Recording
from tests.faults.preloaded import build
from tests.support.job_world import job_id
from tests.support.process import Server, running
from tests.support.wire import Wire

STATES = int(os.environ.get("STANIEL_POWER_CUTS", "300"))
SEED = int(os.environ.get("STANIEL_CRASH_SEED", "0")) or int.from_bytes(os.urandom(4), "big")
CUTS = 10  # states behind one event
REQUESTS = 250  # of each client
CHANGES = "WDETMUS"  # events behind which a power cut leaves something new
SAID_BYTES = 4000  # of the server's standard error, in a complaint
POLICIES = {"k1": "always", "k2": "always", "k3": "always", "stream": "always", "soon": "50ms", "later": "os"}
CONFIG = """
server.redo_log = "{log}"
[queues.stream]
journal_format = "libkestrel"
[queues.soon]
sync_journal = "50ms"
[queues.later]
sync_journal = "os"
[default]
sync_journal = "always"
default_journal_size = "16KB"
max_journal_size = "64KB"
"""
WORKERS = ("w1", "w2", "w3", "w4")
JOBS_A_WORKER = 1000
JOB_CONFIG = """
server.redo_log = "{log}"
[workq]
port = 0
cmdlog_sync = "always"
cmdlog_seg_size = 16384
cmdlog_clean_int = 100
"""

Step = tuple[str, int, bytes]
"""What is asked for, the number of the job, and the item or payload or result."""
Steps = dict[str, list[Step]]
"""What the one client of each queue asks, one after the other."""
Standings = dict[int, tuple[str, bytes, bytes]]
"""By number: where a job stands, its payload, its result."""
Judge = Callable[[Disk, Recording], None]
STANDINGS = {NEW: "waiting", LEASED: "leased", COMPLETED: "completed"}


# queues


def steps_of(queue: str, rng: Random) -> list[Step]:
    steps: list[Step] = []
    for number in range(REQUESTS):
        if rng.random() < 0.3:
            steps.append(("get", 0, b""))
        else:
            steps.append(("set", 0, b"%b-%d-" % (queue.encode(), number) + b"x" * rng.choice((1, 30, 500, 3000))))
    return steps


def ask(server: Server, queue: str, steps: list[Step]) -> None:
    with Wire(server.address) as wire:
        for verb, _, item in steps:
            if verb == "get":
                wire.get(queue)
            else:
                wire.say(b"set %b 0 0 %d\r\n%b\r\n" % (queue.encode(), len(item), item))
                assert wire.line() == b"STORED"


def held_by_count(steps: list[Step]) -> list[list[bytes]]:
    """What the queue holds after none of them, after the first, and so on."""
    held: list[bytes] = []
    after = [held]
    for verb, _, item in steps:
        held = [*held, item] if verb == "set" else held[1:]
        after.append(held)
    return after


def check(
    found: dict[str, list[bytes]], recording: Recording, after: dict[str, list[list[bytes]]], *, torn: Container[str]
) -> None:
    """`after`: of each queue, `held_by_count`. `torn`: queues of which, where no answer was promised, the end may
    be there in part.
    """
    for queue, by_count in after.items():
        answered, asked = recording.answers.get(queue, 0), recording.asked.get(queue, 0)
        least = answered if POLICIES[queue] == "always" else 0
        held = found.get(queue, [])
        if queue in torn and POLICIES[queue] != "always":
            continue
        possible = by_count[least : asked + 1]
        if queue in torn and held and held not in possible:
            held = held[:-1]  # the put that was not answered: Kestrel's format has no checksums
        assert held in possible, (
            f"{queue}: {answered} answered, {asked} asked, {len(held)} found\n  found    {shown(held)}\n"
            f"  possible {[shown(each) for each in possible[:2]]}"
        )


def unknown_to_the_log(disk: Disk) -> set[str]:
    """Return the queues that are synced later and whose journals the redo log does not name. It cannot see a new
    journal during its first sync (docs/durability.md).
    """
    paths = [f"s/{OWN_FOLDER}/{name}" for name in REDO_FILES]
    log = b"".join([disk.read(path, 0, disk.size(path)) for path in paths if not is_missing(disk, path)])
    return {queue for queue, policy in POLICIES.items() if policy != "always" and queue.encode() not in log}


def shown(items: list[bytes]) -> str:
    return " ".join([f"{item[:12]!r}:{len(item)}" for item in items])


# jobs


def job_steps_of(worker: str, rng: Random) -> list[Step]:
    """It begins with a look, which names its queue."""
    steps: list[Step] = [("lease", 0, b"")]
    numbers = iter(range(JOBS_A_WORKER * int(worker[1:]), JOBS_A_WORKER * (int(worker[1:]) + 1)))
    for at in range(REQUESTS):
        now = jobs_by_count(steps)[-1]
        standing = {name: [number for number in now if now[number][0] == name] for name in STANDINGS.values()}
        data = b"%b-%d-" % (worker.encode(), at) + b"x" * rng.choice((1, 30, 500, 2000))
        draw = rng.random()
        if draw < 0.2 and standing["waiting"]:
            steps.append(("lease", standing["waiting"][0], b""))
        elif draw < 0.4 and standing["leased"]:
            steps.append(("complete", rng.choice(standing["leased"]), data))
        elif draw < 0.6 and now:
            steps.append(("delete", rng.choice([*now]), b""))
        else:
            steps.append(("add", next(numbers), data))
    return steps


def jobs_by_count(steps: list[Step]) -> list[Standings]:
    """Where the jobs stand after none of them, after the first, and so on."""
    jobs: Standings = {}
    after = [jobs]
    for verb, number, data in steps:
        jobs = dict(jobs)
        if verb == "add":
            jobs[number] = "waiting", data, b""
        elif verb == "delete":
            del jobs[number]
        elif number:
            _, payload, result = jobs[number]
            jobs[number] = ("leased", payload, result) if verb == "lease" else ("completed", payload, data)
        after.append(jobs)
    return after


def work(server: Server, worker: str, steps: list[Step]) -> None:
    with Wire(server.workq_address) as wire:
        for verb, number, data in steps:
            id, name = job_id(number).encode(), worker.encode()
            if verb == "lease":
                payload = next((each[2] for each in steps if each[:2] == ("add", number)), b"")
                found = b"+OK 1\r\n%b %b 60000 %d\r\n%b\r\n" % (id, name, len(payload), payload)
                line, answer = b"lease %b 0\r\n" % name, found if number else b"-TIMEOUT\r\n"
            elif verb == "add":
                line, answer = b"add %b %b 60000 86400000 %d\r\n%b\r\n" % (id, name, len(data), data), b"+OK\r\n"
            elif verb == "complete":
                line, answer = b"complete %b %d\r\n%b\r\n" % (id, len(data), data), b"+OK\r\n"
            else:
                line, answer = b"delete %b\r\n" % id, b"+OK\r\n"
            heard = wire.say(line).hear(len(answer))
            assert heard == answer, f"{line[:80]!r}: {heard[:80]!r}"


def standing_of(job: Job) -> tuple[str, bytes, bytes]:
    return STANDINGS[job.state], job.payload, job.result


def check_jobs(found: Standings, recording: Recording, after: dict[str, list[Standings]]) -> None:
    """`after`: of each client, `jobs_by_count`. It waits for each answer: one of its requests at most is under way."""
    by_worker: dict[str, Standings] = {worker: {} for worker in after}
    for number, standing in found.items():
        by_worker[f"w{number // JOBS_A_WORKER}"][number] = standing
    for worker, own in by_worker.items():
        answered, asked = recording.answers.get(worker, 0), recording.asked.get(worker, 0)
        possible = after[worker][answered : asked + 1]
        unlike = sorted({*own.items()} ^ {*possible[0].items()})
        assert own in possible, f"{worker}: {answered} answered, {asked} asked, differs in " + ", ".join(
            [f"{number} {standing} {len(payload)} {len(result)}" for number, (standing, payload, result) in unlike]
        )


# recording, and cutting the power


def record(folder: Path, config: str, all_steps: Steps, client: Callable[[Server, str, list[Step]], None]) -> Recording:
    """A server that is asked all that, and killed. Fails if a client was not answered as it should be."""
    recorded, spool = folder / "recorded", folder / "spool"
    environment = {**build("recorder.c", folder), "RECORD_TO": str(recorded), "RECORD_ROOT": str(spool)}
    wrapper = ("env", *[f"{name}={value}" for name, value in environment.items()])
    wrong: list[str] = []

    def run(queue: str, steps: list[Step]) -> None:
        try:
            client(server, queue, steps)
        except (OSError, AssertionError) as failure:
            wrong.append(f"{queue}: {failure!r}")

    with running(folder, config=config, wrapper=wrapper) as server:
        threads = [threading.Thread(target=run, args=each) for each in all_steps.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        server.kill()
        assert not wrong, (
            f"seed {SEED}, clients were not answered: {wrong}\nthe server said {server.stderr[-SAID_BYTES:]}"
        )
    return Recording(recorded, str(spool))


def disk_of(files: dict[str, bytes], root: str) -> Disk:
    disk = Disk()
    for folder in ["s", *sorted({os.path.dirname(path).replace(root, "s", 1) for path in files})]:
        disk.make_folder(folder)
    for path, data in files.items():
        file = disk.append(path.replace(root, "s", 1))
        file.write(data)
        file.sync()
        file.close()
    return disk


def cut(recording: Recording, folder: Path, config: str, rng: Random, judge: Judge) -> None:
    """Lose the power behind some events, in CUTS ways each, and have a start on what is left judged."""
    letters = Counter(Recording(recording.path, recording.root).events())
    total = sum(letters[letter] for letter in CHANGES)
    assert total > 1000, f"seed {SEED}: {letters}"
    chosen = {*rng.sample(range(total), min(STATES // CUTS, total))}
    at = -1
    for letter in recording.events():
        if letter not in CHANGES:
            continue
        at += 1
        for state in range(-(-STATES // len(chosen)) if at in chosen else 0):
            files = recording.left(rng)
            try:
                judge(disk_of(files, recording.root), recording)
            except Exception as wrong:  # whatever it is, it needs the state
                where = f"seed {SEED}, state {state} behind event {at} of {total} ({letter})"
                raise AssertionError(f"{where}: {wrong!r}\n{described(files, recording, folder, config)}") from wrong


def described(files: dict[str, bytes], recording: Recording, folder: Path, config: str) -> str:
    """What is needed to see it again: the files that were left, what a start on them says, what was said before."""
    kept = folder / "left"
    for path, data in files.items():
        to = kept / os.path.relpath(path, recording.root)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(data)
    lines = [f"{os.path.relpath(path, recording.root)}: {len(data)} bytes" for path, data in sorted(files.items())]
    lines.append(f"answered {recording.answers}, asked {recording.asked}")
    try:
        world = World(config, disk_of(files, recording.root), LONG_AGO_MS)
        lines += [f"a start says {event} {world.reported(event)}" for event in dict.fromkeys(world.events)]
    except Exception as failure:
        lines.append(f"a start fails: {failure!r}")
    said = folder / "stderr"
    lines.append(f"the recorded server said {said.read_text(errors='replace')[-SAID_BYTES:] if said.exists() else ''}")
    return "\n".join([*lines, f"the files are in {kept}, the recording is {recording.path}"])


@pytest.mark.parametrize("log", ["256KB", "none"])
def test_what_was_answered_is_there_and_whole(tmp_path: Path, log: str) -> None:
    rng = Random(SEED)
    all_steps, config = {queue: steps_of(queue, rng) for queue in POLICIES}, CONFIG.format(log=log)
    after = {queue: held_by_count(steps) for queue, steps in all_steps.items()}
    recording = record(tmp_path, config, all_steps, ask)

    def judge(disk: Disk, recording: Recording) -> None:
        torn = {*POLICIES} if log == "none" else unknown_to_the_log(disk)
        check(content(disk), recording, after, torn=torn)

    cut(recording, tmp_path, config, rng, judge)


@pytest.mark.parametrize("log", ["256KB", "none"])
def test_jobs_that_were_answered_for_are_where_the_answers_left_them(tmp_path: Path, log: str) -> None:
    rng = Random(SEED)
    all_steps, config = {worker: job_steps_of(worker, rng) for worker in WORKERS}, JOB_CONFIG.format(log=log)
    after = {worker: jobs_by_count(steps) for worker, steps in all_steps.items()}
    recording = record(tmp_path, config, all_steps, work)

    def judge(disk: Disk, recording: Recording) -> None:
        workq = World(JOB_CONFIG.format(log="none"), disk, LONG_AGO_MS).broker.workq
        assert not workq.trouble, workq.trouble
        check_jobs({int(id[:4].hex(), 16): standing_of(job) for id, job in workq.jobs.by_id.items()}, recording, after)

    cut(recording, tmp_path, config, rng, judge)
