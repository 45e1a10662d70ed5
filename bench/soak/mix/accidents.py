"""The accidents of a server and its clients during a shift, which do not end the server's life.

The kind, time and length of an accident follow from the seed; each is logged.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from time import monotonic

import trio

from staniel.bench.soak.mix.clients import FLOOD_MAX, HOLDS_MAX, Shift
from staniel.bench.soak.mix.stage import FILL_LEAVES_BYTES, PROTOCOLS
from staniel.bench.soak.mix.wires import ConnectionGone, Link

SPACE_SECONDS_MAX = 15.0  # puts are accepted again within a second of space; the machine may be busy
SLOW_SYNC_MS = (20, 200)
STORM_CLIENTS = (5, 25)
HELLO = bytes.fromhex("16030100c4010000c00303")  # the beginning of a client's TLS handshake
Say = Callable[[str], None]


class Accidents:
    """A source of accidents. `longest_s` limits the length of one."""

    def __init__(self, shift: Shift, longest_s: float, say: Say) -> None:
        self.shift = shift
        self.stage = shift.stage
        self.random = Random(shift.random.getrandbits(64))
        self.longest_s = longest_s
        self.say = say

    async def happen(self, every_s: float) -> None:
        """Cause one accident after another, until the shift stops producing."""
        while True:
            await trio.sleep(self.random.expovariate(1 / every_s))
            if not self.shift.is_producing:
                return
            accident, name = self.random.choice(self.possible())
            self.shift.counts[name] += 1
            self.say(name)
            await accident()

    def possible(self) -> list[tuple[Callable[[], Awaitable[None]], str]]:
        found: list[tuple[Callable[[], Awaitable[None]], str]] = [
            (self.freeze, "the server is stopped and continued"),
            (self.flood, "a flood of puts"),
            (self.storm, "a storm of clients that vanish"),
            (self.reload, "a reload"),
        ]
        if self.stage.is_slowable:
            found.append((self.slow_disk, "a slow disk"))
        if self.stage.disk is not None:
            found.append((self.full_disk, "a full disk"))
        return found

    async def freeze(self) -> None:
        self.stage.victim.send_signal(signal.SIGSTOP)
        try:
            await trio.sleep(self.random.uniform(0.1, min(2.0, self.longest_s)))
        finally:
            self.stage.victim.send_signal(signal.SIGCONT)

    async def slow_disk(self) -> None:
        self.stage.slow_down(self.random.randint(*SLOW_SYNC_MS))
        try:
            await trio.sleep(self.random.uniform(0.5, 1) * self.longest_s)
        finally:
            self.stage.slow_down(0)

    async def full_disk(self) -> None:
        disk = self.stage.disk
        assert disk is not None
        self.shift.full_until_s = float("inf")
        disk.fill(FILL_LEAVES_BYTES)
        try:
            await trio.sleep(self.random.uniform(0.3, 1) * min(6.0, self.longest_s))
        finally:
            disk.clear()
            self.shift.full_until_s = monotonic() + SPACE_SECONDS_MAX

    async def flood(self) -> None:
        """Put far more items than usual, and get none: items that do not fit in memory are read back from the
        journals.
        """
        pace_s, self.shift.pace_s = self.shift.pace_s, self.shift.pace_s / 10
        self.shift.holds_max, self.shift.is_taking = FLOOD_MAX, False
        await trio.sleep(self.random.uniform(0.5, 1) * self.longest_s)
        self.shift.holds_max, self.shift.is_taking, self.shift.pace_s = HOLDS_MAX, True, pace_s

    async def reload(self) -> None:
        self.stage.reload()

    async def storm(self) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(self.random.randint(*STORM_CLIENTS)):
                nursery.start_soon(self.random.choice(self._rude()))

    def _rude(self) -> list[Callable[[], Awaitable[None]]]:
        random = self.random
        return [
            partial(self._says, b"", is_secure=True),
            partial(self._says, HELLO[: random.randrange(len(HELLO))], is_secure=True),
            partial(self._says, HELLO + random.randbytes(200), is_secure=True),
            partial(self._says, random.randbytes(300) + b"\r\n"),
            partial(self._says, b"get nothing/t=60000/open\r\n", "memcache"),
            partial(self._says, b"get nothing 60000\n", "text"),
            partial(self._says, b"lease nothing 60000\r\n", "workq"),
            partial(self._says, b"stats\r\n" * 200, "memcache"),
            partial(self._says, b"set nothing 0 0 1000000\r\n" + bytes(random.randrange(500_000)), "memcache"),
            partial(self._says, random.randbytes(2)[:1] * 3 + bytes(40), "thrift"),
        ]

    async def _says(self, data: bytes, protocol: str = "", *, is_secure: bool = False) -> None:
        """Send data, read at most the beginning of a reply, and disconnect."""
        address = self.stage.address(protocol or self.random.choice(PROTOCOLS), is_secure=is_secure)
        try:
            link = await Link.open(address, None)
        except ConnectionGone:
            return
        self.shift.counts["rude clients"] += 1
        try:
            with trio.move_on_after(self.random.uniform(0, 0.5)):
                await link.send(data)
                await link.exactly(1)
                await trio.sleep_forever()
        except ConnectionGone:
            pass
        finally:
            link.reset()
