"""The blocking client and the one on anyio against a real server: what a program sees, and where its items are then."""

from __future__ import annotations

import ssl
from array import array
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from staniel.client import ConnectionLost, Full, History, NotAllStored, NotOpen, Outcome, Refused
from tests.client.kinds import each_kind, play
from tests.server.admin.asking import Operator
from tests.support.guarded import PASSWORD, TOKEN, guarded
from tests.support.process import Server, running
from tests.support.wire import drain

Make = Callable[..., Any]


@each_kind
def test_items_come_back_in_order_with_flags_and_rising_ids(server: Server, kind: str) -> None:
    async def body(make: Make) -> None:
        async with make(*server.address) as client:
            await client.put("jobs", b"a\r\nEND\r\n", flags=7)
            await client.put("jobs", b"")
            assert (await client.peek("jobs")).data == b"a\r\nEND\r\n"
            first, second = await client.get("jobs"), await client.get("jobs")
            assert (first.data, first.flags, second.data) == (b"a\r\nEND\r\n", 7, b"")
            assert first.id < second.id
            assert await client.get("jobs") is None

    play(kind, body)


@each_kind
def test_data_of_wider_elements_is_stored_whole_and_never_read_as_requests(server: Server, kind: str) -> None:
    text = b"xxxx\r\nset other 0 0 2\r\nhi\r\n" + b" " * 5
    assert len(text) % 8 == 0

    async def body(make: Make) -> None:
        async with make(*server.address) as client:
            wide = memoryview(text).cast("Q")
            await client.put("jobs", wide)
            await client.put("jobs", wide, ttl_s=60)
            await client.put("jobs", wide, key="k")
            await client.put_many("jobs", [wide, bytearray(text), array("Q", text)])
            for wrong in ("text", 5, None):
                with pytest.raises(TypeError):
                    await client.put("jobs", wrong)
            with pytest.raises(TypeError):
                await client.put_many("jobs", [b"first", "text"])
            assert await client.peek("other") is None

    play(kind, body)
    assert drain(server.address, "jobs") == [text] * 6


@each_kind
def test_the_first_of_several_queues_that_has_an_item_is_read(server: Server, kind: str) -> None:
    async def body(make: Make) -> None:
        async with make(*server.address) as client, make(*server.address) as other:
            await client.put("mail", b"m")
            await client.put("urgent", b"u")
            queues = ("urgent", "mail", "reports")
            assert (await client.peek(queues)).data == b"u"
            got = [await client.get(queues) for _ in range(3)]
            assert [each and (each.queue, each.data) for each in got] == [("urgent", b"u"), ("mail", b"m"), None]
            await client.put_many("mail", [b"1", b"2"])
            async with client.reserve(queues, wait_s=5) as item:
                assert (item.queue, item.data) == ("mail", b"1")
            with suppress(ZeroDivisionError):
                async with client.reserve(queues) as item:
                    raise ZeroDivisionError
            second = await other.open(queues)
            assert second == item and second.data == b"2"
            await other.extend(second)
            await other.confirm(second)
            await client.put("reports", b"r")
            batch = await client.next_items(["urgent", "reports"], 3, wait_s=1)
            assert [each.queue for each in batch.items] == ["reports"]
            assert (await client.next_items(queues, 0, confirm=batch.items)).not_open == []
            assert (await client.get(["urgent"])) is None and client.is_reusable
            for wrong in ([], ["a", "a"], ["a", "b/c"], ["a", "b,c"], ["a", ""], [str(n) for n in range(65)]):
                with pytest.raises(ValueError, match=r"queue|word"):
                    await client.get(wrong)
            with pytest.raises(Refused, match="cannot hold"):
                await client.get(["a", "b.c"])
            assert await client.version()

    play(kind, body)


@each_kind
def test_a_client_connects_with_its_first_request(server: Server, kind: str) -> None:
    async def body(make: Make) -> None:
        client = make(*server.address)
        await client.put_many("jobs", [b"%d" % number for number in range(1300)])
        await client.close()
        with pytest.raises(ConnectionLost, match="closed by this program") as lost:
            await client.put("jobs", b"x")
        assert lost.value.outcome is Outcome.NOT_DONE

    play(kind, body)
    assert drain(server.address, "jobs") == [b"%d" % number for number in range(1300)]


@each_kind
def test_several_items_of_one_queue_end_in_any_order(server: Server, kind: str) -> None:
    async def body(make: Make) -> None:
        async with make(*server.address) as client:
            await client.put_many("jobs", [b"a", b"b", b"c", b"d"])
            items = [await client.open("jobs") for _ in range(4)]
            await client.confirm(items[2])
            await client.abort(items[0])
            await client.extend(items[3])
            await client.confirm(items[3])
            for end in (client.confirm, client.abort, client.extend):
                with pytest.raises(NotOpen, match="this client has no item") as raised:
                    await end(items[2])
                assert raised.value.item is items[2]

    play(kind, body)
    assert drain(server.address, "jobs") == [b"b", b"a"]  # each at the head, b when its client left


@each_kind
def test_items_are_confirmed_and_the_next_ones_opened_together(server: Server, kind: str) -> None:
    async def body(make: Make) -> None:
        async with make(*server.address) as client:
            await client.put_many("jobs", [b"a", b"b", b"c", b"d"])
            items, not_open = await client.next_items("jobs", 3)
            assert ([item.data for item in items], not_open) == ([b"a", b"b", b"c"], [])
            items, not_open = await client.next_items("jobs", 9, confirm=[items[2], items[0]])
            assert ([item.data for item in items], not_open) == ([b"d"], [])
            assert await client.next_items("jobs", 1, wait_s=0.01) == ([], [])
            assert await client.next_items("jobs", 0, confirm=items) == ([], [])
            assert await client.next_items("jobs", 1, confirm=items) == ([], items)

    play(kind, body)
    assert drain(server.address, "jobs") == [b"b"]


@each_kind
@pytest.mark.parametrize("is_known", [False, True])
def test_a_confirm_of_an_item_that_timed_out_is_told_beside_the_next_items(
    tmp_path: Path, kind: str, is_known: bool
) -> None:
    async def body(make: Make) -> None:
        async with make(*server.address) as client, make(*server.address) as other:
            await client.put_many("jobs", [b"a", b"b"])
            (item,), _ = await client.next_items("jobs", 1)
            taken = {(await other.get("jobs", wait_s=60)).data for _ in range(2)}
            assert taken == {b"a", b"b"}
            if is_known:
                with pytest.raises(NotOpen):
                    await client.extend(item)
            assert await client.next_items("jobs", 1, confirm=[item]) == ([], [item])

    with running(tmp_path, config='[queues.jobs]\nopen_transaction_timeout = "100ms"\n') as server:
        play(kind, body)


@each_kind
def test_what_is_refused_beside_the_next_items_is_told_if_there_are_none(tmp_path: Path, kind: str) -> None:
    async def body(make: Make) -> None:
        async with make(*server.address) as client:
            await client.put_many("jobs", [b"a", b"b", b"c"])
            items, _ = await client.next_items("jobs", 3)
            assert [item.data for item in items] == [b"a", b"b"]
            with pytest.raises(Refused, match="are open on this connection"):
                await client.next_items("jobs", 1)
            await client.next_items("jobs", 0, confirm=items)

    with running(tmp_path, config="[server]\nmax_open_transactions = 2\n") as server:
        play(kind, body)
        assert drain(server.address, "jobs") == [b"c"]


@each_kind
def test_blocks_of_one_queue_stand_in_each_other(server: Server, kind: str) -> None:
    async def body(make: Make) -> None:
        async with make(*server.address) as client:
            await client.put_many("jobs", [b"a", b"b", b"c"])
            async with client.reserve("jobs") as outer:
                with suppress(ZeroDivisionError):
                    async with client.reserve("jobs") as inner:
                        assert (outer.data, inner.data) == (b"a", b"b")
                        await client.put("results", b"half")
                        raise ZeroDivisionError
            async with client.reserve("empty") as nothing:
                assert nothing is None
            async with client.reserve("jobs") as again:
                assert again.data == b"b"
                await client.abort(again)

    play(kind, body)
    assert drain(server.address, "jobs") == [b"b", b"c"]


@each_kind
def test_an_item_that_has_timed_out_is_not_confirmed(tmp_path: Path, kind: str) -> None:
    async def body(make: Make) -> None:
        async with make(*server.address) as client, make(*server.address) as other:
            await client.put("jobs", b"a")
            with pytest.raises(NotOpen, match="was no longer open"):
                async with client.reserve("jobs"):
                    assert await other.get("jobs", wait_s=20) is not None
            item = await client.open("jobs")
            assert item is None

    with running(tmp_path, config='[queues.jobs]\nopen_transaction_timeout = "100ms"\n') as server:
        play(kind, body)


@each_kind
def test_a_full_queue_and_a_wrong_name_store_nothing_and_say_so(tmp_path: Path, kind: str) -> None:
    async def body(make: Make) -> None:
        async with make(*server.address) as client:
            with pytest.raises(NotAllStored) as some:
                await client.put_many("jobs", [b"0", b"1", b"2", b"3"])
            assert (list(some.value.refused), some.value.outcome) == ([2, 3], Outcome.PARTLY_DONE)
            with pytest.raises(Full) as full:
                await client.put("jobs", b"4")
            with pytest.raises(Refused, match="a queue name cannot hold") as refused:
                await client.put("a~b", b"")
            assert full.value.outcome is refused.value.outcome is Outcome.NOT_DONE
            for wrong in (client.put("a b", b""), client.get("q", wait_s=-1), client.put("q", b"", ttl_s=0)):
                with pytest.raises(ValueError):
                    await wrong

    with running(tmp_path, config="[queues.jobs]\nmax_items = 2\n") as server:
        play(kind, body)
        assert drain(server.address, "jobs") == [b"0", b"1"]


@each_kind
def test_a_monitor_confirms_what_its_loop_was_given(server: Server, kind: str) -> None:
    async def body(make: Make) -> None:
        async with make(*server.address) as client:
            await client.put_many("jobs", [b"a", b"b", b"c", b"d"])
            async with client.monitor("jobs", wait_s=1, max_items=2) as items:
                assert [item.data async for item in items] == [b"a", b"b"]
            held = await client.open("jobs")
            with pytest.raises(RuntimeError, match="has an item of jobs open"):
                async with client.monitor("jobs", wait_s=1):
                    pass
            await client.abort(held)
            async with client.monitor("jobs", wait_s=1, max_items=2) as items:
                async for item in items:
                    assert item.data == b"c"
                    break

    play(kind, body)
    assert drain(server.address, "jobs") == [b"d"]


@each_kind
def test_flush_delete_stats_and_version(server: Server, kind: str) -> None:
    async def body(make: Make) -> None:
        async with make(*server.address) as client:
            await client.put("jobs", b"a")
            await client.flush("jobs")
            assert await client.get("jobs") is None
            assert (await client.delete("jobs"), await client.delete("jobs")) == (True, False)
            assert (await client.stats())["version"] == await client.version()

    play(kind, body)


@each_kind
def test_the_history_of_an_open_item_is_told(tmp_path: Path, kind: str) -> None:
    async def body(make: Make) -> None:
        async with make(*server.address) as client:
            await client.put("jobs", b"poison")
            for number in (1, 2):
                item = await client.open("jobs")
                assert (await client.history(item)) == History(number)
                await client.abort(item)
            dead = await client.open("dead", wait_s=5)
            told = await client.history(dead)
            assert told.deliveries == 1 and told.past is not None
            assert (told.past.origin, told.past.deliveries, told.past.times) == ("jobs", 2, 1)
            await client.confirm(dead)
            with pytest.raises(NotOpen):
                await client.history(dead)

    with running(tmp_path, config='queues.jobs.max_deliveries = 2\nqueues.jobs.dead_letter_queue = "dead"\n') as server:
        play(kind, body)


@each_kind
def test_operators_see_the_name_of_a_client(tmp_path: Path, kind: str) -> None:
    async def body(make: Make) -> None:
        async with make(*server.address, name="mailer-7") as client:
            await client.put("jobs", b"x")
            names = {each["protocol"]: each["name"] for each in Operator(server.second_port).get("/api/clients")}
            assert names == {"memcache": "mailer-7", "admin": ""}
        for name in ("two words", "caf\u00e9", "n" * 65, "a\nb"):
            with pytest.raises(ValueError, match="one word"):
                make(*server.address, name=name)

    with running(tmp_path, config="admin.port = 0\n") as server:
        play(kind, body)


@each_kind
def test_the_kestrel_dialect_has_one_open_item_of_a_queue(tmp_path: Path, kind: str) -> None:
    async def body(make: Make) -> None:
        async with make(*server.address, name="old-worker") as client:
            await client.put_many("jobs", [b"a", b"b"])
            item = await client.open("jobs")
            assert item.id is None
            with pytest.raises(Refused, match="no ids"):
                await client.history(item)
            with pytest.raises(RuntimeError, match="no ids"):
                await client.get("jobs")
            with pytest.raises(Refused, match="no ids"):
                await client.extend(item)
            await client.abort(item)
            assert (await client.get("jobs")).data == b"a"

    with running(tmp_path, config='[memcache]\ndialect = "kestrel"\n') as server:
        play(kind, body)
        assert drain(server.address, "jobs") == [b"b"]


@each_kind
def test_users_log_in_under_tls_and_strangers_are_told_why(tmp_path: Path, kind: str) -> None:
    async def body(make: Make) -> None:
        place = place_of_test
        trusted = ssl.create_default_context(cafile=str(place.ca))
        for secret in (PASSWORD, TOKEN):
            secure = ("127.0.0.1", place.server.second_port)
            async with make(*secure, tls=trusted, user="analyst", secret=secret) as client:
                await client.put("jobs", bytes(range(256)) * 4000)
                assert len((await client.get("jobs")).data) == 256 * 4000
        with pytest.raises(Refused, match="authentication failure"):
            await make(*place.server.address, user="analyst", secret="wrong").version()
        with pytest.raises(ConnectionLost, match="certificate verify failed") as lost:
            await make(*secure, tls=ssl.create_default_context()).version()
        assert lost.value.outcome is Outcome.NOT_DONE
        with pytest.raises(ConnectionLost):
            await make(*place.server.address, tls=trusted).version()
        with pytest.raises(ValueError, match="expected"):
            make(*place.server.address, user="a b", secret="x")

    with guarded(tmp_path, "memcached") as place_of_test:
        play(kind, body)


@each_kind
def test_a_port_where_nothing_listens_is_named(kind: str) -> None:
    async def body(make: Make) -> None:
        with pytest.raises(ConnectionLost, match=r"no connection to 127\.0\.0\.1:1: ") as lost:
            await make("127.0.0.1", 1).put("jobs", b"a")
        assert lost.value.outcome is Outcome.NOT_DONE

    play(kind, body)


KILLED: dict[str, Callable[[Any, Callable[[], None]], Any]] = {}


def step(body: Callable[[Any, Callable[[], None]], Any]) -> Callable[[Any, Callable[[], None]], Any]:
    KILLED[body.__name__] = body
    return body


@step
async def before_a_put(client: Any, kill: Callable[[], None]) -> None:
    kill()
    await client.put("jobs", b"b")


@step
async def before_a_get(client: Any, kill: Callable[[], None]) -> None:
    kill()
    await client.get("jobs")


@step
async def in_a_reservation(client: Any, kill: Callable[[], None]) -> None:
    async with client.reserve("jobs"):
        kill()


@step
async def in_a_reservation_that_fails(client: Any, kill: Callable[[], None]) -> None:
    with suppress(ZeroDivisionError):
        async with client.reserve("jobs"):
            kill()
            raise ZeroDivisionError
    await client.version()


@step
async def between_open_and_confirm(client: Any, kill: Callable[[], None]) -> None:
    item = await client.open("jobs")
    kill()
    await client.confirm(item)


@step
async def between_open_and_next(client: Any, kill: Callable[[], None]) -> None:
    items, _ = await client.next_items("jobs", 1)
    kill()
    await client.next_items("jobs", 1, confirm=items)


@step
async def between_open_and_abort(client: Any, kill: Callable[[], None]) -> None:
    item = await client.open("jobs")
    kill()
    await client.abort(item)


@step
async def between_open_and_extend(client: Any, kill: Callable[[], None]) -> None:
    item = await client.open("jobs")
    kill()
    await client.extend(item)


@step
async def in_a_monitor(client: Any, kill: Callable[[], None]) -> None:
    async with client.monitor("jobs", wait_s=20) as items:
        async for _ in items:
            kill()


@each_kind
@pytest.mark.parametrize("where", KILLED)
def test_the_item_is_back_after_the_server_was_killed(server: Server, where: str, kind: str) -> None:
    async def body(make: Make) -> None:
        client = make(*server.address)
        await client.put("jobs", b"a")
        with pytest.raises(ConnectionLost) as lost:
            await KILLED[where](client, server.restart)
        assert lost.value.outcome in (Outcome.UNKNOWN, Outcome.NOT_DONE)
        if where in ("in_a_reservation", "between_open_and_confirm"):
            assert lost.value.item.data == b"a"
        with pytest.raises(ConnectionLost) as later:
            await client.version()
        assert later.value.outcome is Outcome.NOT_DONE
        await client.close()

    play(kind, body)
    assert drain(server.address, "jobs") == [b"a"]
