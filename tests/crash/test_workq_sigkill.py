"""SIGKILL under load, again and again, for jobs: what was answered is so after the restart, and no job is had twice."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from enum import Enum
from itertools import count
from pathlib import Path
from random import Random

import pytest

from tests.crash.dying_wire import DyingWire
from tests.server.process import Server, running, until
from tests.sim.job_world import job_id

KILLS = 6
OPERATIONS = 500
SEED = int(os.environ.get("STANIEL_CRASH_SEED", "0")) or int.from_bytes(os.urandom(4), "big")


class Known(Enum):
    """What the clients know of a job. The values are how `inspect` may show it; None: not there."""

    ADDING = ("0", None)
    ADDED = ("0",)
    LEASED = ("4",)
    COMPLETING = ("4", "1")
    COMPLETED = ("1",)
    DELETING = ("0", "4", "1", None)
    DELETED = (None,)


class Book:
    """Every job of all clients. Each is in the hands of one thread at a time, as the leases promise."""

    def __init__(self) -> None:
        self.jobs: dict[int, Known] = {}
        self.numbers = count(1)
        self.twice: list[int] = []
        self.done = 0
        self.leases_unanswered = 0


class Client(threading.Thread):
    """Adds, leases, completes and deletes until the server is gone."""

    def __init__(self, server: Server, book: Book, random: Random, adds: bool) -> None:
        super().__init__(daemon=True)
        self.server = server
        self.book = book
        self.random = random
        self.adds = adds
        self.wrong = ""

    def run(self) -> None:
        try:
            with DyingWire(self.server.workq_address) as wire:
                while True:
                    (self.add if self.adds else self.work)(wire)
                    self.book.done += 1
        except OSError:
            pass
        except Exception as error:
            self.wrong = repr(error)

    def add(self, wire: DyingWire) -> None:
        """A few jobs with one send."""
        numbers = [next(self.book.numbers) for _ in range(self.random.randint(1, 8))]
        text = b""
        for number in numbers:
            self.book.jobs[number] = Known.ADDING
            payload = b"p" * self.random.randrange(300)
            text += b"add %b q 3600000 3600000 %d\r\n%b\r\n" % (job_id(number).encode(), len(payload), payload)
        wire.say(text)
        for number in numbers:
            assert wire.line() == b"+OK"
            if self.book.jobs[number] is Known.ADDING:  # a worker may have had it before we heard of that
                self.book.jobs[number] = Known.ADDED

    def work(self, wire: DyingWire) -> None:
        self.book.leases_unanswered += 1
        wire.say(b"lease q 50\r\n")
        answer = wire.line()
        if answer == b"-TIMEOUT":
            self.book.leases_unanswered -= 1
            return
        assert answer == b"+OK 1", answer
        head = wire.line().split(b" ")
        wire.hear(int(head[3]) + 2)
        self.book.leases_unanswered -= 1
        number = int(head[0][:8], 16)
        if self.book.jobs[number] not in (Known.ADDING, Known.ADDED):
            self.book.twice.append(number)
        self.book.jobs[number] = Known.LEASED
        choice = self.random.randrange(4)
        if choice == 0:
            self.end(wire, number, b"complete %b 4\r\ndone\r\n", Known.COMPLETING, Known.COMPLETED)
        elif choice > 1:
            self.end(wire, number, b"delete %b\r\n", Known.DELETING, Known.DELETED)

    def end(self, wire: DyingWire, number: int, command: bytes, before: Known, after: Known) -> None:
        self.book.jobs[number] = before
        wire.say(command % job_id(number).encode())
        assert wire.line() == b"+OK"
        self.book.jobs[number] = after


def states(server: Server, book: Book) -> dict[int, str | None]:
    """What the server says of every job."""
    found: dict[int, str | None] = {}
    with DyingWire(server.workq_address) as wire:
        for number in book.jobs:
            wire.say(b"inspect job %b\r\n" % job_id(number).encode())
            if wire.line() == b"-NOT-FOUND":
                found[number] = None
                continue
            wire.line()
            keys = dict(wire.line().split(b" ", 1) for _ in range(4))
            wire.hear(len("payload ") + int(keys[b"payload-size"]) + 2)
            keys |= dict(wire.line().split(b" ", 1) for _ in range(7))
            found[number] = keys[b"state"].decode()
    return found


def judge(book: Book, found: dict[int, str | None]) -> list[str]:
    """What must not be. Each lease that was not answered may have taken one job that nobody saw."""
    wrong = [f"job {number} was leased twice" for number in book.twice]
    unseen = 0
    for number, state in found.items():
        known = book.jobs[number]
        if state in known.value:
            continue
        if state == "4" and known in (Known.ADDING, Known.ADDED):
            unseen += 1
        else:
            wrong.append(f"job {number} is {state}, known as {known.name}")
    if unseen > book.leases_unanswered:
        wrong.append(f"{unseen} jobs are leased by nobody, {book.leases_unanswered} leases were not answered")
    return wrong


def settle(book: Book, found: dict[int, str | None]) -> None:
    """After a restart nothing is in doubt any more."""
    sure = {None: Known.DELETED, "0": Known.ADDED, "1": Known.COMPLETED, "4": Known.LEASED}
    book.jobs = {number: sure[state] for number, state in found.items() if state is not None}
    book.leases_unanswered = 0


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["always", "interval", "os"])
def test_a_server_killed_under_load_keeps_its_jobs(
    tmp_path: Path, sync: str, closing_line: Callable[[str], None]
) -> None:
    random, book = Random(SEED), Book()
    config = f'[workq]\nport = 0\ncmdlog_sync = "{sync}"\ncmdlog_seg_size = 20000\ncmdlog_clean_int = 60\n'
    cleaned = 0
    with running(tmp_path, config=config) as server:
        for kill in range(KILLS):
            clients = [Client(server, book, Random(random.random()), adds=each < 2) for each in range(6)]
            goal = book.done + random.randint(OPERATIONS // 2, OPERATIONS)
            for client in clients:
                client.start()
            busy = until(lambda goal=goal: book.done >= goal, 60)  # type: ignore[misc]
            server.signal(signal.SIGKILL)
            assert server.wait() == -signal.SIGKILL
            for client in clients:
                client.join(30)
                assert not client.is_alive() and not client.wrong, client.wrong
            assert busy, "too little was done before the kill"
            server.start()
            found = states(server, book)
            assert judge(book, found) == [], f"seed {SEED}, kill {kill}, {sync}"
            settle(book, found)
        cleaned = server.stderr.count("cmdlog.cleaned")
    assert "cmdlog.damaged" not in server.stderr or sync != "always"
    closing_line(f"crash: workq {sync}: {KILLS} kills amid {book.done} operations, {cleaned} cleanings, seed {SEED}")


def test_the_judge_sees_what_is_wrong() -> None:
    book = Book()
    book.jobs = {1: Known.ADDED, 2: Known.DELETED, 3: Known.COMPLETED, 4: Known.LEASED, 5: Known.ADDING}
    assert judge(book, {1: "0", 2: None, 3: "1", 4: "4", 5: None}) == []
    assert judge(book, {1: "4", 2: None, 3: "1", 4: "4", 5: "0"}) != []
    for number, state in ((1, None), (2, "0"), (3, "4"), (4, "0"), (4, None)):
        assert judge(book, {number: state}) != []
