"""A member's entry in etcd: one that its leader counts on stays, whenever the lease of the process before it ends."""

from __future__ import annotations

from itertools import count

import trio
import trio.testing

from staniel.cluster.etcd.messages import KeyValue, Lease, Outcome, PutResult, Reading
from staniel.server.cluster.etcd_link import RENEWALS_A_LEASE, Answers, EtcdLink, MemberEntry

OWN = b"a" * 16
ENTRY = MemberEntry("a", "127.0.0.1:1", "127.0.0.1:2")
KEY = b"/staniel/t/members/" + OWN.hex().encode()
LEASE_S = 6


class LeasingEtcd:
    """An etcd in memory, whose leases end when the test says so. `rivals`: leases that end behind a read."""

    def __init__(self) -> None:
        self.held: dict[bytes, KeyValue] = {}
        self.leases: set[int] = set()
        self._numbers = count(1)
        self.rivals: list[int] = []

    def end(self, lease: int) -> None:
        """End a lease, and with it its keys."""
        self.leases.discard(lease)
        self.held = {key: kv for key, kv in self.held.items() if not lease or kv.lease != lease}

    async def grant_lease(self, ttl_s: int) -> Lease:
        lease = next(self._numbers)
        self.leases.add(lease)
        return Lease(lease, ttl_s)

    async def renew_lease(self, lease: int) -> int:
        return LEASE_S if lease in self.leases else 0

    async def read_key(self, key: bytes) -> Reading:
        values = (self.held[key],) if key in self.held else ()
        for lease in self.rivals:
            self.end(lease)
        return Reading(1, 1, values)

    async def put_if_unchanged(self, key: bytes, mod_revision: int, value: bytes, lease_id: int = 0) -> PutResult:
        held = self.held.get(key)
        if (held.mod_revision if held is not None else 0) != mod_revision:
            return PutResult(Outcome.REFUSED, current=held)
        self.held[key] = KeyValue(key, value, next(self._numbers), lease=lease_id)
        return PutResult(Outcome.WRITTEN, revision=self.held[key].mod_revision)


def link_to(etcd: LeasingEtcd) -> EtcdLink:
    def ignored(*answer: object) -> None:
        pass

    return EtcdLink(etcd, "t", OWN, ENTRY, LEASE_S, Answers(*[ignored] * 6))  # type: ignore[arg-type]


async def killed() -> tuple[LeasingEtcd, int]:
    """Return an etcd that has the entry of a process that was killed, and its lease."""
    etcd = LeasingEtcd()
    with trio.CancelScope() as life:
        async with trio.open_nursery() as nursery:
            link = link_to(etcd)
            nursery.start_soon(link.stay_alive, lambda: True)
            await link.wait_until_entered()
            life.cancel()
    return etcd, etcd.held[KEY].lease


async def test_a_member_that_waits_until_it_has_entered_keeps_its_entry_when_the_old_lease_ends(
    mock_clock: trio.testing.MockClock,
) -> None:
    etcd, old = await killed()
    follows = False
    async with trio.open_nursery() as nursery:
        link = link_to(etcd)
        nursery.start_soon(link.stay_alive, lambda: follows)  # it led, and lets others stand first
        await trio.testing.wait_all_tasks_blocked()
        assert etcd.held[KEY].lease == old
        follows = True
        await link.wait_until_entered()  # the clock stands still: it does not wait for the next renewal
        assert etcd.held[KEY].lease != old
        etcd.end(old)
        assert KEY in etcd.held
        nursery.cancel_scope.cancel()


async def test_a_member_whose_old_lease_ends_while_it_enters_enters_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    etcd, old = await killed()
    etcd.rivals = [old]
    async with trio.open_nursery() as nursery:
        link = link_to(etcd)
        begin = trio.current_time()
        nursery.start_soon(link.stay_alive, lambda: True)
        await link.wait_until_entered()
        assert etcd.held[KEY].lease in etcd.leases and trio.current_time() - begin < LEASE_S / RENEWALS_A_LEASE
        nursery.cancel_scope.cancel()


async def test_a_member_that_may_not_enter_asks_etcd_for_nothing(autojump_clock: trio.testing.MockClock) -> None:
    etcd = LeasingEtcd()
    async with trio.open_nursery() as nursery:
        link = link_to(etcd)
        nursery.start_soon(link.stay_alive, lambda: False)
        with trio.move_on_after(10 * LEASE_S) as wait:
            await link.wait_until_entered()
        assert wait.cancelled_caught and not etcd.leases
        nursery.cancel_scope.cancel()
