"""One client's conversation: open reads, waits, the backlog behind them, and turns. No socket, no real time."""

from __future__ import annotations

import pytest

from staniel.broker import protocols
from staniel.broker.session import OUT_BYTES_PER_TURN, REQUESTS_PER_TURN, SessionState
from staniel.protocol.memcache.requests import Dialect
from staniel.queues.calendar import MARKS
from staniel.queues.time_outs import READS_PER_STEP
from tests.support.world import Client, World

MEMORY = "default.keep_journal = false"


@pytest.fixture
def world() -> World:
    """Queues in memory: no reply waits for a disk."""
    return World(MEMORY)


def filled(world: World, *data: str) -> Client:
    client = world.client()
    for each in data:
        client.puts(each)
    assert client.hears() == " ".join(["STORED"] * len(data))
    return client


def rest(world: World) -> None:
    """All that takes several turns is over."""
    for _ in range(20):
        world.turn()


def test_an_item_is_read_once_in_order(world: World) -> None:
    client = filled(world, "a", "b")
    assert client.says("get q", "get q", "get q").hears() == "VALUE q 0 1 a END VALUE q 0 1 b END END"


def test_flags_and_ids_come_back(world: World) -> None:
    client = world.client().says("set q 77 0 1", "a").says("gets q/open", "get q/abort", "gets q")
    words = client.hears().split()
    assert words[1:5] == ["VALUE", "q/open", "77", "1"] and words.count("77") == 2
    assert words[5] == words[-3] and int(words[5]) > 0


def test_an_open_read_hides_its_item_and_close_ends_it(world: World) -> None:
    client, other = filled(world, "a"), world.client()
    assert client.says("get q/open").hears() == "VALUE q/open 0 1 a END"
    assert other.says("get q").hears() == "END"
    assert client.says("get q/close").hears() == "END"
    client.hangs_up()
    assert world.items() == []


def test_close_and_open_in_one_request_go_on_to_the_next_item(world: World) -> None:
    client = filled(world, "a", "b").says("get q/open", "get q/close/open", "get q/close/open")
    assert client.hears() == "VALUE q/open 0 1 a END VALUE q/close/open 0 1 b END END"
    assert world.items() == [] and not client.session.reads


def test_aborts_begin_with_the_oldest_read(world: World) -> None:
    client = filled(world, "a", "b", "c").says("get q/open", "get q/open", "get q/open")
    client.says("get q/abort")
    assert world.items() == [b"a"]
    client.says("get q/abort")
    assert world.items() == [b"b", b"a"]


def test_closes_begin_with_the_oldest_read(world: World) -> None:
    client = filled(world, "a", "b").says("get q/open", "get q/open", "get q/close")
    client.hangs_up()
    assert world.items() == [b"b"]


def test_a_client_that_hangs_up_returns_everything_in_its_original_order(world: World) -> None:
    client = filled(world, "a", "b", "c", "d").says("get q/open", "get q/open", "get q/open")
    client.hangs_up()
    client.hangs_up()
    assert world.items() == [b"a", b"b", b"c", b"d"]
    assert world.broker.counters.curr_connections == 0


def test_waiters_get_what_a_client_that_hangs_up_held_in_its_original_order(world: World) -> None:
    client = filled(world, "a", "b", "c").says("get q/open", "get q/open", "get q/open")
    waiters = [world.client().says("get q/t=1000") for _ in range(2)]
    client.hangs_up()
    assert [waiter.hears() for waiter in waiters] == [f"VALUE q/t=1000 0 1 {item} END" for item in "ab"]
    assert world.items() == [b"c"]


@pytest.mark.parametrize("count", [3, READS_PER_STEP + 44])
@pytest.mark.parametrize("end", ["hang up", "time out"])
def test_dead_letters_of_one_client_come_in_their_order_and_what_is_spared_too(count: int, end: str) -> None:
    queue = "[queues.q]\nmax_deliveries = 2\ndead_letter_queue = 'dead'\nopen_transaction_timeout = '10s'\n"
    world = World(f"{MEMORY}\nserver.max_open_transactions = 1000\n{queue}")
    items = [f"{number:03}" for number in range(2 * count)]
    client = filled(world, *items).says(*["get q/open"] * count)  # once, and back at the head
    rest(world)
    client.hangs_up()
    rest(world)
    client = world.client().says(*["get q/open"] * (2 * count))
    rest(world)
    assert client.hears().count("VALUE") == 2 * count
    if end == "hang up":
        client.hangs_up()
    else:
        world.turn(11_000)
    rest(world)
    assert world.items("dead") == [item.encode() for item in items[:count]]
    assert world.items() == [item.encode() for item in items[count:]]


def test_waiters_get_what_an_operator_gives_back_in_its_original_order(world: World) -> None:
    filled(world, "a", "b", "c").says("get q/open", "get q/open", "get q/open")
    waiters = [world.client().says("get q/t=1000") for _ in range(2)]
    operator = Client(world, protocols.http())
    world.clients.append(operator)
    operator.sends(b"POST /api/queues/q/open/abort HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n")
    world.turn()
    assert operator.hears().endswith('{"aborted":3}')
    assert [waiter.hears() for waiter in waiters] == [f"VALUE q/t=1000 0 1 {item} END" for item in "ab"]
    assert world.items() == [b"c"]


def test_a_plain_read_beside_an_open_one_is_a_mistake(world: World) -> None:
    client = filled(world, "a", "b").says("get q/open")
    client.hears()
    assert client.says("get q").hears().startswith("CLIENT_ERROR a read of q is open")
    assert client.says("get q/peek").hears() == "VALUE q/peek 0 1 b END"
    assert client.says("get other").hears() == "END"


def test_only_so_many_reads_of_a_queue_may_be_open() -> None:
    world = World(MEMORY + "\nserver.max_open_transactions = 2")
    client = filled(world, "a", "b", "c").says("get q/open", "get q/open")
    client.hears()
    assert client.says("get q/open").hears().startswith("CLIENT_ERROR 2 reads of q are open")
    assert client.says("get q/close/open").hears() == "VALUE q/close/open 0 1 c END"


def test_a_reload_changes_how_many_reads_those_may_have_open_who_are_connected() -> None:
    world = World(MEMORY + "\nserver.max_open_transactions = 2")
    client = filled(world, "a", "b", "c", "d").says("get q/open", "get q/open")
    client.hears()
    world.config = MEMORY + "\nserver.max_open_transactions = 1"
    world.client().says("reload")
    assert client.says("get q/close/open").hears().startswith("CLIENT_ERROR 1 reads of q are open")
    assert client.says("get q/close/open").hears() == "VALUE q/close/open 0 1 c END"
    world.config = MEMORY + "\nserver.max_open_transactions = 0"
    world.client().says("reload")
    assert client.says("get q/close/open").hears().startswith("CLIENT_ERROR 0 reads of q are open")
    assert not client.session.reads and world.items() == [b"d"]


def test_close_and_open_that_finds_nothing_waits_and_holds_nothing_meanwhile(world: World) -> None:
    client = filled(world, "a").says("get q/open")
    client.hears()
    assert client.says("get q/close/open/t=100").hears() == "" and not client.session.reads
    world.client().puts("b")
    assert client.hears() == "VALUE q/close/open/t=100 0 1 b END" and len(client.session.reads["q"]) == 1
    client.hangs_up()
    assert world.items() == [b"b"]


def test_closing_what_a_deleted_queue_had_open_does_not_confirm_a_stranger(world: World) -> None:
    old = filled(world, "old").says("get q/open")
    other = world.client().says("delete q").puts("new").says("get q/open")
    assert other.hears().endswith("DELETED STORED VALUE q/open 0 3 new END")
    old.says("get q/close")
    old.hangs_up()
    other.hangs_up()
    assert world.items() == [b"new"]


def test_closing_or_aborting_nothing_does_nothing_and_makes_no_queue(world: World) -> None:
    assert world.client().says("get q/close", "get q/abort", "flush q").hears() == "END END END"
    assert world.broker.queues.find("q") is None


def test_who_waits_is_answered_in_the_turn_of_the_put(world: World) -> None:
    waiter = world.client().says("get q/t=100")
    assert waiter.hears() == "" and waiter.session.state is SessionState.PARKED
    world.client().puts("a")
    assert waiter.hears() == "VALUE q/t=100 0 1 a END" and waiter.session.state is SessionState.READY
    assert len(world.broker.timers) == 0


def test_a_wait_ends_when_its_time_is_over_and_not_before(world: World) -> None:
    waiter = world.client().says("get q/t=100")
    world.turn(99)
    assert waiter.hears() == ""
    world.turn(9)
    assert waiter.hears() == "END"
    assert world.client().puts("a").hears() == "STORED" and world.items() == [b"a"]


def test_those_who_wait_are_served_in_order_and_who_peeks_passes_the_item_on(world: World) -> None:
    asks = ["get q/t=100/peek", "get q/t=100/open", "get q/t=100", "get q/t=100"]
    waiters = [world.client().says(ask) for ask in asks]
    world.client().puts("a").puts("b")
    assert [waiter.hears() for waiter in waiters] == [
        "VALUE q/t=100/peek 0 1 a END",
        "VALUE q/t=100/open 0 1 a END",
        "VALUE q/t=100 0 1 b END",
        "",
    ]
    waiters[1].hangs_up()
    assert waiters[3].hears() == "VALUE q/t=100 0 1 a END"


def test_requests_behind_a_wait_stay_in_order(world: World) -> None:
    waiter = world.client().says("get q/t=100", "version", "set r 0 0 1", "x", "get r")
    waiter.says("get r/t=50")
    assert waiter.hears() == "" and world.items("r") == []
    world.client().puts("a")
    heard = waiter.hears()
    assert heard.startswith("VALUE q/t=100 0 1 a END VERSION") and heard.endswith("STORED VALUE r 0 1 x END")
    assert waiter.session.state is SessionState.PARKED
    world.turn(58)
    assert waiter.hears() == "END"


def test_who_hangs_up_while_waiting_takes_nothing_along(world: World) -> None:
    waiter, next_in_line = world.client().says("get q/t=100/open", "get q"), world.client().says("get q/t=100")
    waiter.hangs_up()
    world.client().puts("a")
    assert next_in_line.hears() == "VALUE q/t=100 0 1 a END" and waiter.hears() == ""


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize(
    "request_",
    ["get q/t=100/open", "get q/t=100", "get q/t=100/n=3", "get q/t=100/peek", "mg q/t=100 v", "monitor q 5"],
)
def test_who_hangs_up_in_the_turn_of_its_delivery_gives_the_item_back(
    world: World, request_: str, exists: bool
) -> None:
    if exists:
        assert filled(world, "x").says("get q").hears().endswith("x END")
    waiter = world.client().says(request_)
    putter = world.client()
    putter.session.execute(putter.parser.feed(b"set q 0 0 1\r\na\r\nset q 0 0 1\r\nb\r\n"), world.now_ms)
    waiter.session.close(world.now_ms)
    world.turn()
    assert world.items() == [b"a", b"b"] and waiter.hears() == ""


def test_a_delete_answers_those_who_wait(world: World) -> None:
    waiters = [world.client().says(ask) for ask in ("get q/t=100", "get q/t=100/open", "get q/t=100/peek")]
    world.client().says("delete q")
    assert [waiter.hears() for waiter in waiters] == ["END"] * 3
    assert len(world.broker.timers) == 0


def test_a_flush_answers_nobody_and_leaves_open_reads_open(world: World) -> None:
    client, waiter = filled(world, "a", "b").says("get q/open"), world.client()
    client.says("flush q")
    waiter.says("get q/t=100")
    assert client.hears().endswith("END") and waiter.hears() == "" and world.items() == []
    client.says("get q/abort")
    assert waiter.hears() == "VALUE q/t=100 0 1 a END"


def test_a_long_pipeline_takes_many_turns_and_others_get_theirs(world: World) -> None:
    client = world.client()
    requests = client.parser.feed(b"version\r\n" * (3 * REQUESTS_PER_TURN + 5))
    client.session.execute(requests, world.now_ms)
    assert len(client.session.out) == REQUESTS_PER_TURN and client.session.wants_turn
    world.turn()
    other = world.client().says("version")
    assert other.hears().count("VERSION") == 1 and client.session.wants_turn
    for _ in range(6):  # more than the requests fill: the parser stops within them, too
        world.turn()
    assert client.hears().count("VERSION") == 3 * REQUESTS_PER_TURN + 5 and not client.session.wants_turn


def test_a_turn_ends_after_a_megabyte_of_items(world: World) -> None:
    client = world.client()
    for _ in range(4):
        client.puts("x" * (OUT_BYTES_PER_TURN // 2))
    client.session.execute(client.parser.feed(b"get q\r\n" * 4), world.now_ms)
    assert len(world.items()) == 1 and client.session.wants_turn
    world.turn()
    assert client.hears().count("VALUE") == 3
    world.turn()
    assert client.hears().count("VALUE") == 1


def test_limits_refuse_with_a_reason() -> None:
    world = World(MEMORY + "\ndefault.max_items = 1\ndefault.max_item_size = 3")
    client = filled(world, "a")
    assert client.puts("b").hears() == "NOT_STORED"
    assert client.puts("long", "r").hears().startswith("CLIENT_ERROR object too large: 4 bytes")
    assert client.puts("a", "bad.name").hears().startswith("CLIENT_ERROR a queue name cannot hold")
    assert client.says("set q 0 0 1 noreply", "c", "version").hears().startswith("VERSION")


def test_an_expiry_counts_from_the_put_in_seconds(world: World) -> None:
    client = world.client().says("set q 0 2 1", "a")
    world.turn(2000)
    assert client.says("get q/peek").hears() == "STORED VALUE q/peek 0 1 a END"
    world.turn(MARKS)  # so much later at most
    assert client.says("get q").hears() == "END"


def test_expired_items_go_by_the_timer_without_anybody_asking(world: World) -> None:
    world.client().says("set q 0 2 1", "a")
    world.turn(3001)
    assert world.items() == [] and world.broker.next_ms() <= world.now_ms + 1000


@pytest.mark.parametrize("dialect", Dialect)
def test_quit_says_nothing_more(world: World, dialect: Dialect) -> None:
    client = world.client(dialect).says("quit", "version")
    assert client.is_cut_off and client.hears() == ""


def test_kestrel_hangs_up_where_today_is_told(world: World) -> None:
    client = world.client(Dialect.KESTREL).puts("a").says("get q/open", "get q", "version")
    assert client.is_cut_off
    assert client.hears() == "STORED VALUE q 0 1 a END ERROR"


@pytest.mark.parametrize("key", ["q/t=1000", "q/t=1000/open", "q/t=1000/peek", "q/t=1000/n=3/open"])
def test_a_waiting_client_that_the_server_hangs_up_on_is_handed_nothing(key: str) -> None:
    world = World('[queues.q]\nmax_deliveries = 1\ndead_letter_queue = "dead"')
    world.client().puts("gone", "q")
    world.client().says("get q")
    waiting = world.client().says(f"get {key}")
    waiting.session.hang_up(b"")
    world.client().puts("a")
    world.client().puts("b")
    world.sync()
    assert world.items() == [b"a", b"b"]
    waiting.session.close(world.now_ms)
    world.turn()
    counters = world.broker.counters
    assert (counters.finished_but_add, counters.cmd_get_timeout_dropped, world.items()) == (0, 1, [b"a", b"b"])
