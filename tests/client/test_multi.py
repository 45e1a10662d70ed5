"""MultiClient over real servers, and over some that play a script: where items go, come from and end, and what is known
when a server is lost.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

import staniel.client.aio.multi
import staniel.client.blocking.multi
from staniel.client import Busy, Client, ConnectionLost, Full, MultiClient, NotAllStored, NotOpen, Outcome, Refused
from tests.client.fake_server import HANG_UP, Last, playing, scripted
from tests.client.fake_server import item as item_of
from tests.client.kinds import each_kind, play
from tests.support.process import Server, running, until
from tests.support.wire import Wire, drain, stats

Make = Callable[..., Any]
STORED, FULL, END, DELETED = b"STORED\r\n", b"NOT_STORED\r\n", b"END\r\n", b"DELETED\r\n"
NOWHERE = ("127.0.0.1", 1)


def item(data: bytes) -> bytes:
    return item_of(data, b"q")  # without options, as for waits of any length


def multi(kind: str, body: Callable[[Make], Any]) -> None:
    """Run `body` with clients that begin with the first server."""

    def fixed(make: Make) -> Make:
        def made(*args: Any, **options: Any) -> Any:
            client = make(*args, **options)
            servers = (client.blocking if kind == "blocking" else client)._servers
            servers._next = 0
            return client

        return made

    async def whole(make: Make) -> None:
        await body(fixed(make))

    play(kind, whole, of="MultiClient")


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with running(tmp_path / "a") as a, running(tmp_path / "b") as b:
        yield a, b


class Clock:
    """A clock that a test sets."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        for module in (staniel.client.aio.multi, staniel.client.blocking.multi):
            patch.setattr(module, "time", self)

    def monotonic(self) -> float:
        return self.now_s


@each_kind
def test_puts_are_spread_and_gets_are_fair_to_all(two: tuple[Server, Server], kind: str) -> None:
    async def body(make: Make) -> None:
        async with make([server.address for server in two]) as client:
            for number in range(6):
                await client.put("jobs", b"%d" % number)
            assert [int(stats(server.address)["queue_jobs_items"]) for server in two] == [3, 3]
            taken = [await client.get("jobs") for _ in range(6)]
            assert {one.data for one in taken[:2]} == {b"0", b"1"}
            assert sorted(one.data for one in taken) == [b"0", b"1", b"2", b"3", b"4", b"5"]
            assert await client.get("jobs") is None
            await client.put_many("lines", [b"a", b"b", b"c"])
        assert sorted(drain(server.address, "lines") for server in two) == [[], [b"a", b"b", b"c"]]

    multi(kind, body)


@each_kind
def test_a_long_queue_of_one_server_does_not_hide_the_item_of_another(two: tuple[Server, Server], kind: str) -> None:
    async def body(make: Make) -> None:
        async with make([two[0].address]) as one, make([two[1].address]) as other:
            await one.put_many("jobs", [b"many"] * 100)
            await other.put("jobs", b"one")
        async with make([server.address for server in two]) as client:
            assert {(await client.get("jobs")).data for _ in range(2)} == {b"many", b"one"}

    multi(kind, body)


@each_kind
def test_a_waiting_get_is_not_held_by_a_server_that_is_idle(kind: str) -> None:
    async def body(make: Make) -> None:
        async with make([idle.address, busy.address]) as client:
            taken = await client.get("q", wait_s=3600)
            assert (taken.data, taken.server) == (b"a", busy.address)

    with scripted([END] * 9, [END, END, END, item(b"a"), DELETED]) as (idle, busy):
        multi(kind, body)
        waits = [piece.partition(b"/t=")[2].partition(b"/")[0] for piece in idle.heard + busy.heard[:-1]]
        assert all(int(wait) <= 250 for wait in waits if wait) and any(waits)
        for server in (idle, busy):  # between two waits on one server, the other one is asked
            assert not [b for a, b in zip(server.heard, server.heard[1:], strict=False) if b"/t=" in a and b"/t=" in b]


@each_kind
def test_a_single_server_holds_a_waiting_get_as_long_as_it_may(kind: str) -> None:
    async def body(make: Make) -> None:
        async with make([server.address]) as client:
            assert (await client.get("q", wait_s=3600)).data == b"a"

    with playing(END, item(b"a"), DELETED) as server:
        multi(kind, body)
        assert int(server.heard[1].partition(b"/t=")[2].partition(b"/")[0]) > 3_500_000


@each_kind
def test_the_only_server_that_is_not_set_aside_holds_a_get_until_another_is_asked_again(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(make: Make) -> None:
        async with make([ill.address, well.address]) as client:
            assert (await client.get("q", wait_s=3600)).data == b"a"

    Clock(monkeypatch)
    with scripted([HANG_UP], [END, END, item(b"a"), DELETED]) as (ill, well):
        multi(kind, body)
        waits = [int(piece.partition(b"/t=")[2].partition(b"/")[0] or 0) for piece in well.heard[:3]]
        assert waits[:2] == [0, 10] and 50 <= waits[2] <= 100  # a server that was lost once is set aside so long


@each_kind
def test_an_item_that_comes_to_any_server_ends_a_wait(two: tuple[Server, Server], kind: str) -> None:
    def put(server: Server) -> None:
        assert until(lambda: all(int(stats(each.address)["cmd_get"]) for each in two))
        with MultiClient([server.address]) as other:
            other.put("jobs", b"a")

    async def body(make: Make) -> None:
        for server in two:
            async with make([each.address for each in two]) as client:
                thread = threading.Thread(target=put, args=(server,))
                thread.start()
                taken = await client.get("jobs", wait_s=60)
                thread.join()
                assert (taken.data, taken.server) == (b"a", server.address)

    multi(kind, body)


@each_kind
def test_a_dead_server_is_set_aside_and_comes_back(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(make: Make) -> None:
        async with make([ill.address, well.address]) as client:
            assert await client.get("q") is None  # the ill one hangs up, the other one replies
            for _ in range(4):
                await client.put("q", b"a")
            assert (len(ill.heard), len(well.heard)) == (1, 5)
            clock.now_s += 1
            for _ in range(4):
                await client.put("q", b"a")
            assert (len(ill.heard), len(well.heard)) == (3, 7)

    clock = Clock(monkeypatch)
    with scripted([HANG_UP, STORED, STORED], [END] + [STORED] * 6) as (ill, well):
        multi(kind, body)


@each_kind
def test_a_server_that_is_not_there_costs_no_put_and_no_get(kind: str) -> None:
    async def body(make: Make) -> None:
        async with make([NOWHERE, server.address]) as client:
            await client.put("q", b"a")
            await client.put_many("q", [b"a"])
            assert await client.get("q") is None
        async with make([NOWHERE]) as client:
            for call in (client.put("q", b"a"), client.get("q", wait_s=60), client.flush("q"), client.stats()):
                with pytest.raises(ConnectionLost, match="no connection to 127") as lost:
                    await call
                assert lost.value.outcome is Outcome.NOT_DONE

    with playing(STORED, STORED, END) as server:
        multi(kind, body)


@each_kind
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("bad", [HANG_UP, b"garbage\r\n", b"DELETED\r\n", None])
def test_a_put_of_unknown_outcome_is_put_nowhere_else_unless_that_is_asked_for(
    kind: str, many: bool, bad: bytes | None
) -> None:
    async def body(make: Make) -> None:
        def put(client: Any) -> Any:
            return client.put_many("q", [b"a"]) if many else client.put("q", b"a")

        addresses = [ill.address, well.address]
        async with make(addresses, answer_timeout_s=0.1) as client:
            with pytest.raises(ConnectionLost) as lost:
                await put(client)
            assert (lost.value.outcome, well.heard) == (Outcome.UNKNOWN, [])
        async with make(addresses, answer_timeout_s=0.1, repeat_unknown=True) as client:
            await put(client)
        assert (len(ill.heard), len(well.heard)) == (2, 1)

    with scripted([bad, bad], [STORED]) as (ill, well):
        multi(kind, body)


@each_kind
def test_a_full_or_ill_server_passes_a_put_on_and_a_wrong_name_is_told_at_once(kind: str) -> None:
    async def body(make: Make) -> None:
        async with make([one.address, other.address]) as client:
            await client.put("q", b"a")
            with pytest.raises(Full):
                await client.put("q", b"a")
            await client.put("q", b"a")
            await client.put_many("q", [b"a", b"b"])
            with pytest.raises(NotAllStored):
                await client.put_many("q", [b"a", b"b"])
            with pytest.raises(Refused, match="CLIENT_ERROR no"):
                await client.put("q", b"a")

    with scripted(
        [FULL, FULL, b"SERVER_ERROR disk\r\n", FULL + STORED, b"CLIENT_ERROR no\r\n"],
        [STORED, FULL, STORED, FULL + FULL],
    ) as (one, other):
        # which is asked first changes with each call: one; other; one; other; one; other
        one_script = [FULL, FULL, b"SERVER_ERROR disk\r\n", STORED + STORED, FULL + STORED]
        other_script = [STORED, FULL, STORED, FULL + FULL, b"CLIENT_ERROR no\r\n"]
        one._script, other._script = iter(one_script), iter(other_script)
        multi(kind, body)
        assert (len(one.heard), len(other.heard)) == (5, 5)


@each_kind
def test_the_leader_is_followed_also_one_that_was_not_known(kind: str) -> None:
    async def body(make: Make) -> None:
        async with make([follower.address]) as client:
            await client.put("q", b"a")
            await client.put_many("q", [b"a", b"b"])
            assert (await client.get("q")).data == b"c"
        assert (len(follower.heard), len(leader.heard)) == (1, 4)

    with scripted([], [STORED, STORED * 2, item(b"c"), DELETED]) as (follower, leader):
        follower._script = iter([b"SERVER_ERROR not the leader: 127.0.0.1:%d\r\n" % leader.address[1]])
        multi(kind, body)


@each_kind
def test_a_batch_that_a_follower_refuses_is_put_on_its_leader(kind: str) -> None:
    async def body(make: Make) -> None:
        async with make([follower.address]) as client:
            await client.put_many("q", [b"a", b"b"])

    with scripted([], [STORED * 2]) as (follower, leader):
        follower._script = iter([b"SERVER_ERROR not the leader: 127.0.0.1:%d\r\n" % leader.address[1] * 2])
        multi(kind, body)


@each_kind
@pytest.mark.parametrize("how", ["put", "get", "put_many"])
def test_the_followers_of_a_leader_that_is_lost_are_asked_at_once(
    kind: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(make: Make) -> None:
        async with make([follower.address]) as client:
            await client.put("q", b"a")
            assert leader.is_left.wait(60)
            if how == "get":
                assert await client.get("q") is None
            else:
                await (client.put("q", b"b") if how == "put" else client.put_many("q", [b"b"]))

    Clock(monkeypatch)
    with scripted([], [Last(STORED)]) as (follower, leader):
        refusal = b"SERVER_ERROR not the leader: 127.0.0.1:%d\r\n" % leader.address[1]
        follower._script = iter([refusal, END if how == "get" else STORED])
        multi(kind, body)
        assert (len(follower.heard), len(leader.heard)) == (2, 1)


@each_kind
def test_servers_that_name_each_other_are_told_to_the_program(kind: str) -> None:
    async def body(make: Make) -> None:
        async with make([one.address, other.address]) as client:
            with pytest.raises(Refused, match="not the leader"):
                await client.put("q", b"a")

    with scripted([], []) as (one, other):
        for server, named in ((one, other), (other, one)):
            server._script = iter([b"SERVER_ERROR not the leader: 127.0.0.1:%d\r\n" % named.address[1]] * 20)
        multi(kind, body)
        assert 2 <= len(one.heard) + len(other.heard) <= 12


@each_kind
def test_items_end_where_they_came_from_in_any_order(kind: str) -> None:
    async def body(make: Make) -> None:
        async with make([one.address, other.address]) as client:
            first, second = await client.open("q"), await client.open("q")
            assert (first.server, second.server, first.id, second.id) == (one.address, other.address, 9, 9)
            await client.confirm(second)
            await client.extend(first)
            await client.abort(first)
            with pytest.raises(NotOpen):
                await client.confirm(first)

    with scripted([item(b"a"), b"TOUCHED\r\n", b"TOUCHED\r\n"], [item(b"a"), DELETED]) as (one, other):
        multi(kind, body)
        assert one.heard[1:] == [b"touch q/id=9 0\r\n", b"touch q/id=9/abort 0\r\n"]
        assert other.heard[1:] == [b"delete q/id=9\r\n"]


@each_kind
def test_a_reservation_ends_on_its_server_by_the_end_of_its_block(two: tuple[Server, Server], kind: str) -> None:
    async def body(make: Make) -> None:
        async with make([server.address for server in two]) as client:
            await client.put("jobs", b"a")
            await client.put("jobs", b"b")
            async with client.reserve("jobs") as outer:
                with suppress(ZeroDivisionError):
                    async with client.reserve("jobs") as inner:
                        assert {outer.data, inner.data} == {b"a", b"b"}
                        await client.put("results", inner.data)
                        raise ZeroDivisionError
            assert (await client.peek("jobs")).data == inner.data
            async with client.reserve("jobs") as again:
                await client.confirm(again)
            async with client.reserve("jobs") as nothing:
                assert nothing is None

    multi(kind, body)
    assert [drain(server.address, "jobs") for server in two] == [[], []]


@each_kind
@pytest.mark.parametrize("end", ["confirm", "abort", "extend", "reserve", "next_items", "monitor"])
def test_a_server_that_restarts_between_reserve_and_confirm_has_the_item_again_and_the_client_goes_on(
    two: tuple[Server, Server], kind: str, end: str
) -> None:
    async def body(make: Make) -> None:
        a, b = two
        async with make([a.address, b.address]) as client:
            await client.put("jobs", b"a")
            await restarted_before(client, a, end)
            await client.put("jobs", b"b")  # on the other server

    multi(kind, body)
    assert [drain(server.address, "jobs") for server in two] == [[b"a"], [b"b"]]


async def in_block(client: Any, server: Server, end: str) -> None:
    if end == "reserve":
        async with client.reserve("jobs"):
            server.restart()
    else:
        async with client.monitor("jobs", wait_s=60, max_items=1) as items:
            async for _ in items:
                server.restart()


async def restarted_before(client: Any, server: Server, end: str) -> None:
    """Restart the server of an item before its end, which is told that the item is not open any more."""
    address = server.address
    if end in ("reserve", "monitor"):
        with pytest.raises(NotOpen) as gone:
            await in_block(client, server, end)
        assert (gone.value.item.data, gone.value.item.server) == (b"a", address)
        return
    taken = await client.open("jobs")
    assert taken.server == address
    server.restart()
    if end == "next_items":
        assert await client.next_items("jobs", 0, confirm=[taken]) == ([], [taken])
        return
    with pytest.raises(NotOpen) as gone:
        await getattr(client, end)(taken)
    assert (gone.value.item, gone.value.outcome) == (taken, Outcome.NOT_DONE)


@each_kind
def test_items_of_several_servers_are_confirmed_together_and_the_next_ones_opened(
    two: tuple[Server, Server], kind: str
) -> None:
    async def body(make: Make) -> None:
        async with make([server.address for server in two]) as client:
            for _ in two:
                await client.put_many("jobs", [b"a", b"b", b"c"])
            first, second = [await client.next_items("jobs", 2) for _ in two]
            assert [[item.data for item in batch.items] for batch in (first, second)] == [[b"a", b"b"]] * 2
            assert {item.server for item in (*first.items, *second.items)} == {server.address for server in two}
            done = [first.items[1], second.items[0], second.items[1]]
            third = await client.next_items("jobs", 9, confirm=done)
            assert ([item.data for item in third.items], third.not_open) == ([b"c"], [])
            assert await client.next_items("jobs", 0, confirm=done[:1]) == ([], done[:1])
            assert (await client.next_items("jobs", 9, wait_s=60)).items[0].data == b"c"
            assert await client.next_items("jobs", 9, wait_s=0.02) == ([], [])

    multi(kind, body)
    assert sorted(drain(server.address, "jobs") for server in two) == [[b"a", b"c"], [b"c"]]


@each_kind
def test_a_confirm_of_many_without_its_answer_is_told_after_all_servers_were_asked(kind: str) -> None:
    async def body(make: Make) -> None:
        async with make([ill.address, well.address]) as client:
            items = [await client.open("q") for _ in range(2)]
            with pytest.raises(ConnectionLost) as lost:
                await client.next_items("q", 5, confirm=items)
            assert lost.value.outcome is Outcome.UNKNOWN

    with scripted([item(b"a"), HANG_UP], [item(b"b"), DELETED, item(b"never")]) as (ill, well):
        multi(kind, body)
        assert well.heard[1:] == [b"delete q/id=9\r\n"]


@each_kind
def test_a_monitor_of_several_servers_confirms_what_its_loop_was_given(two: tuple[Server, Server], kind: str) -> None:
    async def body(make: Make) -> None:
        async with make([server.address for server in two]) as client:
            for _ in two:
                await client.put_many("jobs", [b"a", b"b", b"c"])
            async with client.monitor("jobs", wait_s=60, max_items=4) as items:
                assert sorted([item.data async for item in items]) == [b"a", b"a", b"b", b"c"]
            with suppress(ZeroDivisionError):
                async with client.monitor("jobs", wait_s=60) as items:
                    async for _ in items:
                        raise ZeroDivisionError
            async with client.monitor("jobs", wait_s=60) as items:
                async for one in items:
                    assert one.data == b"b"
                    break
            async with client.monitor("empty", wait_s=0) as items:
                assert [item async for item in items] == []

    multi(kind, body)
    assert sorted(drain(server.address, "jobs") for server in two) == [[], [b"c"]]


@each_kind
def test_a_confirm_without_its_answer_names_the_item_and_nothing_else_is_read(kind: str) -> None:
    async def body(make: Make) -> None:
        async with make([ill.address, other.address]) as client:
            with pytest.raises(ConnectionLost) as lost:
                await client.get("q", wait_s=60)
            assert (lost.value.outcome, lost.value.item.data) == (Outcome.UNKNOWN, b"a")

    with scripted([item(b"a"), HANG_UP], [item(b"b")]) as (ill, other):
        multi(kind, body)
        assert other.heard == []


MULTI_CALLS: dict[str, Callable[[Any], Any]] = {
    "put": lambda client: client.put("q", b"a"),
    "put_many": lambda client: client.put_many("q", [b"a", b"b"]),
    "get": lambda client: client.get("q"),
    "peek": lambda client: client.peek("q"),
    "open": lambda client: client.open("q"),
    "next_items": lambda client: client.next_items("q", 2),
    "flush": lambda client: client.flush("q"),
    "delete": lambda client: client.delete("q"),
    "stats": lambda client: client.stats(),
    "version": lambda client: client.version(),
}


@each_kind
@pytest.mark.parametrize("bad", [HANG_UP, b"\x16\x03\x01\x00\x00 what\r\n", b"OK\r\n", None])
@pytest.mark.parametrize("call", MULTI_CALLS)
def test_a_wrong_answer_of_the_only_server_is_told_and_the_next_call_has_a_new_connection(
    call: str, bad: bytes | None, kind: str
) -> None:
    async def body(make: Make) -> None:
        async with make([server.address], answer_timeout_s=0.1) as client:
            with pytest.raises(ConnectionLost) as lost:
                await MULTI_CALLS[call](client)
            assert lost.value.outcome is Outcome.UNKNOWN
            assert await client.version() == {server.address: "2"}

    with playing(bad, b"VERSION 2\r\n") as server:
        multi(kind, body)


@each_kind
def test_an_answer_that_comes_too_late_is_nobodys(kind: str) -> None:
    async def body(make: Make) -> None:
        async with make([late.address, well.address], answer_timeout_s=0.1) as client:
            assert (await client.get("q")).data == b"b"  # of the other server, as nothing had left the late one
            release.set()
            assert (await client.get("q")).data == b"c"

    release = threading.Event()
    with scripted([(item(b"late"), release), END], [item(b"b"), DELETED, item(b"c"), DELETED]) as (late, well):
        multi(kind, body)


@each_kind
def test_a_wall_clock_that_jumps_moves_no_wait(
    two: tuple[Server, Server], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(make: Make) -> None:
        async with make([server.address for server in two]) as client:
            for days in (1, -1):
                monkeypatch.setattr("time.time", lambda days=days: now_s() + days * 86_400)
                assert await client.get("jobs", wait_s=0.02) is None
                await client.put("jobs", b"a", ttl_s=60)
                assert (await client.get("jobs", wait_s=60)).data == b"a"

    now_s = time.time
    multi(kind, body)


@each_kind
def test_requests_about_a_queue_or_the_servers_go_to_all(two: tuple[Server, Server], kind: str) -> None:
    async def body(make: Make) -> None:
        addresses = [server.address for server in two]
        async with make([*addresses, NOWHERE]) as client:
            assert set(await client.stats()) == set(await client.version()) == set(addresses)
        async with make(addresses) as client:
            for number in range(4):
                await client.put("jobs", b"%d" % number)
            await client.flush("jobs")
            assert await client.get("jobs") is None
            assert (await client.delete("jobs"), await client.delete("jobs")) == (True, False)

    multi(kind, body)


@each_kind
def test_a_closed_client_stays_closed(kind: str) -> None:
    async def body(make: Make) -> None:
        client = make([NOWHERE])
        await client.close()
        with pytest.raises(ConnectionLost, match="closed by this program") as lost:
            await client.put("q", b"a")
        assert lost.value.outcome is Outcome.NOT_DONE

    multi(kind, body)


def test_a_client_that_is_closed_under_a_waiting_thread_connects_to_no_server_again(two: tuple[Server, Server]) -> None:
    told: list[object] = []

    def wait() -> None:
        try:
            told.append(client.get("jobs", wait_s=60))
        except ConnectionLost as lost:
            told.append(str(lost))

    client = MultiClient([server.address for server in two])
    thread = threading.Thread(target=wait)
    thread.start()
    assert until(lambda: len(client._clients) == 2)
    client.close()
    for server in two:
        with Client(*server.address) as other:
            other.put("jobs", b"a")
    thread.join(60)
    assert told == ["closed by this program"]
    assert [drain(server.address, "jobs") for server in two] == [[b"a"], [b"a"]]


def test_a_second_thread_is_told_at_once() -> None:
    release = threading.Event()
    with playing((STORED, release)) as server, MultiClient([server.address]) as client:
        thread = threading.Thread(target=client.put, args=("q", b"a"))
        thread.start()
        assert until(lambda: server.heard)
        with pytest.raises(Busy, match="another thread"):
            client.put("q", b"a")
        release.set()
        thread.join()


def test_a_forked_process_has_connections_of_its_own(two: tuple[Server, Server]) -> None:
    with MultiClient([server.address for server in two]) as client:
        client.put("jobs", b"a")
        held = client.open("jobs")
        assert held is not None
        child = os.fork()
        if child == 0:
            try:
                client.confirm(held)
            except NotOpen:
                client.put("child", b"b")
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        client.confirm(held)
    assert sorted(drain(server.address, "child") for server in two) == [[], [b"b"]]
    assert [drain(server.address, "jobs") for server in two] == [[], []]


@pytest.mark.parametrize("servers", [[], [NOWHERE, NOWHERE]])
def test_what_cannot_be_servers_is_refused_at_once(servers: list[tuple[str, int]]) -> None:
    with pytest.raises(ValueError, match="one address"):
        MultiClient(servers)


def test_a_cancelled_task_closes_its_connections_to_all_servers(two: tuple[Server, Server]) -> None:
    """An item is open on each. Closing the first connection is a step at which the cancellation could end the rest."""

    async def hold_one_of_each() -> None:
        with anyio.move_on_after(60) as scope:
            async with staniel.client.aio.multi.MultiClient([server.address for server in two]) as client:
                assert [(await client.open("q")) is not None for _ in two] == [True, True]
                assert [stats(server.address)["queue_q_open_transactions"] for server in two] == ["1", "1"]
                scope.cancel()
                await anyio.sleep(60)

    for server in two:
        with Wire(server.address) as wire:
            assert wire.put("q", b"1") == b"STORED"
    anyio.run(hold_one_of_each)
    for server in two:
        assert until(lambda server=server: stats(server.address)["queue_q_open_transactions"] == "0", 30)
