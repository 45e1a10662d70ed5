"""The blocking client and the one on anyio against a server that plays a script: it is silent, hangs up, answers in
part, late, or something else. What is known then, and that no request is given the answer of another.
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio
import trio.testing

import staniel.client.aio
from staniel.client import Busy, Client, ConnectionLost, Outcome
from staniel.client.aio import connection
from staniel.client.aio.transport import open_transport
from staniel.client.blocking.transport import Turn
from tests.client.cancelling import cancel_on_asyncio, cancel_on_trio
from tests.client.fake_server import HANG_UP, Last, item, playing
from tests.client.kinds import each_kind, each_loop, play
from tests.support.process import Server, until
from tests.support.wire import drain

Make = Callable[..., Any]
OPENED = item(b"a")


async def monitored(client: Any) -> None:
    async with client.monitor("q", wait_s=0) as items:
        async for _ in items:
            pass


CALLS: dict[str, Callable[[Any], Awaitable[object]]] = {
    "put": lambda client: client.put("q", b"a"),
    "put_many": lambda client: client.put_many("q", [b"a", b"b"]),
    "get": lambda client: client.get("q"),
    "peek": lambda client: client.peek("q"),
    "open": lambda client: client.open("q"),
    "flush": lambda client: client.flush("q"),
    "delete": lambda client: client.delete("q"),
    "stats": lambda client: client.stats(),
    "version": lambda client: client.version(),
    "monitor": monitored,
}
BAD = {
    "hangs up": HANG_UP,
    "garbage": b"\x16\x03\x01\x00\x00 what\r\n",
    "another request's answer": b"OK\r\n",
    "an item that is too short": b"VALUE q/open 0 5 9\r\nabc\r\nEND\r\n",
    "silence": None,
}


@each_kind
@pytest.mark.parametrize("waits", [{"wait_s": 2_147_483}, {"answer_timeout_s": float("inf")}])
def test_the_longest_waits_are_waited_for(waits: dict[str, float], kind: str) -> None:
    async def body(make: Make) -> None:
        async with make(*server.address, answer_timeout_s=waits.get("answer_timeout_s", 30)) as client:
            assert await client.peek("q", wait_s=waits.get("wait_s", 0)) is None

    with playing(b"END\r\n") as server:
        play(kind, body)


@each_kind
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_answer_closes_the_connection_and_the_outcome_is_unknown(call: str, bad: str, kind: str) -> None:
    async def body(make: Make) -> None:
        client = make(*server.address, answer_timeout_s=0.1)
        with pytest.raises(ConnectionLost) as lost:
            await CALLS[call](client)
        assert lost.value.outcome is Outcome.UNKNOWN
        with pytest.raises(ConnectionLost) as later:
            await client.version()
        assert later.value.outcome is Outcome.NOT_DONE

    with playing(BAD[bad]) as server:
        play(kind, body)
        assert server.is_left.wait(60)
        assert len(server.heard) == 1


@each_kind
@pytest.mark.parametrize("bad", [HANG_UP, None, b"garbage\r\n", b"STORED\r\n"])
@pytest.mark.parametrize("how", ["confirm", "abort", "extend", "get", "reserve"])
def test_an_end_without_its_answer_names_the_item(how: str, bad: bytes | None, kind: str) -> None:
    async def body(make: Make) -> None:
        client = make(*server.address, answer_timeout_s=0.1)
        with pytest.raises(ConnectionLost) as lost:
            await ended(client, how)
        assert lost.value.outcome is Outcome.UNKNOWN
        assert how == "extend" or lost.value.item.data == b"a"
        with pytest.raises(ConnectionLost):
            await client.version()

    with playing(OPENED, bad) as server:
        play(kind, body) if bad is not None or how not in ("get", "reserve") else short_settling(kind, body)
        assert server.is_left.wait(60)


@each_kind
@pytest.mark.parametrize("how", ["confirm", "abort", "reserve"])
def test_an_end_on_a_connection_that_was_lost_before_is_not_done_and_names_the_item(how: str, kind: str) -> None:
    """The item will be delivered again for certain, and this client is of no use any more: ConnectionLost says both."""

    async def body(make: Make) -> None:
        client = make(*server.address)
        with pytest.raises(ConnectionLost) as lost:
            await ended_when_lost(client, how)
        assert (lost.value.outcome, lost.value.item.data) == (Outcome.NOT_DONE, b"a")
        assert len(server.heard) == 1

    async def ended_when_lost(client: Any, how: str) -> None:
        if how == "reserve":
            async with client.reserve("q"):
                assert server.is_left.wait(60)
            return
        taken = await client.open("q")
        assert server.is_left.wait(60)
        await getattr(client, how)(taken)

    with playing(Last(OPENED)) as server:
        play(kind, body)


async def ended(client: Any, how: str) -> None:
    if how == "get":
        await client.get("q")
    elif how == "reserve":
        async with client.reserve("q"):
            pass
    else:
        await getattr(client, how)(await client.open("q"))


def short_settling(kind: str, body: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("staniel.client.blocking.client", "staniel.client.aio.client"):
            patch.setattr(f"{name}.SETTLE_SECONDS", 0.1)
        play(kind, body)


@each_kind
def test_what_is_known_of_many_puts_is_told(kind: str) -> None:
    async def body(make: Make) -> None:
        with pytest.raises(ConnectionLost) as lost:
            await make(*server.address, answer_timeout_s=0.1).put_many("q", [b"a", b"b", b"c"])
        assert (lost.value.answered, list(lost.value.refused)) == (2, [1])

    with playing(b"STORED\r\nNOT_STORED\r\n") as server:
        play(kind, body)


def test_a_second_thread_is_told_at_once() -> None:
    release = threading.Event()
    with playing((b"VERSION 1\r\n", release), b"VERSION 2\r\n") as server, Client(*server.address) as client:
        heard: list[str] = []
        thread = threading.Thread(target=lambda: heard.append(client.version()))
        thread.start()
        assert until(lambda: server.heard)
        with pytest.raises(Busy, match="another thread is using this client") as busy:
            client.version()
        assert busy.value.outcome is Outcome.NOT_DONE
        release.set()
        thread.join()
        assert (heard, client.version()) == (["1"], "2")


@each_loop
def test_a_second_task_is_told_at_once(kind: str) -> None:
    async def body(make: Make) -> None:
        async with make(*server.address) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(client.version)
            while not server.heard:
                await anyio.lowlevel.checkpoint()
            with pytest.raises(Busy, match="another task"):
                await client.put("q", b"a")
            release.set()
        assert client._connection.why == "closed by this program"

    release = threading.Event()
    with playing((b"VERSION 1\r\n", release)) as server:
        play(kind, body)


def test_a_client_is_closed_under_a_thread_that_waits() -> None:
    with playing(None) as server, Client(*server.address) as client:
        lost: list[Exception] = []

        def wait() -> None:
            try:
                client.version()
            except ConnectionLost as error:
                lost.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        assert until(lambda: server.heard)
        client.close()
        thread.join(60)
        assert [str(error) for error in lost] == ["closed by this program"]


def test_a_descriptor_is_not_given_away_while_a_thread_uses_it(server: Server) -> None:
    class Closing:
        """Closes the client between a request and the wait for its reply."""

        def poll(self, timeout_ms: float) -> list[int]:
            if not timeout_ms:  # before the request
                return []
            thread.start()
            shut = select.poll()
            shut.register(transport._sock, select.POLLRDHUP)
            assert until(lambda: shut.poll(0))
            thread.join(0.2)
            descriptors.append(transport._sock.fileno())
            return [1]

    descriptors: list[int] = []
    with Client(*server.address) as client:
        transport: Any = client._connection.transport
        transport._wait = Closing().poll
        thread = threading.Thread(target=client.close)
        with pytest.raises(ConnectionLost, match="closed by this program"):
            client.get("nothing", wait_s=60)  # to which no reply comes
        thread.join()
        assert descriptors[0] >= 0 and transport._sock.fileno() == -1


def test_a_turn_is_had_by_one_thread_at_a_time_and_given_to_one_that_waits() -> None:
    def use() -> None:
        nonlocal inside
        for _ in range(200):
            hold = object()
            assert turn.wait(hold, 60)
            inside += 1
            most.add(inside)
            inside -= 1
            turn.end(hold)
        done.append(True)

    turn, inside, most = Turn(), 0, set[int]()
    done: list[bool] = []
    mine, other = object(), object()
    assert turn.acquire(mine)
    assert not turn.acquire(other) and not turn.wait(other, 0.001)
    turn.end(other)
    assert turn.is_held_by(mine)
    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    turn.end(mine)
    for thread in threads:
        thread.join(60)
    assert (most, done) == ({1}, [True] * 4)
    assert turn.acquire(other)
    turn.end(mine)
    assert turn.is_held_by(other)


def test_a_fork_is_noticed_and_the_parents_connection_goes_on(server: Server) -> None:
    with Client(*server.address) as client:
        client.put("jobs", b"a")
        held = client.open("jobs")
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                client.put("jobs", b"never")
            except ConnectionLost as lost:
                os.write(writer, f"{lost.outcome.value}: {lost}".encode())
            client.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reader, 1000) == (
            b"not done: this process was forked after the client had connected; make a client in each process"
        )
        os.close(reader)
        os.close(writer)
        assert held is not None
        client.confirm(held)
        assert client.version()
    assert drain(server.address, "jobs") == []


def test_a_client_in_use_at_a_fork_is_of_no_use_to_the_child_and_not_busy(server: Server) -> None:
    with Client(*server.address) as client:
        assert client._connection._turn.acquire(object())  # as another thread's call, which the child does not have
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            for call in (lambda: client.put("jobs", b"never"), lambda: client.get("jobs"), client.version):
                try:
                    call()
                except ConnectionLost as lost:
                    os.write(writer, f"{lost.outcome.value}: {str(lost)[:23]}\n".encode())
                except Busy:
                    os.write(writer, b"busy\n")
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reader, 1000) == b"not done: this process was forked\n" * 3
        os.close(reader)
        os.close(writer)


@each_loop
def test_a_client_that_is_closed_while_it_connects_stays_closed(
    server: Server, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(make: Make) -> None:
        client = make(*server.address)

        async def closed_meanwhile(*args: Any) -> Any:
            transport = await open_transport(*args)
            await client.close()
            return transport

        monkeypatch.setattr(connection, "open_transport", closed_meanwhile)
        with pytest.raises(ConnectionLost, match="closed by this program") as lost:
            await client.put("jobs", b"a")
        assert lost.value.outcome is Outcome.NOT_DONE and client.is_lost

    play(kind, body)
    assert drain(server.address, "jobs") == []


def test_a_client_that_had_not_connected_is_of_use_in_a_forked_process(server: Server) -> None:
    client = Client(*server.address)
    child = os.fork()
    if child == 0:
        try:
            client.put("jobs", b"a")
            client.close()
        except ConnectionLost:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert drain(server.address, "jobs") == [b"a"]


@each_loop
def test_a_fork_is_noticed_by_the_clients_of_a_loop(server: Server, kind: str) -> None:
    async def body(make: Make) -> None:
        async with make(*server.address) as client:
            await client.put("jobs", b"a")
            held = await client.open("jobs")
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                in_thread = threading.Thread(
                    target=lambda: anyio.run(of_child, client, writer, backend=kind), daemon=True
                )
                in_thread.start()
                in_thread.join(60)
                os._exit(0)
            await anyio.to_thread.run_sync(os.waitpid, child, 0)
            assert os.read(reader, 1000).startswith(b"not done: this process was forked after the client had connected")
            os.close(reader)
            os.close(writer)
            await client.confirm(held)
            assert await client.version()

    async def of_child(client: Any, writer: int) -> None:
        try:
            await client.put("jobs", b"never")
        except ConnectionLost as lost:
            os.write(writer, f"{lost.outcome.value}: {lost}".encode())
        await client.close()

    play(kind, body)
    assert drain(server.address, "jobs") == []


@each_kind
def test_a_client_that_is_closed_gives_its_items_back_though_a_fork_has_its_descriptor(
    server: Server, kind: str
) -> None:
    async def body(make: Make) -> None:
        client = make(*server.address)
        await client.put("jobs", b"a")
        assert await client.open("jobs") is not None
        inner = client.blocking if kind == "blocking" else client
        copy = os.dup(descriptor_of(inner._connection.transport))
        await client.close()
        async with make(*server.address) as other:
            assert (await other.get("jobs", wait_s=20)).data == b"a"
        os.close(copy)

    play(kind, body)


def descriptor_of(transport: Any) -> int:
    """Return the descriptor of a connection's socket."""
    if hasattr(transport, "_sock"):
        return int(transport._sock.fileno())
    return int(transport._transport.get_extra_info("socket").fileno())


@each_loop
@pytest.mark.parametrize("call", CALLS)
def test_a_late_answer_after_a_cancellation_is_nobodys(call: str, kind: str) -> None:
    async def body(make: Make) -> None:
        client = make(*server.address)
        async with anyio.create_task_group() as tasks:
            with anyio.CancelScope() as scope:
                tasks.start_soon(cancel_when_heard, scope)
                await CALLS[call](client)
        assert scope.cancelled_caught
        release.set()
        with pytest.raises(ConnectionLost, match="cut off") as lost:
            await client.version()
        assert lost.value.outcome is Outcome.NOT_DONE

    async def cancel_when_heard(scope: anyio.CancelScope) -> None:
        while not server.heard:
            await anyio.lowlevel.checkpoint()
        scope.cancel()

    release = threading.Event()
    with playing((b"VERSION 1\r\n", release)) as server:
        play(kind, body)


@pytest.mark.parametrize(("first_wait_s", "early_s", "late_s"), [(0, 49, 51), (100, 49, 51)])
def test_on_trio_each_reply_has_its_own_deadline(first_wait_s: float, early_s: float, late_s: float) -> None:
    """The alarm of the first reply, at 30 s or at 130 s, is neither that of the second one nor instead of it."""

    async def whole() -> None:
        async with staniel.client.aio.Client(*server.address, answer_timeout_s=30) as client:
            assert await client.peek("q", wait_s=first_wait_s) is None
            clock.jump(20)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(silent, client)
                while len(server.heard) < 2:
                    await trio.lowlevel.checkpoint()
                for moment in (31, early_s):
                    clock.jump(moment - trio.current_time() + began_s)
                    await trio.testing.wait_all_tasks_blocked(0.01)
                    assert not told
                clock.jump(late_s - trio.current_time() + began_s)
                await trio.testing.wait_all_tasks_blocked(0.01)
                nursery.cancel_scope.cancel()
            assert told == ["no answer for 30 s"]

    async def silent(client: Any) -> None:
        with pytest.raises(ConnectionLost) as lost:
            await client.version()
        told.append(str(lost.value))

    told: list[str] = []
    clock = trio.testing.MockClock()
    began_s = clock.current_time()
    with playing(b"END\r\n", None) as server:
        trio.run(whole, clock=clock)


STEPS = 60
WORKS = ("put", "put_many", "get", "reserve", "by hand", "next_items", "monitor", "several: get", "several: monitor")


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("how", WORKS)
def test_asyncio_may_cancel_at_any_step(server: Server, how: str, native: bool) -> None:
    async def whole() -> None:
        for steps in range(STEPS):
            await one_cancellation(server, how, steps, native)

    asyncio.run(whole())


async def one_cancellation(server: Server, how: str, steps: int, native: bool) -> None:
    """Cancel work after so many steps of the loop. What the client then hears is its own answer, or nothing."""
    queue = f"{how.replace(': ', '-').replace(' ', '-')}-{native}-{steps}"
    async with clients(server, how) as client:
        await client.put(queue, b"a")
        await cancel_on_asyncio(lambda: worked(client, how, queue), steps, native)
        await is_in_step(client)
    assert drain(server.address, queue) in left_by(how)


def clients(server: Server, how: str) -> Any:
    if how.startswith("several"):
        return staniel.client.aio.MultiClient([server.address])
    return staniel.client.aio.Client(*server.address)


def left_by(how: str) -> list[list[bytes]]:
    """Return what may be in the queue after work that was cut off: nothing is lost but by its confirm."""
    if how == "put_many":
        return [[b"a"], [b"a", b"b"], [b"a", b"b", b"c"]]
    return [[b"a"], [b"a", b"b"]] if how == "put" else [[], [b"a"]]


async def worked(client: Any, how: str, queue: str) -> None:
    if how == "put":
        await client.put(queue, b"b")
    elif how == "put_many":
        await client.put_many(queue, [b"b", b"c"])
    elif how.endswith("get"):
        await client.get(queue)
    elif how.endswith("monitor"):
        async with client.monitor(queue, wait_s=1, max_items=1) as items:
            async for _ in items:
                await anyio.lowlevel.checkpoint()
    elif how == "next_items":
        batch = await client.next_items(queue, 2)
        await client.next_items(queue, 1, confirm=batch.items)
    elif how == "reserve":
        async with client.reserve(queue):
            await anyio.lowlevel.checkpoint()
    else:
        taken = await client.open(queue)
        await client.extend(taken)
        await client.confirm(taken)


async def is_in_step(client: Any) -> None:
    if isinstance(client, staniel.client.aio.MultiClient):  # it has connected again where that was needed
        assert [version.count(".") > 0 for version in (await client.version()).values()] == [True]
        assert await client.get("nothing") is None
    elif client._connection.why:
        with pytest.raises(ConnectionLost) as lost:
            await client.version()
        assert lost.value.outcome is Outcome.NOT_DONE
    else:
        assert "." in await client.version()
        assert await client.get("nothing") is None
        assert "version" in await client.stats()


@pytest.mark.parametrize("how", WORKS)
def test_trio_may_cancel_at_any_checkpoint(server: Server, how: str) -> None:
    async def whole() -> None:
        for steps in range(STEPS):
            queue = f"{how.replace(': ', '-').replace(' ', '-')}-{steps}"
            await one_cancellation_of_trio(server, queue, how, steps)

    trio.run(whole)


async def one_cancellation_of_trio(server: Server, queue: str, how: str, steps: int) -> None:
    async with clients(server, how) as client:
        await client.put(queue, b"a")
        await cancel_on_trio(lambda: worked(client, how, queue), steps)
        await is_in_step(client)
    assert drain(server.address, queue) in left_by(how)
