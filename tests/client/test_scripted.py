"""A client on trio against a server that plays a script: accidents that a real one does not have on demand."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import trio
import trio.testing

from staniel.client import ConnectionLost, NotAllStored, Refused
from staniel.client.aio import Client
from staniel.client.sockets import no_answer, took_nothing
from staniel.protocol.limits import Limits
from staniel.protocol.memcache.item_requests import Get, Set
from staniel.protocol.memcache.parser import MemcacheParser
from staniel.protocol.memcache.requests import AbortItem, Confirm, Dialect, Monitor, Request

HANG_UP = b""
SILENCE = None
Script = list[bytes | None]


class MemoryTransport:
    """The client's end of a pair of streams in memory, so that a test may step the clock."""

    is_quiet = True

    def has_unasked(self) -> bool:
        return False

    def note_unused(self) -> None:
        return

    def __init__(self, stream: trio.StapledStream[trio.abc.SendStream, trio.abc.ReceiveStream]) -> None:
        self._stream = stream

    async def send(self, data: bytes, timeout_s: float) -> None:
        with trio.move_on_after(timeout_s):
            await self._stream.send_all(data)
            return
        raise took_nothing(timeout_s)

    async def receive(self, timeout_s: float) -> bytes:
        with trio.move_on_after(timeout_s):
            return bytes(await self._stream.receive_some())
        raise no_answer(timeout_s)

    async def exchange(self, data: bytes, send_timeout_s: float, timeout_s: float) -> bytes:
        await self.send(data, send_timeout_s)
        return await self.receive(timeout_s)

    async def close(self) -> None:
        await trio.aclose_forcefully(self._stream)


class Scripted:
    """A client and what its server read. Each request is answered with the script's next line."""

    def __init__(self, nursery: trio.Nursery, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
        mine, self.stream = trio.testing.memory_stream_pair()

        async def connected(*where: object) -> MemoryTransport:
            return MemoryTransport(mine)

        monkeypatch.setattr("staniel.client.aio.connection.open_transport", connected)
        self.client = Client(answer_timeout_s=30)
        self.requests: list[Request] = []
        self.closed = trio.Event()
        self._script = iter(script)
        nursery.start_soon(self._serve)

    async def _serve(self) -> None:
        parser = MemcacheParser(Dialect.MEMCACHED, Limits())
        async for data in self.stream:
            for request in parser.feed(bytes(data)):
                self.requests.append(request)
                await self._answer(next(self._script, SILENCE))
        self.closed.set()

    async def hung_up_on(self) -> None:
        """Wait until the client has closed its end."""
        with trio.fail_after(30):
            await self.closed.wait()

    async def _answer(self, line: bytes | None) -> None:
        if line == HANG_UP:
            await self.stream.send_stream.aclose()
        elif line is not SILENCE:
            await self.stream.send_all(line)


Make = Callable[[Script], Scripted]


@pytest.fixture
def scripted(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> Make:
    return lambda script: Scripted(nursery, script, monkeypatch)


def item(data: bytes, key: bytes) -> bytes:
    return b"VALUE %b 0 %d 9\r\n%b\r\nEND\r\n" % (key, len(data), data)


async def test_a_put_without_an_answer_leaves_the_connection_closed_and_what_is_known(scripted: Make) -> None:
    server = scripted([b"STORED\r\n", b"NOT_STORED\r\n", HANG_UP])
    with pytest.raises(ConnectionLost, match="server closed") as error:
        await server.client.put_many("q", [b"a", b"b", b"c"])
    assert (error.value.answered, list(error.value.refused)) == (2, [1])
    with pytest.raises(ConnectionLost, match="server closed"):
        await server.client.put("q", b"d")
    await server.hung_up_on()


async def test_a_cancelled_put_closes_the_connection(scripted: Make, nursery: trio.Nursery) -> None:
    server = scripted([SILENCE])
    with trio.CancelScope() as scope:
        nursery.start_soon(cancel_once_idle, scope)
        await server.client.put("q", b"a")
    assert scope.cancelled_caught
    await server.hung_up_on()
    with pytest.raises(ConnectionLost, match="cut off"):
        await server.client.put("q", b"b")


async def cancel_once_idle(scope: trio.CancelScope) -> None:
    await trio.testing.wait_all_tasks_blocked()
    scope.cancel()


async def test_a_put_whose_answer_is_there_is_not_cancelled(scripted: Make) -> None:
    server = scripted([b"STORED\r\n", b"VERSION 1\r\n"])
    await server.client.put("q", b"a")
    assert await server.client.version() == "1"


async def test_a_silent_server_counts_as_gone(scripted: Make, autojump_clock: trio.testing.MockClock) -> None:
    server = scripted([SILENCE])
    with pytest.raises(ConnectionLost, match="no answer for 90 s"):
        await server.client.get("q", wait_s=60)
    assert trio.current_time() == pytest.approx(90, abs=1)


async def test_a_close_without_an_answer_names_the_item(scripted: Make, autojump_clock: trio.testing.MockClock) -> None:
    server = scripted([item(b"a", b"q/open"), SILENCE])
    with pytest.raises(ConnectionLost, match="no answer for") as error:
        await server.client.get("q")
    assert error.value.item is not None and error.value.item.data == b"a"
    await server.hung_up_on()


async def test_a_cancelled_worker_is_not_held_up_by_a_server_that_does_not_answer_its_abort(
    scripted: Make, autojump_clock: trio.testing.MockClock
) -> None:
    server = scripted([item(b"a", b"q/open"), SILENCE])
    with trio.move_on_after(1) as scope:
        async with server.client.reserve("q"):
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert trio.current_time() == pytest.approx(6, abs=0.5)
    first, second = server.requests
    assert isinstance(first, Get) and first.key == b"q/open"
    assert isinstance(second, AbortItem) and (second.queue, second.id) == ("q", 9)
    await server.hung_up_on()


@pytest.mark.parametrize(("cancelled_s", "left_s"), [(1, 5), (7, 7), (60, 30)])
async def test_a_confirm_is_shielded_for_five_seconds_and_otherwise_waits_for_its_reply(
    scripted: Make, autojump_clock: trio.testing.MockClock, cancelled_s: float, left_s: float
) -> None:
    server = scripted([item(b"a", b"q/open"), SILENCE])
    taken = await server.client.open("q")
    assert taken is not None
    lost = None
    with trio.move_on_after(cancelled_s) as scope:
        try:
            await server.client.confirm(taken)
        except ConnectionLost as error:
            lost = error
    assert scope.cancelled_caught == (lost is None) == (cancelled_s <= left_s)
    assert lost is None or (str(lost), lost.item) == ("no answer for 30 s", taken)
    assert trio.current_time() == pytest.approx(left_s, abs=0.5)
    await server.hung_up_on()


async def test_an_answer_to_something_else_closes_the_connection(scripted: Make) -> None:
    server = scripted([b"DELETED\r\n"])
    with pytest.raises(ConnectionLost, match="out of step"):
        await server.client.put("q", b"a")
    await server.hung_up_on()


async def test_a_request_that_cannot_be_said_changes_nothing(scripted: Make) -> None:
    server = scripted([b"STORED\r\n"])
    with pytest.raises(ValueError):
        await server.client.put_many("a b", [b"a"])
    await server.client.put("q", b"a")


async def test_a_life_is_said_in_whole_seconds_and_a_long_one_as_a_date(scripted: Make) -> None:
    server = scripted([b"STORED\r\n"] * 2)
    before_ms = int(time.time() * 1000)
    await server.client.put("q", b"", ttl_s=0.001)
    await server.client.put("q", b"", ttl_s=10**7)
    short, long = server.requests
    assert short == Set("q", b"", ttl_ms=1000)
    assert isinstance(long, Set) and long.ttl_ms is None
    assert 0 <= long.expires_ms - 10**10 - before_ms < 60_000
    with pytest.raises(ValueError):
        await server.client.put("q", b"", ttl_s=0)


async def test_an_item_refused_by_the_server_stops_no_other(scripted: Make) -> None:
    server = scripted([b"CLIENT_ERROR object too large\r\n", b"STORED\r\n"])
    with pytest.raises(NotAllStored) as error:
        await server.client.put_many("q", [b"aaa", b"b"])
    assert [(index, str(why)) for index, why in error.value.refused.items()] == [(0, "CLIENT_ERROR object too large")]


async def test_a_monitor_confirms_what_its_loop_was_given(scripted: Make) -> None:
    server = scripted([item(b"a", b"q") + item(b"b", b"q") + b"END\r\n", b"END\r\n", b"VERSION 1\r\n"])
    async with server.client.monitor("q", wait_s=3, max_items=5) as items:
        assert [each.data async for each in items] == [b"a", b"b"]
    assert server.requests == [Monitor(b"q", "q", 3000, 5), Confirm("q", 2)]
    assert await server.client.version() == "1"


async def test_a_monitor_left_early_confirms_those_and_hands_the_rest_back(scripted: Make) -> None:
    server = scripted([item(b"a", b"q") + item(b"b", b"q") + b"END\r\n", b"END\r\n"])
    async with server.client.monitor("q", wait_s=3) as items:
        async for _ in items:
            break
    assert server.requests[1:] == [Confirm("q", 1)]
    await server.hung_up_on()


async def monitor_and(client: Client, work: Callable[[], object]) -> None:
    async with client.monitor("q", wait_s=3) as items:
        async for _ in items:
            work()


async def test_a_monitor_that_breaks_confirms_nothing(scripted: Make) -> None:
    server = scripted([item(b"a", b"q")])
    with pytest.raises(ZeroDivisionError):
        await monitor_and(server.client, lambda: 1 // 0)
    await server.hung_up_on()
    assert len(server.requests) == 1


async def test_an_empty_monitor_confirms_nothing(scripted: Make) -> None:
    server = scripted([b"END\r\n", b"VERSION 1\r\n"])
    async with server.client.monitor("q", wait_s=3) as items:
        assert [each async for each in items] == []
    assert await server.client.version() == "1"


@pytest.mark.parametrize("said", [b"CLIENT_ERROR monitor is not supported\r\n", item(b"a", b"q") + b"SERVER_ERROR\r\n"])
async def test_a_refused_monitor_raises_and_hands_everything_back(scripted: Make, said: bytes) -> None:
    server = scripted([said])
    with pytest.raises(Refused):
        await monitor_and(server.client, lambda: None)
    await server.hung_up_on()


async def test_a_refused_confirm_raises_and_closes(scripted: Make) -> None:
    server = scripted([item(b"a", b"q") + b"END\r\n", b"ERROR\r\n"])
    with pytest.raises(Refused, match="ERROR"):
        async with server.client.monitor("q", wait_s=3) as items:
            assert [each.data async for each in items] == [b"a"]
    await server.hung_up_on()


async def test_a_refused_close_gives_the_item_back(scripted: Make) -> None:
    server = scripted([item(b"a", b"q/open"), b"SERVER_ERROR disk\r\n"])
    with pytest.raises(Refused, match="SERVER_ERROR disk"):
        await server.client.get("q")
    await server.hung_up_on()
