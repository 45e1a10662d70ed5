"""Items that an operator moves: all of them, in slices, across a power cut, and only where he may."""

from __future__ import annotations

from staniel.broker.operations import move
from staniel.broker.transfers import ASIDE_BYTES_MAX
from staniel.sim.disk.durable import Crash
from staniel.sim.world import Client as SlowClient
from staniel.sim.world import World as SlowWorld
from tests.support.world import Client, World


def filled(world: World, count: int, queue: str = "q") -> Client:
    client = world.client()
    client.says(*(line for number in range(count) for line in (f"set {queue} 0 0 4", f"{number:04}")))
    settle(world)
    client.hears()
    return client


def settle(world: World) -> None:
    """Turns and syncs until nobody has anything left to do."""
    while world.sync() or has_more(world):
        world.turn()


def has_more(world: World) -> bool:
    return bool(world.broker.operations.running) or any(client.session.wants_turn for client in world.clients)


def put_safely(world: SlowWorld, client: SlowClient, count: int) -> None:
    """So many items of 10,000 bytes, and all that they need on the disk."""
    for _ in range(count):
        client.puts("x" * 10_000)
    while world.sync():
        world.turn()
    client.hears()


def test_a_long_move_lets_another_client_in_after_every_slice() -> None:
    world = World()
    client = filled(world, 3 * move.ITEMS_PER_SLICE)
    other = world.client()
    client.says("move q r", "verbosity 1")
    assert len(world.items("r")) < 3 * move.ITEMS_PER_SLICE
    other.says("get nothing")
    assert other.hears() == "END"
    settle(world)
    assert client.hears() == f"MOVED {3 * move.ITEMS_PER_SLICE} OK"
    assert world.items("r") == [b"%04d" % number for number in range(3 * move.ITEMS_PER_SLICE)]


def test_a_pipeline_behind_a_move_waits_for_its_end() -> None:
    world = World()
    client = filled(world, 300)
    client.says("move q r", "get q")
    settle(world)
    assert client.hears() == "MOVED 300 END"


def test_items_that_come_while_a_move_runs_stay_where_they_are() -> None:
    world = World()
    client = filled(world, 300)
    client.says("move q r")
    world.client().puts("late")
    settle(world)
    assert client.hears() == "MOVED 300" and world.items() == [b"late"]


def test_a_move_goes_on_when_its_client_hangs_up() -> None:
    world = World()
    client = filled(world, 600)
    client.says("move q r")
    client.hangs_up()
    settle(world)
    assert not world.items("q") and len(world.items("r")) == 600


def test_the_answer_waits_until_the_copies_are_on_the_disk_and_a_power_cut_loses_and_doubles_nothing() -> None:
    world = World()
    client = filled(world, 3)
    client.says("move q r 2")
    assert client.hears() == ""
    for how in Crash:
        after = world.crash(how)
        found = after.items("q") + after.items("r")
        assert sorted(found) == [b"0000", b"0001", b"0002"], (how, found)
    settle(world)
    assert client.hears() == "MOVED 2"
    for how in Crash:
        after = world.crash(how)
        assert (after.items("q"), after.items("r")) == ([b"0002"], [b"0000", b"0001"]), how


def test_nothing_is_moved_while_the_server_is_read_only() -> None:
    world = World()
    client = filled(world, 2)
    client.says("status readonly", "move q r")
    settle(world)
    assert client.hears() == "END SERVER_ERROR the server is readonly, writes are refused"
    assert world.items() == [b"0000", b"0001"] and world.broker.queues.find("r") is None


def test_a_server_that_becomes_read_only_ends_a_move_with_what_was_moved() -> None:
    world = World()
    client = filled(world, 600)
    client.says("move q r")
    world.client().says("status readonly")
    settle(world)
    assert client.hears() == f"MOVED {len(world.items('r'))}" and world.items("q")


def test_a_queue_whose_puts_are_paused_takes_nothing() -> None:
    world = World()
    client = filled(world, 2)
    filled(world, 1, "r")
    client.says("pause r puts", "move q r", "resume r", "pause q gets", "move q r")
    settle(world)
    assert client.hears() == "OK SERVER_ERROR puts to r are paused OK OK MOVED 0"


def test_an_alias_is_no_end_of_a_move() -> None:
    world = World('[aliases]\nall = ["q", "r"]\n')
    client = filled(world, 1)
    client.says("move q all", "move all q")
    settle(world)
    assert client.hears() == " ".join(["CLIENT_ERROR all is an alias, name a queue"] * 2)


def test_an_item_keeps_its_flags_and_its_expiry_and_comes_to_the_end() -> None:
    world = World()
    client = filled(world, 1, "r")
    client.says("set q 7 5 1", "x", "move q r", "get r", "get r/peek")
    settle(world)
    assert client.hears() == "STORED MOVED 1 VALUE r 0 4 0000 END VALUE r/peek 7 1 x END"
    world.turn(6000)
    client.says("get r")
    settle(world)
    assert client.hears() == "END"


def test_requests_between_slices_of_others_do_not_disturb_a_queue_in_memory_alone() -> None:
    world = World("[default]\nkeep_journal = false\n")
    client = filled(world, 600)
    client.says("move q r")
    settle(world)
    assert client.hears() == "MOVED 600" and len(world.items("r")) == 600


def test_a_move_has_no_more_under_way_than_may_be_aside_while_the_disk_is_slow() -> None:
    world = SlowWorld()
    client = world.client()
    put_safely(world, client, 250)
    client.says("move q r")
    sync = world.start_sync()
    assert sync is not None
    for _ in range(100):
        world.turn()
    source = world.broker.queues.by_name["q"]
    assert 0 < source.in_transfer_bytes <= ASIDE_BYTES_MAX
    assert not client.session.wants_turn  # nobody asks again in every turn until the sync ends
    sync.run()
    world.finish_sync(sync)
    settle(world)
    assert client.hears() == "MOVED 250"
    assert (len(source.line), len(world.items("r"))) == (0, 250)


def test_a_move_ends_when_an_alias_takes_the_name_of_its_source() -> None:
    world = World()
    client = filled(world, 600)
    client.says("move q r")
    world.config = '[aliases]\nq = ["else"]\n'
    world.client().says("reload")
    settle(world)
    moved = len(world.items("r"))
    assert client.hears() == f"MOVED {moved}" and 0 < moved < 600


def test_dead_letters_without_a_place_to_go_are_bounded_and_those_beyond_are_handed_out_again() -> None:
    world = World('[queues.q]\nmax_deliveries = 1\ndead_letter_queue = "dead"\n')
    world.broker.queues.block("dead", "unreadable")
    client = world.client()
    for _ in range(150):
        client.says("set q 0 0 10000", "x" * 10_000, "get q/open", "get q/abort")
    source = world.broker.queues.by_name["q"]
    assert 0 < source.in_transfer_bytes <= ASIDE_BYTES_MAX
    assert len(source.line) + len(source.in_transfer) == 150
    for _ in range(3):
        settle(world)
        client.hears()
        client.says("get q/open", "get q/abort")
        settle(world)
        assert client.hears().startswith("VALUE q/open 0 10000")
    del world.broker.queues.blocked["dead"]
    for _ in range(3):
        world.turn(1000)
        settle(world)
    assert not source.in_transfer and len(source.line) + len(world.items("dead")) == 150
    assert len(world.items("dead")) >= 100
    after = world.crash(Crash.DROP)
    assert len(after.items("q")) + len(after.items("dead")) == 150


def test_dead_letters_of_one_slow_sync_are_bounded_and_the_log_says_which_were_spared() -> None:
    world = SlowWorld('[queues.q]\nmax_deliveries = 1\ndead_letter_queue = "dead"\n')
    client = world.client()
    put_safely(world, client, 150)
    client.says("set other 0 0 1", "x")
    sync = world.start_sync()
    assert sync is not None
    for _ in range(150):
        client.says("get q/open", "get q/abort")
    source = world.broker.queues.by_name["q"]
    sent = len(source.in_transfer)
    assert 0 < source.in_transfer_bytes <= ASIDE_BYTES_MAX and len(source.line) + sent == 150
    assert source.counters.dead_letters == sent == len(world.items("dead"))
    assert world.reported("item.dead") and all(each["deliveries"] == 1 for each in world.reported("item.dead"))
    world.turn(60_000)  # another ten seconds' worth of lines
    client.says("get q/open", "get q/abort")
    assert world.reported("item.spared")[-1]["queue"] == "q" and len(world.reported("item.dead")) < sent
    sync.run()
    world.finish_sync(sync)
    while world.sync():
        world.turn()
    while source.line:
        client.says("get q/open", "get q/abort")
        while world.sync():
            world.turn()
    assert len(world.items("dead")) == 150 and not source.in_transfer
