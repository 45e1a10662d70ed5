"""The jobs of a server that is killed under load and started again: the clients, their knowledge, and the judge.

A cycle is that of `loop.py`: clients work; the server is killed in the middle of it; sometimes it is killed again while
it recovers; it starts, and is asked for every job that a client knows.
"""

from __future__ import annotations

import re
import signal
import socket
import threading
import time
from enum import Enum
from itertools import count
from pathlib import Path
from random import Random

from staniel.bench.soak.clients import ServerBroken
from staniel.bench.soak.totals import END_SECONDS_MAX, Cycle
from staniel.bench.soak.victim import Victim

WORKERS, PRODUCERS = 6, 3
LIFE_OPERATIONS = (200, 700)
WORK_SECONDS_MAX = 60.0
WAITING_MAX = 300
KILL_AGAIN_ONE_IN = 6
POLICIES = ("always", "interval", "os")
CONFIG = """
[server]
spool = "spool"

[workq]
port = 0
cmdlog_sync = "{sync}"
cmdlog_seg_size = {segment}
cmdlog_clean_int = 60
"""
SEGMENT = re.compile(r"(\d{9})\.log")


class Known(Enum):
    """The clients' knowledge of a job. The values are the states that `inspect` may show; None: no such job."""

    ADDING = ("0", None)
    ADDED = ("0",)
    LEASED = ("4",)
    COMPLETING = ("4", "1")
    COMPLETED = ("1",)
    FAILING = ("4", "2")
    FAILED = ("2",)
    DELETING = ("0", "4", "1", None)
    ENDING = ("1", "2", None)  # a delete of a job that has a result
    DELETED = (None,)


class Book:
    """The jobs of all clients. Each job is held by one thread at a time, as the leases promise."""

    def __init__(self) -> None:
        self.jobs: dict[int, Known] = {}
        self.numbers = count(1)
        self.twice: list[int] = []
        self.waiting = 0  # added but not leased; producers rest while there are many
        self.done = 0
        self.leases_unanswered = 0

    def judge(self, found: dict[int, str | None]) -> list[str]:
        """Return what is wrong. Each lease without a reply may have taken one job that no client saw."""
        wrong = [f"job {number} was leased twice" for number in self.twice]
        unseen = 0
        for number, state in found.items():
            known = self.jobs[number]
            if state in known.value:
                continue
            if state == "4" and known in (Known.ADDING, Known.ADDED):
                unseen += 1
            else:
                wrong.append(f"job {number} is {state}, known as {known.name}")
        if unseen > self.leases_unanswered:
            wrong.append(
                f"{unseen} jobs are leased without a holder, {self.leases_unanswered} leases were not answered"
            )
        return wrong

    def accept_recovered(self, found: dict[int, str | None]) -> None:
        """Take the state after a restart as certain."""
        sure = {None: Known.DELETED, "0": Known.ADDED, "1": Known.COMPLETED, "2": Known.FAILED, "4": Known.LEASED}
        self.jobs = {number: sure[state] for number, state in found.items() if state is not None}
        self.leases_unanswered = 0
        self.waiting = sum(known is Known.ADDED for known in self.jobs.values())


class Link:
    """A connection. The end of the stream is an OSError, also in the middle of a reply."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._sock = socket.create_connection(address, 30)
        self._heard = self._sock.makefile("rb")

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *wrong: object) -> None:
        self._heard.close()
        self._sock.close()

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def line(self) -> bytes:
        return self._whole(self._heard.readline(), b"\r\n")[:-2]

    def data(self, size: int) -> bytes:
        found = self._heard.read(size + 2)
        return self._whole(found if len(found) == size + 2 else b"", b"\r\n")[:-2]

    def _whole(self, found: bytes, end: bytes) -> bytes:
        if not found.endswith(end):
            raise ConnectionResetError("the server is gone")
        return found


class Client(threading.Thread):
    """A client that adds, or leases and ends jobs, until the server is gone. `wrong`: a reply that no correct server
    sends.
    """

    def __init__(self, address: tuple[str, int], book: Book, random: Random, *, adds: bool) -> None:
        super().__init__(daemon=True)
        self.address = address
        self.book = book
        self.random = random
        self.adds = adds
        self.wrong = ""

    def run(self) -> None:
        try:
            with Link(self.address) as link:
                while True:
                    (self._add if self.adds else self._work)(link)
                    self.book.done += 1
        except OSError:
            pass
        except Exception as error:
            self.wrong = repr(error)

    def _add(self, link: Link) -> None:
        """Add a few jobs with one send."""
        jobs, random = self.book.jobs, self.random
        if self.book.waiting > WAITING_MAX:
            link.send(b"lease nothing 20\r\n")
            self._must(link.line(), b"-TIMEOUT")
            return
        numbers = [next(self.book.numbers) for _ in range(random.randint(1, 8))]
        text = b""
        for number in numbers:
            jobs[number] = Known.ADDING
            payload = b"p" * random.randrange(300)
            text += b"add %b q 3600000 3600000 %d\r\n%b\r\n" % (job_id(number), len(payload), payload)
        link.send(text)
        self.book.waiting += len(numbers)
        for number in numbers:
            self._must(link.line(), b"+OK")
            if jobs[number] is Known.ADDING:  # a worker may have leased it before this reply was read
                jobs[number] = Known.ADDED

    def _work(self, link: Link) -> None:
        book = self.book
        book.leases_unanswered += 1
        link.send(b"lease q 50\r\n")
        answer = link.line()
        if answer == b"-TIMEOUT":
            book.leases_unanswered -= 1
            return
        self._must(answer, b"+OK 1")
        head = link.line().split(b" ")
        link.data(int(head[3]))
        book.leases_unanswered -= 1
        book.waiting -= 1
        number = int(head[0][:8], 16)
        if book.jobs[number] not in (Known.ADDING, Known.ADDED):
            book.twice.append(number)
        book.jobs[number] = Known.LEASED
        choice = self.random.randrange(12)
        if choice == 0:
            self._end(link, number, b"complete %b 4\r\ndone\r\n", Known.COMPLETING, Known.COMPLETED)
        elif choice == 1:
            self._end(link, number, b"fail %b 3\r\nbad\r\n", Known.FAILING, Known.FAILED)
        elif choice > 2:
            self._end(link, number, b"delete %b\r\n", Known.DELETING, Known.DELETED)

    def _end(self, link: Link, number: int, command: bytes, before: Known, after: Known) -> None:
        self.book.jobs[number] = before
        link.send(command % job_id(number))
        self._must(link.line(), b"+OK")
        self.book.jobs[number] = after

    def _must(self, answer: bytes, expected: bytes) -> None:
        if answer != expected:
            raise ServerBroken(f"{answer!r} instead of {expected!r}")


class JobLoop:
    """A command log over all its deaths. `sync` is its policy; "mixed": another one each time."""

    def __init__(self, folder: Path, seed: int, sync: str = "mixed", death: signal.Signals = signal.SIGKILL) -> None:
        self.random = Random(seed)
        self.sync = sync
        self.death = death
        self.number = 0
        self.book = Book()
        self.victim = Victim(folder, self.config())
        self._cleanings = 0

    def config(self) -> str:
        policy = self.random.choice(POLICIES) if self.sync == "mixed" else self.sync
        return CONFIG.format(sync=policy, segment=self.random.choice((5000, 20000)))

    def cycle(self) -> Cycle:
        """Work, die, recover, and be checked. Raises ServerBroken or StartFailed."""
        self.number += 1
        if self.number == 1:
            self.victim.start()
        segment = self.segments()
        operations, seconds = self.work()
        end_s = self.victim.end_s
        kills = 1 + self.recover()
        found = self.read_jobs()
        wrong = self.book.judge(found)
        if end_s > END_SECONDS_MAX:
            wrong.append(f"it ended after {end_s:.2f} s")
        if "Traceback" in self.victim.said:
            wrong.append(self.victim.said[-2000:])
        self.book.accept_recovered(found)
        counted = {"journal_rotations": self.segments() - segment, "journal_rewrites": self.cleanings()}
        there = sum(state is not None for state in found.values())
        ready_s, recovery_s = self.victim.ready_s, self.victim.recovery_s
        return Cycle(operations, seconds, ready_s, recovery_s, there, counted, kills, 0, wrong, end_s)

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.victim.ports[-1]

    def work(self) -> tuple[int, float]:
        """Let clients work, and end the server meanwhile. Return (operations, seconds). Raises ServerBroken."""
        book, random = self.book, self.random
        began, began_s = book.done, time.monotonic()
        goal = began + random.randint(*LIFE_OPERATIONS)
        clients = [
            Client(self.address, book, Random(random.getrandbits(64)), adds=number < PRODUCERS)
            for number in range(PRODUCERS + WORKERS)
        ]
        for client in clients:
            client.start()
        while book.done < goal and time.monotonic() < began_s + WORK_SECONDS_MAX:
            time.sleep(0.005)
        done, seconds = book.done - began, time.monotonic() - began_s
        code = self.victim.end(self.death)
        for client in clients:
            client.join(WORK_SECONDS_MAX)
            if client.is_alive() or client.wrong:
                raise ServerBroken(f"a client says: {client.wrong or 'nothing more'}")
        if done < LIFE_OPERATIONS[0]:
            raise ServerBroken(f"only {done} operations in {seconds:.0f} s")
        if code != (-self.death if self.death is signal.SIGKILL else 0):
            raise ServerBroken(f"exit code {code}: {self.victim.said[-2000:]}")
        return done, seconds

    def recover(self) -> int:
        """Start again, sometimes after another kill on the way. Return the number of kills."""
        kills = 0
        if not self.random.randrange(KILL_AGAIN_ONE_IN):
            self.victim.spawn()
            time.sleep(self.random.uniform(0.2, 1) * self.victim.ready_s)
            self.victim.end(signal.SIGKILL)
            kills = 1
        self.victim.configure(self.config())
        self.victim.start()
        return kills

    def read_jobs(self) -> dict[int, str | None]:
        """Return the server's state of every known job."""
        with Link(self.address) as link:
            return {number: _state(link, number) for number in self.book.jobs}

    def segments(self) -> int:
        """Return the number of the newest segment; a new one counts as a rotation, a cleaning as a rewrite."""
        folder = self.victim.folder / "spool" / ".staniel" / "cmdlog"
        numbers = [int(found[1]) for path in folder.iterdir() if (found := SEGMENT.fullmatch(path.name))]
        return max(numbers, default=0)

    def cleanings(self) -> int:
        """Return how many rounds have freed something since the last call."""
        before, self._cleanings = self._cleanings, self.victim.said.count("cmdlog.cleaned")
        return self._cleanings - before


def _state(link: Link, number: int) -> str | None:
    link.send(b"inspect job %b\r\n" % job_id(number))
    if link.line() == b"-NOT-FOUND":
        return None
    link.line()
    keys = dict(link.line().split(b" ", 1) for _ in range(4))
    link.data(len("payload ") + int(keys[b"payload-size"]))
    keys |= dict(link.line().split(b" ", 1) for _ in range(7))
    return keys[b"state"].decode()


def job_id(number: int) -> bytes:
    return f"{number:08x}-0000-4000-8000-{number:012x}".encode()
