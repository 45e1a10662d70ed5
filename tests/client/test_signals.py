"""An exception at any line of the client, as a signal's handler raises it: afterwards the client is in step or lost,
never busy for ever, and the server holds no item open that the client does not know.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import count
from types import FrameType
from typing import Any

import anyio
import pytest

import staniel.client.aio
from staniel.client import Client, ClusterPool, ConnectionLost, MultiClient, Pool
from staniel.client.blocking.transport import LOOK_AGAIN_S, Turn
from tests.client.item_server import ItemServer
from tests.client.kinds import each_loop
from tests.support.process import until

LOOPED = ("client/aio/client.py", "client/aio/connection.py")


class Late(Exception):
    """The exception of the handler."""


class Interrupting:
    """A block in which `Late` is raised once, before line number `at` of the files of `part`, or after that call from
    one of them: the interpreter runs a signal's handler when a function begins, and after each call of a C function.
    """

    def __init__(self, at: int, *parts: str, after_calls: bool = False) -> None:
        self.where = ""
        self._left = at
        self._parts = parts
        self._after_calls = after_calls

    def __enter__(self) -> Interrupting:
        sys.setprofile(self._called) if self._after_calls else sys.settrace(self._entered)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None) if self._after_calls else sys.settrace(None)

    def _is_ours(self, frame: FrameType) -> bool:
        return any(part in frame.f_code.co_filename for part in self._parts)

    def _called(self, frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "c_return") and self._is_ours(frame):
            self._count(frame)

    def _entered(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if self._is_ours(frame) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if event == "line" and text != "try:":  # which is no instruction that a signal can come before
            self._count(frame)
        return self._line

    def _count(self, frame: FrameType) -> None:
        self._left -= 1
        if self._left == 0:
            self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            raise Late


@pytest.fixture(scope="module")
def items() -> Iterator[ItemServer]:
    server = ItemServer()
    yield server
    server.close()


def reserved(client: Any) -> None:
    with client.reserve("q"):
        pass


def aborted(client: Any) -> None:
    client.abort(client.open("q"))


def confirmed(client: Any) -> None:
    client.confirm(client.open("q"))


def taken_together(client: Any) -> None:
    client.next_items("q", 1, confirm=client.next_items("q", 2).items)


def monitored(client: Any) -> None:
    with client.monitor("q", wait_s=0, max_items=2) as monitored_items:
        for _ in monitored_items:
            pass


CALLS: dict[str, Callable[[Any], object]] = {
    "put": lambda client: client.put("q", b"a"),
    "put_many": lambda client: client.put_many("q", [b"a", b"b"]),
    "get": lambda client: client.get("q"),
    "peek": lambda client: client.peek("q"),
    "open": lambda client: client.open("q"),
    "version": lambda client: client.version(),
    "reserve": reserved,
    "abort": aborted,
    "confirm": confirmed,
    "next_items": taken_together,
    "monitor": monitored,
}
each_way = pytest.mark.parametrize("after_calls", [False, True], ids=["lines", "calls"])


def interrupted(work: Callable[[], object], at: int, after_calls: bool) -> str:
    """Do work that is interrupted, and return where; "" if it was over before."""
    interrupting = Interrupting(at, "client/blocking", after_calls=after_calls)
    try:
        with interrupting:
            work()
    except Late:
        pass
    return interrupting.where


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Say at which line the exception was, if a check fails."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"interrupted at {where}")
        raise


@each_way
@pytest.mark.parametrize("call", CALLS)
def test_after_an_exception_a_client_is_in_step_or_lost(items: ItemServer, call: str, after_calls: bool) -> None:
    for at in count(1):
        client = Client(*items.address)
        client.connect()
        transport: Any = client._connection.transport
        mine = transport._sock.getsockname()
        where = interrupted(lambda: CALLS[call](client), at, after_calls)  # noqa: B023 - called at once
        with explained(where):
            try:
                assert client.version() == "1"
                assert items.open[mine] <= {number for _, number in client._open}
            except ConnectionLost:
                assert until(lambda: mine not in items.open)  # noqa: B023
                client.close()
                assert transport._sock.fileno() == -1
        client.close()
        if not where:
            return


@each_way
@pytest.mark.parametrize("call", ["put", "get", "open", "reserve", "confirm", "next_items", "monitor", "version"])
def test_after_an_exception_a_client_of_several_servers_goes_on(
    items: ItemServer, call: str, after_calls: bool
) -> None:
    for at in count(1):
        with MultiClient([items.address]) as client:
            client.version()
            where = interrupted(lambda: CALLS[call](client), at, after_calls)
            with explained(where):
                assert client.version() == {items.address: "1"}
                inner = client._clients[items.address]
                transport: Any = inner._connection.transport
                known = {number for _, number in inner._open}
                assert items.open[transport._sock.getsockname()] <= known
        assert until(lambda: not items.open)
        if not where:
            return


@each_way
@pytest.mark.parametrize("cluster", [False, True])
def test_an_exception_takes_no_place_of_a_pool(items: ItemServer, cluster: bool, after_calls: bool) -> None:
    def work() -> None:
        with pool.client() as client:
            client.put("q", b"a")

    for at in count(1):
        pool: Any = ClusterPool([items.address], max_clients=1) if cluster else Pool(*items.address, max_clients=1)
        with pool:
            where = interrupted(work, at, after_calls)
            with explained(where):
                with pool.client(wait_s=0) as client:
                    client.put("q", b"a")
                assert pool._places.free == 1
        assert until(lambda: not items.open)
        if not where:
            return


@each_way
def test_an_exception_loses_no_idle_client_of_a_pool(items: ItemServer, after_calls: bool) -> None:
    def work() -> None:
        with pool.client() as client:
            client.put("q", b"a")

    for at in count(1):
        with Pool(*items.address, max_clients=1) as pool:
            with pool.client() as idle:
                idle.version()
            where = interrupted(work, at, after_calls)
            with explained(where):
                assert idle in pool._idle or idle.is_lost
        assert idle.is_lost
        if not where:
            return


def test_an_exception_while_it_connects_leaves_a_client_that_can_connect_or_is_lost(items: ItemServer) -> None:
    for at in count(1):
        client = Client(*items.address, name="mine")
        where = interrupted(client.connect, at, False)
        with explained(where):
            try:
                assert client.version() == "1"
            except ConnectionLost:
                assert client.is_lost
            client.close()
            assert until(lambda: not items.open)
        if not where:
            return


def address_of(client: Any) -> tuple[str, int]:
    """The client's own address. The server may learn late of a connection that was cut off before this one."""
    transport = client._connection.transport
    sock = transport._sock if hasattr(transport, "_sock") else transport._transport.get_extra_info("socket")
    address: tuple[str, int] = sock.getsockname()
    return address


AIO_CALLS: dict[str, Callable[[Any], Awaitable[object]]] = {
    "put": lambda client: client.put("q", b"a"),
    "get": lambda client: client.get("q"),
    "open": lambda client: client.open("q"),
    "next_items": lambda client: client.next_items("q", 2),
    "version": lambda client: client.version(),
}


@each_loop
@pytest.mark.parametrize("call", AIO_CALLS)
def test_after_an_exception_a_client_of_a_loop_is_in_step_or_lost(items: ItemServer, call: str, kind: str) -> None:
    async def whole() -> None:
        for at in count(1):
            async with staniel.client.aio.Client(*items.address) as client:
                interrupting = Interrupting(at, *LOOPED)
                try:
                    with interrupting:
                        await AIO_CALLS[call](client)
                except Late:
                    pass
                with explained(interrupting.where):
                    try:
                        assert await client.version() == "1"
                        assert items.open[address_of(client)] <= {number for _, number in client._open}
                    except ConnectionLost:
                        pass
            assert until(lambda: not items.open)
            if not interrupting.where:
                return

    anyio.run(whole, backend=kind)


def test_a_handlers_time_out_is_not_taken_for_the_servers(items: ItemServer) -> None:
    class Handled:
        """A wait that a signal's handler ends."""

        def __call__(self, timeout_ms: float) -> list[int]:
            if timeout_ms:
                raise TimeoutError("of the handler")
            return []

    with Client(*items.address) as client:
        transport: Any = client._connection.transport
        transport._wait = Handled()
        with pytest.raises(TimeoutError, match="of the handler"):
            client.get("q")
        assert client.is_lost
    assert until(lambda: not items.open)


def test_a_thread_gets_a_turn_whose_end_was_cut_off_before_it_woke_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_off() -> None:
        raise Late

    turn, mine, other = Turn(), object(), object()
    assert turn.acquire(mine) and LOOK_AGAIN_S < 60

    def end_while_it_waits(left_s: float) -> bool:
        monkeypatch.setattr(turn._waiting, "ring", cut_off)
        with pytest.raises(Late):
            turn.end(mine)
        return False

    class Bell:
        """A lock on which the other thread waits in vain."""

        def acquire(self, timeout: float = -1) -> bool:
            return end_while_it_waits(timeout) if timeout > 0 else True

    monkeypatch.setattr("threading.Lock", Bell)
    assert turn.wait(other, 60)
    assert turn.is_held_by(other)
