"""The clients of one shift: they work on one server between two rests, or until it dies."""

from __future__ import annotations

from collections import Counter
from itertools import count
from random import Random
from time import monotonic

import trio

from staniel.bench.soak.clients import ServerBroken
from staniel.bench.soak.jobs import Book
from staniel.bench.soak.ledger import Fate, Ledger, item_for, key_of
from staniel.bench.soak.mix.stage import FAMILIES, Stage
from staniel.bench.soak.mix.wires import BRIEF_LEASE_MS, SPEAKERS, ConnectionGone, Link, Speaker

BATCH_MAX = 8
TAKEN_MAX = 5
ITEM_SIZES = (10, 100, 600, 6000)
HOLDS_MAX, FLOOD_MAX = 300, 3000  # items in a family, beyond which its producers rest
WAIT_MS = 400
DRAIN_SECONDS_MAX = 20.0
ONE_VANISHES_IN = 60
TLS_SHARE = 0.4


class Shift:
    """A shift. `pace_s`: how long a producer rests after each item. `wrong` lists what a correct server cannot have
    done.
    """

    serial = count(1)

    def __init__(self, stage: Stage, ledgers: list[Ledger], book: Book, counts: Counter[str], pace_s: float) -> None:
        self.stage = stage
        self.ledgers = ledgers
        self.book = book
        self.counts = counts
        self.pace_s = pace_s
        self.random = Random(stage.random.getrandbits(64))
        self.is_producing = True
        self.is_taking = True
        self.is_over = False  # finish the present work, and disconnect
        self.is_dying = False  # the server is killed or stopped: read, and send nothing more
        self.holds_max = HOLDS_MAX
        self.full_until_s = 0.0
        self.wrong: list[str] = []
        self.broke = trio.Event()  # something is wrong
        self.puts_ended = trio.Event()
        self.puts_ms: list[float] = []
        self.closes_ms: list[float] = []

    def blame(self, wrong: str) -> None:
        self.wrong.append(wrong)
        self.broke.set()

    def refused(self, who: object, answer: bytes) -> None:
        """Note that a put was not stored. Raises ServerBroken unless the disk is full, or was just now."""
        if monotonic() > self.full_until_s:
            raise ServerBroken(f"{who}: {answer!r}, and the disk is not full")
        self.counts["refused for a full disk"] += 1

    async def pause(self, random: Random, count: int) -> None:
        """Wait after a put of `count` items, but not beyond the end of the puts."""
        with trio.move_on_after(random.expovariate(1 / (self.pace_s * count))):
            await self.puts_ended.wait()

    def die(self) -> None:
        """Have the clients read, and send nothing more."""
        self.is_dying = True
        self.puts_ended.set()

    async def drained(self) -> None:
        """Stop puts. Return when the stored items have been taken, or after a time in which they should have been."""
        self.is_producing = False
        self.puts_ended.set()
        self.is_taking = True
        with trio.move_on_after(DRAIN_SECONDS_MAX):
            while True:
                if not self.book.waiting and not any(_holds(ledger) for ledger in self.ledgers):
                    return
                await trio.sleep(0.1)


def _holds(ledger: Ledger) -> bool:
    return any(entry.fate is Fate.STORED for entry in ledger.entries.values())


def hired(shift: Shift) -> list[Client]:
    """Hire two takers for each queue and, if it is the first of its family and no child, one or two producers."""
    found: list[Client] = []
    for ledger in shift.ledgers:
        for queue in ledger.queues:
            found += [Consumer(shift, queue, [ledger]) for _ in range(2)]
        source = ledger.queues[0]
        if "+" not in source:
            family = [ledger for ledger in shift.ledgers if ledger.queues[0].partition("+")[0] == source]
            found += [Producer(shift, source, family) for _ in range(shift.random.randint(1, 2))]
    return found


class Client:
    """A client that uses one protocol with one queue, on one connection after another."""

    def __init__(self, shift: Shift, queue: str, ledgers: list[Ledger]) -> None:
        self.shift = shift
        self.queue = queue
        self.ledgers = ledgers
        self.random = Random(shift.random.getrandbits(64))
        self.speaks = self.random.choice(SPEAKERS)
        self.is_secure = self.random.random() < TLS_SHARE
        self.number = next(Shift.serial)

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {self.queue} in {self.speaks.name}{' under TLS' * self.is_secure}"

    async def run(self) -> None:
        shift = self.shift
        try:
            while not (shift.is_over or shift.is_dying):
                await self.connected()
        except ConnectionGone as gone:
            if not shift.is_dying:
                shift.blame(f"{self}: the server hung up: {gone}")
        except ServerBroken as broken:
            shift.blame(f"{self}: {broken}")
        except (ValueError, IndexError, KeyError) as error:
            shift.blame(f"{self}: an answer that is none: {error!r}")

    async def connected(self) -> None:
        """Run one connection."""
        stage = self.shift.stage
        address = stage.address(self.speaks.name, is_secure=self.is_secure)
        link = await Link.open(address, stage.trust if self.is_secure else None)
        self.shift.counts[f"connections in {self.speaks.name}{' under TLS' * self.is_secure}"] += 1
        try:
            await self.work(self.speaks(link, self.queue))
        finally:
            link.close()

    async def work(self, speaker: Speaker) -> None:
        """Work until the shift is over; returning earlier disconnects."""
        raise NotImplementedError


class Producer(Client):
    """A client that puts numbered items, some with one send. Sometimes it vanishes in the middle of a put."""

    sent = 0

    async def work(self, speaker: Speaker) -> None:
        shift = self.shift
        while not (shift.is_over or shift.is_dying):
            if not shift.is_producing or any(ledger.holds >= shift.holds_max for ledger in self.ledgers):
                await trio.sleep(0.05)
                continue
            items, keys = self._made()
            if not self.random.randrange(ONE_VANISHES_IN):
                data = speaker.head(items)
                await speaker.link.send(data[: self.random.randrange(len(data))])
                speaker.link.reset()
                shift.counts["vanished in the middle of a put"] += 1
                return
            began_s = monotonic()
            answers = await speaker.put(items)
            shift.puts_ms.append((monotonic() - began_s) * 1000)
            for key, answer in zip(keys, answers, strict=True):
                for ledger in self.ledgers:
                    ledger.refused(key) if answer else ledger.stored(key)
                shift.counts[f"put in {speaker.name}"] += not answer
            if any(answers):
                shift.refused(self, next(answer for answer in answers if answer))
                await trio.sleep(0.1)
            await shift.pause(self.random, len(items))

    def _made(self) -> tuple[list[bytes], list[bytes]]:
        """Make items and their keys, and note them in the ledgers."""
        numbers = range(self.sent, self.sent + self.random.randint(1, BATCH_MAX))
        self.sent = numbers.stop
        keys = [b"%d-%d" % (self.number, number) for number in numbers]
        for key in keys:
            for ledger in self.ledgers:
                ledger.sent(key)
        return [item_for(key, self.random.randrange(self.random.choice(ITEM_SIZES))) for key in keys], keys


class Consumer(Client):
    """A client that takes items, for good or as an open read that it confirms, aborts, or leaves behind as it
    vanishes.
    """

    async def work(self, speaker: Speaker) -> None:
        shift, [ledger] = self.shift, self.ledgers
        order: dict[bytes, int] = {}
        only_pulls = speaker.can_pull and not self.random.randrange(4)
        while not (shift.is_over or shift.is_dying):
            if not shift.is_taking:
                await trio.sleep(0.05)
            elif only_pulls:
                await self._pull(speaker, ledger, order)
            elif not self.random.randrange(ONE_VANISHES_IN):
                if await self._taken(speaker, ledger, order, is_brief=True):
                    speaker.link.reset()
                    shift.counts["vanished with items in hand"] += 1
                    return
            elif held := await self._taken(speaker, ledger, order):
                await self._end(speaker, ledger, held)
            if self.queue != ledger.queues[0]:
                order.clear()  # queues that items move on to promise no order

    async def _pull(self, speaker: Speaker, ledger: Ledger, order: dict[bytes, int]) -> None:
        ledger.unanswered_gets += 1
        for item in await speaker.pull(WAIT_MS):
            ledger.delivered(item, order)
            self.shift.counts[f"taken in {speaker.name}"] += 1
        ledger.unanswered_gets -= 1

    async def _taken(
        self, speaker: Speaker, ledger: Ledger, order: dict[bytes, int], *, is_brief: bool = False
    ) -> list[bytes]:
        """Return the keys of the open items. With `is_brief`, they may come again from now on."""
        began_s = monotonic()
        items = await speaker.open_items(self.random.randint(1, TAKEN_MAX), WAIT_MS, is_brief=is_brief)
        if is_brief and monotonic() - began_s > BRIEF_LEASE_MS / 1000:
            # The lease may have ended: another client may already have the items, or have closed them.
            for item in items:
                ledger.heard_late(item)
            self.shift.counts["opened, and heard when the lease may have been over"] += len(items)
            return [key_of(item) for item in items]
        keys = [ledger.delivered(item, order, self) for item in items]
        if is_brief:
            for key in keys:
                ledger.released(key)
        self.shift.counts[f"opened in {speaker.name}"] += len(keys)
        return keys

    async def _end(self, speaker: Speaker, ledger: Ledger, held: list[bytes]) -> None:
        shift = self.shift
        if self.random.random() < 0.1:
            await trio.sleep(self.random.uniform(0, 0.02))
        if shift.is_dying:
            for key in held:  # after the disconnection another client may get them before the server has noticed
                ledger.released(key)
            return
        if speaker.can_abort and not self.random.randrange(8):
            for key in held:
                ledger.released(key)
            await speaker.abort()
            shift.counts["given back"] += len(held)
            return
        for key in held:
            ledger.closing(key)
        began_s = monotonic()
        await speaker.confirm()
        shift.closes_ms.append((monotonic() - began_s) * 1000)
        for key in held:
            ledger.closed(key)
        shift.counts[f"confirmed in {speaker.name}"] += len(held)


async def read_queues(stage: Stage) -> dict[str, list[bytes]]:
    """Return the contents of every queue, in order: one client opens all items, and its disconnection puts them
    back.
    """
    link = await Link.open(stage.address("memcache", is_secure=False), None)
    found: dict[str, list[bytes]] = {}
    try:
        for queue in (queue for family in FAMILIES for queue in family):
            found[queue] = []
            size = -1
            while size < len(found[queue]):
                size = len(found[queue])
                await link.send(b"get %b/open\r\n" % queue.encode() * 64)
                for _ in range(64):
                    head = await link.line()
                    if head.startswith(b"VALUE "):
                        found[queue].append(await link.exactly(int(head.split()[3])))
                        await link.exactly(7)
                    elif head != b"END":
                        raise ServerBroken(f"{head!r} to an open of {queue}")
    finally:
        link.close()
    return found
