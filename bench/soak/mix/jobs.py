"""The clients of jobs in a shift. Their knowledge, and what must therefore be true, is in the book of the kill loop."""

from __future__ import annotations

from random import Random
from time import monotonic

import trio

from staniel.bench.soak.clients import ServerBroken
from staniel.bench.soak.jobs import Book, Known, job_id
from staniel.bench.soak.mix.clients import TLS_SHARE, Shift
from staniel.bench.soak.mix.stage import Stage
from staniel.bench.soak.mix.wires import ConnectionGone, Link

PRODUCERS, WORKERS = 2, 3
WAITING_MAX = 300
LEASE_WAIT_MS = 300
TTR_MS = TTL_MS = 3_600_000  # longer than a shift: a lease ends because its holder ends it, or at the next rest
PAYLOAD_BYTES_MAX = 2000
ASKED_AT_ONCE = 64


class JobClient:
    """A client that adds, or leases and ends jobs, on one connection after another."""

    def __init__(self, shift: Shift, *, adds: bool) -> None:
        self.shift = shift
        self.adds = adds
        self.random = Random(shift.random.getrandbits(64))
        self.is_secure = self.random.random() < TLS_SHARE

    def __repr__(self) -> str:
        return f"JobClient that {'adds' if self.adds else 'works'}{' under TLS' * self.is_secure}"

    async def run(self) -> None:
        shift = self.shift
        try:
            while not (shift.is_over or shift.is_dying):
                stage = shift.stage
                address = stage.address("workq", is_secure=self.is_secure)
                link = await Link.open(address, stage.trust if self.is_secure else None)
                shift.counts[f"connections in workq{' under TLS' * self.is_secure}"] += 1
                try:
                    await self._converse(link)
                finally:
                    link.close()
        except ConnectionGone as gone:
            if not shift.is_dying:
                shift.blame(f"{self}: the server hung up: {gone}")
        except (ServerBroken, ValueError, IndexError, KeyError) as error:
            shift.blame(f"{self}: {error!r}")

    async def _converse(self, link: Link) -> None:
        """Work until the shift is over, or until a client disconnects before."""
        say = self._add if self.adds else self._work
        while not (self.shift.is_over or self.shift.is_dying):
            if not await say(link):
                return

    async def _add(self, link: Link) -> bool:
        """Add a few jobs with one send. Return False to disconnect."""
        shift, book, random = self.shift, self.shift.book, self.random
        if not shift.is_producing or book.waiting > WAITING_MAX:
            await trio.sleep(0.05)
            return True
        numbers = [next(book.numbers) for _ in range(random.randint(1, 4))]
        text = b""
        for number in numbers:
            book.jobs[number] = Known.ADDING
            payload = b"p" * random.randrange(PAYLOAD_BYTES_MAX)
            text += b"add %b q %d %d %d\r\n%b\r\n" % (job_id(number), TTR_MS, TTL_MS, len(payload), payload)
        began_s = monotonic()
        await link.send(text)
        book.waiting += len(numbers)
        for number in numbers:
            answer = await link.line()
            if answer != b"+OK":
                shift.refused(self, answer)
                book.jobs[number] = Known.DELETED
                book.waiting -= 1
            elif book.jobs[number] is Known.ADDING:  # a worker may have leased it before this reply was read
                book.jobs[number] = Known.ADDED
            shift.counts["put in workq"] += answer == b"+OK"
        shift.puts_ms.append((monotonic() - began_s) * 1000)
        await shift.pause(random, len(numbers))
        return True

    async def _work(self, link: Link) -> bool:
        """Lease a job and end it. Return False to disconnect."""
        shift, book = self.shift, self.shift.book
        if not shift.is_taking:
            await trio.sleep(0.05)
            return True
        book.leases_unanswered += 1
        await link.send(b"lease q %d\r\n" % LEASE_WAIT_MS)
        answer = await link.line()
        if answer == b"-TIMEOUT":
            book.leases_unanswered -= 1
            return True
        _must(answer, b"+OK 1")
        head = (await link.line()).split(b" ")
        await link.exactly(int(head[3]) + 2)
        book.leases_unanswered -= 1
        book.waiting -= 1
        number = int(head[0][:8], 16)
        if book.jobs.get(number) not in (Known.ADDING, Known.ADDED):
            book.twice.append(number)
        book.jobs[number] = Known.LEASED
        if shift.is_dying:
            return False
        return await self._end(link, number)

    async def _end(self, link: Link, number: int) -> bool:
        shift, choice = self.shift, self.random.randrange(60)
        if choice == 0:
            link.reset()
            shift.counts["vanished with a job in hand"] += 1
            return False
        if choice < 12:
            await self._send_command(link, number, b"complete %b 4\r\ndone\r\n", Known.COMPLETING, Known.COMPLETED)
        elif choice < 20:
            await self._send_command(link, number, b"fail %b 3\r\nbad\r\n", Known.FAILING, Known.FAILED)
        if choice % 2 and not shift.is_dying:
            await self._send_command(link, number, b"delete %b\r\n", Known.DELETING, Known.DELETED)
        return True

    async def _send_command(self, link: Link, number: int, command: bytes, before: Known, after: Known) -> None:
        shift, jobs = self.shift, self.shift.book.jobs
        was, jobs[number] = jobs[number], before
        if before is Known.DELETING and was in (Known.COMPLETED, Known.FAILED):
            jobs[number] = Known.ENDING
        began_s = monotonic()
        await link.send(command % job_id(number))
        answer = await link.line()
        if answer != b"+OK":
            shift.refused(self, answer)
            jobs[number] = was
            return
        shift.closes_ms.append((monotonic() - began_s) * 1000)
        jobs[number] = after
        shift.counts["confirmed in workq"] += 1


def job_clients(shift: Shift) -> list[JobClient]:
    return [JobClient(shift, adds=number < PRODUCERS) for number in range(PRODUCERS + WORKERS)]


def _must(answer: bytes, expected: bytes) -> None:
    if answer != expected:
        raise ServerBroken(f"{answer!r} instead of {expected!r}")


async def look_at_jobs(stage: Stage, book: Book) -> dict[int, str | None]:
    """Return the server's state of every known job."""
    link = await Link.open(stage.address("workq", is_secure=False), None)
    found: dict[int, str | None] = {}
    numbers = list(book.jobs)
    try:
        for at in range(0, len(numbers), ASKED_AT_ONCE):
            some = numbers[at : at + ASKED_AT_ONCE]
            await link.send(b"".join(b"inspect job %b\r\n" % job_id(number) for number in some))
            for number in some:
                found[number] = await _state(link)
    finally:
        link.close()
    return found


async def delete_jobs(stage: Stage, book: Book) -> None:
    """Delete all remaining jobs, so that a rest begins with none."""
    link = await Link.open(stage.address("workq", is_secure=False), None)
    try:
        for number, known in list(book.jobs.items()):
            if known is not Known.DELETED:
                await link.send(b"delete %b\r\n" % job_id(number))
                _must(await link.line(), b"+OK")
            del book.jobs[number]
    finally:
        link.close()
    book.waiting = 0


async def _state(link: Link) -> str | None:
    if await link.line() == b"-NOT-FOUND":
        return None
    await link.line()
    keys = dict([(await link.line()).split(b" ", 1) for _ in range(4)])
    await link.exactly(len("payload ") + int(keys[b"payload-size"]) + 2)
    keys |= dict([(await link.line()).split(b" ", 1) for _ in range(7)])
    return keys[b"state"].decode()
