"""`get a/open/also=b,c`: which queue answers, what ends the wait, what refuses it, and that no item is taken twice."""

from __future__ import annotations

import pytest

from staniel.broker import protocols
from staniel.broker.admin import views
from staniel.broker.session import SessionState
from staniel.protocol.memcache.requests import Dialect
from tests.support.world import Client, World

NO_JOURNAL = "default.keep_journal = false"
WAIT = "get a/t=1000/open/also=b,c"


def waiters(world: World) -> list[str]:
    """The names of the queues that clients wait at, each as often as that."""
    at = {queue.name: len(queue.waiters) for queue in world.broker.queues.all()}
    for name, count in world.broker.queues.waiters_by_name:
        at[name] = at.get(name, 0) + count
    return sorted(name for name, count in at.items() for _ in range(count))


def asked(client: Client, *lines: str) -> str:
    client.says(*lines)
    while client.world.sync():
        client.world.turn()
    return client.hears()


def filled(world: World, *names: str) -> None:
    for name in names:
        world.client().puts(f"x{name}", name)


def test_the_first_queue_named_that_has_an_item_answers_under_its_own_name() -> None:
    world = World(NO_JOURNAL)
    filled(world, "b", "b", "a", "c")
    client = world.client()
    assert [asked(client, "get c/also=a,b") for _ in range(5)] == [
        "VALUE c 0 2 xc END",
        "VALUE a 0 2 xa END",
        "VALUE b 0 2 xb END",
        "VALUE b 0 2 xb END",
        "END",
    ]
    counters = world.broker.counters
    assert (counters.cmd_get, counters.get_hits, counters.get_misses) == (5, 4, 1)
    misses = {queue.name: queue.counters.get_items_miss for queue in world.broker.queues.all()}
    assert misses == {"a": 1, "b": 1, "c": 1}


def test_an_opened_item_is_its_queues_and_is_confirmed_by_its_id() -> None:
    world = World(NO_JOURNAL)
    filled(world, "b")
    client = world.client()
    word, key, _, _, number, data, end = asked(client, "gets a/open/also=b").split()
    assert (word, key, data, end) == ("VALUE", "b", "xb", "END")
    assert asked(client, f"delete a/id={number}") == "NOT_FOUND"
    assert asked(client, f"delete b/id={number}") == "DELETED"
    assert not world.items("b") and not world.broker.queues.by_name["b"].open_reads


def test_an_item_that_is_not_confirmed_returns_to_its_own_queue() -> None:
    world = World(NO_JOURNAL)
    client = world.client().says(WAIT)
    filled(world, "c")
    assert client.hears() == "VALUE c 0 2 xc END" and not world.items("c")
    client.hangs_up()
    assert world.items("c") == [b"xc"] and not world.items("a") and not world.items("b")


@pytest.mark.parametrize("order", ["abc", "cba", "bca"])
@pytest.mark.parametrize("reads", ["get a/t=1000/also=b,c", WAIT, "get a/t=1000/peek/also=b,c"])
def test_items_of_one_turn_stay_in_their_queues_but_for_the_first(order: str, reads: str) -> None:
    world = World(NO_JOURNAL)
    filled(world, "b")
    assert asked(world.client(), "get b") == "VALUE b 0 2 xb END"  # `b` exists, the others do not
    client, putter = world.client().says(reads), world.client()
    assert waiters(world) == ["a", "b", "c"]
    putter.sends("".join(f"set {name} 0 0 2\r\nx{name}\r\n" for name in order).encode())
    assert waiters(world) == []
    world.turn()
    assert client.hears() == f"VALUE {order[0]} 0 2 x{order[0]} END"
    left = order if "peek" in reads else order[1:]
    assert {name for name in "abc" if world.items(name)} == set(left)


def test_those_who_wait_at_a_queue_are_served_in_their_order_wherever_else_they_wait() -> None:
    world = World(NO_JOURNAL)
    first, second, third = (world.client().says(line) for line in (WAIT, "get b/t=1000/open", "get b/t=1000/also=a"))
    filled(world, "b", "b", "b")
    assert [each.hears()[:7] for each in (first, second, third)] == ["VALUE b"] * 3
    assert waiters(world) == []


def test_a_wait_that_times_out_leaves_nothing_behind() -> None:
    world = World()
    client = world.client().says(WAIT, "version")
    world.turn(999)
    assert client.hears() == "" and waiters(world) == ["a", "b", "c"]
    world.turn(20)
    world.turn()
    assert client.hears().startswith("END VERSION")
    assert waiters(world) == [] and not len(world.broker.timers) and not len(world.broker.queues)


@pytest.mark.parametrize("how", ["hangs up", "is hung up on", "leaves its queues"])
def test_a_client_that_leaves_gets_nothing_and_leaves_nothing(how: str) -> None:
    world = World(NO_JOURNAL)
    client = world.client().says(WAIT)
    if how == "hangs up":
        client.hangs_up()
    elif how == "is hung up on":
        client.session.hang_up(b"")
    else:
        client.session.leave_queue()
    assert waiters(world) == []
    filled(world, "a", "b", "c")
    assert [world.items(name) for name in "abc"] == [[b"xa"], [b"xb"], [b"xc"]]
    assert how == "leaves its queues" or not len(world.broker.timers)


@pytest.mark.parametrize("opens", ["/open", ""])
def test_an_item_of_a_client_that_left_in_its_turn_goes_back(opens: str) -> None:
    world = World(NO_JOURNAL)
    client = world.client().says(f"get a/t=1000{opens}/also=b")
    world.client().sends(b"set b 0 0 1\r\nx\r\n")
    client.session.close(world.now_ms)
    world.turn()
    assert world.items("b") == [b"x"] and waiters(world) == []


def test_a_deleted_queue_ends_the_wait_at_all_of_them() -> None:
    world = World(NO_JOURNAL)
    filled(world, "a")
    assert asked(world.client(), "get a") == "VALUE a 0 2 xa END"
    for name in ("a", "b"):  # one that exists, one that does not
        client = world.client().says(WAIT)
        world.client().says(f"delete {name}")
        world.turn()
        assert client.hears() == "END" and waiters(world) == []
        assert client.session.state is SessionState.READY


def test_a_queue_that_is_created_and_deleted_meanwhile_ends_the_wait() -> None:
    world = World(NO_JOURNAL)
    client = world.client().says(WAIT)
    world.client().says("set b 0 -1 1", "x")  # which has expired
    assert client.hears() == "" and "b" in world.broker.queues.by_name and waiters(world) == ["a", "b", "c"]
    world.client().says("delete b")
    world.turn()
    assert client.hears() == "END" and waiters(world) == []


def test_paused_gets_are_those_of_an_empty_queue_until_they_go_on() -> None:
    world = World(NO_JOURNAL)
    filled(world, "a", "c")
    world.client().says("pause a gets")
    client = world.client()
    assert asked(client, "get a/also=b,c") == "VALUE c 0 2 xc END"
    client.says("get b/t=1000/also=a,c")
    assert client.hears() == ""
    world.client().says("resume a")
    world.turn()
    assert client.hears() == "VALUE a 0 2 xa END"


def test_an_alias_that_comes_with_a_reload_ends_the_wait_and_refuses_the_next() -> None:
    world = World(NO_JOURNAL)
    for name in ("a", "b"):
        if name == "a":
            filled(world, "a")
            assert asked(world.client(), "get a")[:5] == "VALUE"
        client = world.client().says(WAIT)
        world.config = f'{NO_JOURNAL}\naliases.{name} = ["d"]'
        assert asked(world.client(), "reload").startswith("Reloaded")
        assert client.hears() == "END" and waiters(world) == []
        assert asked(client, WAIT) == f"CLIENT_ERROR {name} is an alias, name a queue"
        world.config = NO_JOURNAL
        asked(world.client(), "reload")


def test_a_reload_that_changes_nothing_of_them_lets_the_wait_go_on() -> None:
    world = World(NO_JOURNAL)
    client = world.client().says(WAIT)
    world.config = f"{NO_JOURNAL}\nqueues.b.max_items = 5"
    asked(world.client(), "reload")
    filled(world, "b")
    assert client.hears() == "VALUE b 0 2 xb END"


def test_a_server_that_refuses_reads_or_stops_ends_the_wait() -> None:
    world = World(NO_JOURNAL)
    client = world.client().says(WAIT)
    world.client().says("status quiescent")
    world.turn()
    assert client.hears() == "END" and waiters(world) == []
    assert asked(client, WAIT).startswith("SERVER_ERROR the server is quiescent")
    asked(world.client(), "status up")
    client.says(WAIT)
    world.broker.shutdown(world.now_ms)
    world.collect()
    assert client.hears() == "END"


def test_a_queue_whose_files_cannot_be_read_refuses_the_request_and_ends_the_wait() -> None:
    world = World(NO_JOURNAL)
    filled(world, "a", "b")
    asked(world.client(), "get b")
    world.broker.queues.block("d", "its files are gone")
    assert asked(world.client(), "get a/also=d").startswith("SERVER_ERROR queue d is not available")
    assert world.items("a") == [b"xa"]
    client = world.client().says("get b/t=1000/also=c")
    queue = world.broker.queues.by_name["b"]
    queue.line.read_error = OSError(5, "Input/output error")
    queue._on_line_error()
    world.turn()
    assert client.hears().startswith("SERVER_ERROR queue b is not available") and waiters(world) == []


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("get a/also=b,a", "CLIENT_ERROR also= names a twice"),
        ("get a/also=b,b", "CLIENT_ERROR also= names b twice"),
        ("get a/also=", "CLIENT_ERROR also= needs the names of queues, with a comma between two"),
        ("get a/also=b,,c", "CLIENT_ERROR also= needs the names of queues, with a comma between two"),
        ("get a/also=b/also=c", "CLIENT_ERROR also= is given once, with all further queues: also=b,c"),
        ("get a/also=b.c", "CLIENT_ERROR a queue name cannot hold . / ~ or NUL"),
        ("get a/also=b~", "CLIENT_ERROR a queue name cannot hold . / ~ or NUL"),
        ("get /also=b", "CLIENT_ERROR the queue name is empty"),
        ("get a/open/close/also=b", "CLIENT_ERROR also= takes an item, close and abort do not go with it"),
        ("get a/abort/also=b", "CLIENT_ERROR also= takes an item, close and abort do not go with it"),
        ("get a/n=2/also=b", "CLIENT_ERROR also= gives one item, n= above 1 does not go with it"),
        ("get a/t=x/also=b", "CLIENT_ERROR t= needs a number of milliseconds"),
        ("get a c/also=b", "CLIENT_ERROR also= goes with one key only"),
        ("mg a/open/also=b", "CLIENT_ERROR open needs v, or the item would be lost to the client"),
        ("mg a/also=a v", "CLIENT_ERROR also= names a twice"),
        ("get a/also=" + ",".join(f"q{n}" for n in range(64)), "CLIENT_ERROR a get reads at most 64 queues"),
    ],
)
def test_a_wrong_list_is_refused_and_the_connection_stays_in_step(line: str, why: str) -> None:
    world = World(NO_JOURNAL)
    filled(world, "a", "b")
    client = world.client()
    assert asked(client, line).startswith(why)
    assert asked(client, "mn") == "MN" and world.items("a") == [b"xa"] and world.items("b") == [b"xb"]


def test_as_many_queues_as_allowed_are_waited_at_and_one_delivers() -> None:
    world = World(NO_JOURNAL)
    client = world.client().says("get q0/t=1000/also=" + ",".join(f"q{n}" for n in range(1, 64)))
    assert len(waiters(world)) == 64
    filled(world, "q63")
    assert client.hears() == "VALUE q63 0 4 xq63 END" and waiters(world) == []


def test_an_open_read_of_one_queue_refuses_a_plain_get_of_all() -> None:
    world = World(NO_JOURNAL)
    filled(world, "a", "b")
    client = world.client()
    asked(client, "get b/open")
    assert asked(client, "get a/also=b").startswith("CLIENT_ERROR a read of b is open on this connection")
    assert asked(client, "get a/open/also=b") == "VALUE a 0 2 xa END"


@pytest.mark.parametrize(
    ("setting", "line", "why"),
    [
        ("queues.b.max_open_reads = 1", "get a/open/also=b", "1 items of b are open, no more can be (max_open_reads)"),
        ("queues.b.max_waiters = 1", "get a/t=9/also=b", "1 clients wait for b, no more can (max_waiters)"),
    ],
)
def test_a_limit_of_one_queue_refuses_the_request(setting: str, line: str, why: str) -> None:
    world = World(f"{NO_JOURNAL}\n{setting}")
    if "open_reads" in setting:
        filled(world, "b")
        asked(world.client(), "get b/open")
    else:
        world.client().says("get b/t=1000")
    client = world.client()
    assert asked(client, line) == f"SERVER_ERROR {why}"
    assert waiters(world) == (["b"] if "waiters" in setting else [])
    filled(world, "a")
    expected = f"SERVER_ERROR {why}" if "open_reads" in setting else "VALUE a 0 2 xa END"
    assert asked(client, line) == expected, "who need not wait may have an item"


def test_a_fan_out_child_is_made_by_the_read_and_gets_its_parents_items() -> None:
    world = World(NO_JOURNAL)
    client = world.client().says("get a/t=1000/open/also=orders+audit")
    filled(world, "orders")
    assert client.hears() == "VALUE orders+audit 0 7 xorders END" and waiters(world) == []


def test_expired_items_at_the_head_are_passed_over_for_the_next_queue() -> None:
    world = World(NO_JOURNAL)
    world.client().says("set a 0 1 1", "x")
    filled(world, "b")
    world.now_ms += 2000
    assert asked(world.client(), "get a/also=b") == "VALUE b 0 2 xb END"


def test_an_unfinished_sweep_of_the_first_queue_is_waited_for() -> None:
    world = World(NO_JOURNAL)
    filled(world, "a", "b")
    world.broker.queues.by_name["a"].has_more_expired = True
    queue = world.broker.queues.by_name["a"]
    queue.line.clear()
    client = world.client()
    client.sends(b"get a/also=b\r\n")
    assert client.session.backlog and world.items("b") == [b"xb"]
    queue.has_more_expired = False
    assert asked(client) == "VALUE b 0 2 xb END"


def test_a_reply_waits_until_what_it_shows_is_durable() -> None:
    world = World('default.sync_journal = "always"')
    client = world.client().says(WAIT)
    world.client().puts("x", "b")
    assert client.hears() == "", "the item is not durable yet"
    world.sync()
    assert client.hears() == "VALUE b 0 1 x END"
    taker, late = world.client(), world.client()
    world.client().puts("y", "a")
    world.sync()
    taker.says("get a")
    late.says("get a/also=b")
    assert late.hears() == "", "`a` is empty by a removal that is not durable yet"
    world.sync()
    assert late.hears() == "END"


def test_meta_gets_show_the_queue_that_has_answered() -> None:
    world = World(NO_JOURNAL)
    filled(world, "b")
    client = world.client()
    assert asked(client, "mg a/also=b k d") == "HD kb d1"
    client.says("mg a/t=1000/open/also=c v k d Ox q", "mn")
    filled(world, "c")
    world.turn()
    assert client.hears() == "VA 2 kc d1 Ox xc MN"
    assert asked(client, "mg YS9hbHNvPWI= b v k") == "VA 2 kYg== b xb"
    assert asked(client, "mg a/also=b v k") == "EN"
    assert asked(client, "mg a/also=b v q", "mn") == "MN"


def test_kestrels_dialect_knows_no_such_option() -> None:
    world = World(NO_JOURNAL)
    filled(world, "b")
    client = world.client(Dialect.KESTREL)
    assert asked(client, "get a/also=b") == "END"
    assert world.items("b") == [b"xb"]


def test_operators_see_all_queues_of_a_wait_and_the_client_at_each() -> None:
    world = World(NO_JOURNAL)
    filled(world, "b")
    asked(world.client(), "get b")
    client = Client(world, protocols.memcache(Dialect.MEMCACHED), "10.0.0.7:1")
    world.clients.append(client)
    client.says(WAIT)
    shown = views.clients(world.broker.sessions, world.broker.leases, lambda session: 0, 0, 10, world.now_ms)
    assert [each.waits_for for each in shown if each.state == "parked"] == ["a,b,c"]
    assert views.waiters(world.broker.queues.by_name["b"], 0, 10) == [views.WaiterView("10.0.0.7:1")]


@pytest.mark.parametrize("config", ["", NO_JOURNAL])
def test_an_item_that_a_later_queue_sends_to_an_earlier_one_is_not_waited_beside(config: str) -> None:
    world = World(f'{config}\n[queues.b]\nexpire_to_queue = "a"\n')
    world.client().says("set b 0 1 1", "x")
    world.now_ms += 5000
    client = world.client()
    assert asked(client, "get a/t=60000/also=b") == "VALUE a 0 1 x END"
    assert not waiters(world)


@pytest.mark.parametrize("config", ["", NO_JOURNAL])
@pytest.mark.parametrize("read", ["get a/t=60000/also=b", "get a/t=60000/open/also=b", "get a/t=60000/peek/also=b"])
def test_a_queue_whose_dead_letter_serves_its_waiter_elsewhere_keeps_its_own_item(config: str, read: str) -> None:
    b = '[queues.b]\nmax_deliveries = 1\nopen_transaction_timeout = "1s"\ndead_letter_queue = "a"\n'
    world = World(f"{config}\n{b}")
    filled(world, "b")
    assert asked(world.client(), "get b/open").endswith(" xb END")
    client = world.client()
    assert asked(client, read) == ""
    world.now_ms += 1001  # the read has timed out, and a put comes before the timer calls
    assert asked(world.client(), "set b 0 0 1", "y") == "STORED"
    assert asked(client) == "VALUE a 0 2 xb END"
    assert not waiters(world) and world.items("b") == [b"y"]


def test_a_paused_queue_whose_expired_head_serves_its_waiter_elsewhere_keeps_its_next_item() -> None:
    world = World('[queues.b]\nexpire_to_queue = "a"\n')
    client = world.client()
    for line, data in (("set b 0 1 1", "x"), ("set b 0 0 1", "y")):
        assert asked(world.client(), line, data) == "STORED"
    assert asked(world.client(), "pause b gets") == "OK"
    assert asked(client, "get a/t=60000/also=b") == ""
    world.now_ms += 5000
    assert asked(world.client(), "resume b gets") == "OK"
    assert asked(client) == "VALUE a 0 1 x END"
    assert not waiters(world) and world.items("b") == [b"y"]
