"""Items that meet terms are found, moved and purged wherever they stand: in memory, returned or in the journal alone.
The others keep their order, and no crash at any step loses or doubles one.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from staniel.broker.operations import move, purge, transfer
from staniel.broker.operations.running import CUT_OFF, OperationView
from staniel.broker.selection import chosen, search
from staniel.broker.selection.where import Candidate, parse
from staniel.server.cli.following import progress_text
from staniel.sim.disk.durable import Crash
from staniel.sim.world import World
from tests.broker.operations.test_undo import Admin, asked, filled, goes_on, settles, takes_turn

CONFIGS = ["", 'default.journal_format = "libkestrel"', "default.keep_journal = false"]
DURABLE = CONFIGS[:2]
Names = list[bytes]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "PIECE_ITEMS", 3)
    monkeypatch.setattr(chosen, "PASSED_PER_TURN", 2)
    monkeypatch.setattr(purge, "RETURNED_PER_TURN", 2)
    monkeypatch.setattr("staniel.broker.operations.move.RETURNED_PER_TURN", 2)
    monkeypatch.setattr(purge, "ITEMS_PER_SLICE", 2)
    monkeypatch.setattr("staniel.broker.operations.move.ITEMS_PER_SLICE", 2)
    monkeypatch.setattr(transfer, "STEPS_PER_TURN", 3)


def find(world: World, *terms: str, **more: object) -> dict[str, Any]:
    status, found = asked(world, "POST", "/api/queues/q/find", {"where": terms, **more})
    assert status == 200, found
    return found  # type: ignore[no-any-return]


def names(count: int, without: set[int] = frozenset()) -> Names:  # type: ignore[assignment]
    return [f"item {number}".encode() for number in range(count) if number not in without]


def data_of(found: dict[str, Any]) -> list[str]:
    return [each["data"] for each in found["items"]]


@pytest.mark.parametrize("config", CONFIGS)
def test_items_are_found_where_they_stand(config: str) -> None:
    world = filled(12, config)
    found = find(world, "regex~[13]$")
    assert data_of(found) == ["item 1", "item 3", "item 11"]
    assert [each["offset"] for each in found["items"]] == [1, 3, 11]
    assert (found["found"], found["looked_at"], found["cut"]) == (3, 12, 0)
    assert world.items() == names(12)
    assert find(world, "position=3-5")["found"] == 3
    one = found["items"][2]["id"]
    assert data_of(find(world, f"id={one}")) == ["item 11"]
    assert find(world, "text~item", limit=2)["found"] == 12


@pytest.mark.parametrize("config", DURABLE)
def test_items_that_only_the_journal_holds_are_found_and_moved(config: str) -> None:
    memory = "default.max_memory_size = 30\n"
    world = filled(40, memory + config)
    queue = world.broker.queues.by_name["q"]
    assert queue.line.on_disk > 20
    found = find(world, "regex~item (7|23|39)$")
    assert [each["offset"] for each in found["items"]] == [7, 23, 39]
    status, told = asked(world, "POST", "/api/queues/q/move", {"to": "r", "where": ["regex~item (7|23|39)$"]})
    assert (status, told["moved"], told["why"]) == (200, 3, "")
    assert world.items("r") == [b"item 7", b"item 23", b"item 39"]
    assert world.items() == names(40, {7, 23, 39})
    queue.check()


def test_the_ids_of_a_look_are_those_of_a_page() -> None:
    world = filled(4)
    _, page = asked(world, "GET", "/api/queues/q/items")
    assert [each["id"] for each in page["items"]] == [each["id"] for each in find(world)["items"]]


def test_deliveries_of_items_that_came_back_are_seen() -> None:
    world = filled(4)
    client = world.client()
    client.says("get q/open")
    client.says("get q/abort")
    settles(world)
    assert data_of(find(world, "tries>=1")) == ["item 0"]
    assert find(world, "tries=0")["found"] == 3


@pytest.mark.parametrize("config", CONFIGS)
def test_a_purge_by_terms_and_its_undo(config: str) -> None:
    world = filled(9, config)
    status, told = asked(world, "POST", "/api/queues/q/purge", {"where": ["regex~[258]$"], "expected": 3})
    assert (status, told["purged"], told["why"]) == (200, 3, "")
    assert world.items() == names(9, {2, 5, 8})
    assert asked(world, "POST", f"/api/undo/{told['undo']}")[1]["returned"] == 3
    assert world.items() == [*names(9, {2, 5, 8}), b"item 2", b"item 5", b"item 8"]


@pytest.mark.parametrize("config", CONFIGS)
def test_a_move_by_terms_and_its_undo(config: str) -> None:
    world = filled(9, config)
    status, told = asked(world, "POST", "/api/queues/q/move", {"to": "r", "where": ["regex~[258]$"]})
    assert (status, told["moved"], told["to"], told["why"]) == (200, 3, "r", "")
    assert world.items() == names(9, {2, 5, 8}) and world.items("r") == [b"item 2", b"item 5", b"item 8"]
    assert asked(world, "POST", f"/api/undo/{told['undo']}")[1]["returned"] == 3
    assert world.items("r") == [] and sorted(world.items()) == names(9)


def test_no_more_than_was_shown_is_taken_and_nothing_that_came_since() -> None:
    world = filled(6)
    admin = Admin(world)
    admin.asks("POST", "/api/queues/q/move", {"to": "r", "where": ["text~item"], "expected": 2})
    world.client().puts("item 6")
    settles(world)
    heard = admin.hears()
    assert heard is not None and heard[1]["moved"] == 2
    assert world.items() == [*names(6)[2:], b"item 6"]
    assert asked(world, "POST", "/api/queues/q/move", {"to": "r", "where": ["text~nothing"]})[1]["moved"] == 0


def test_a_dead_letter_goes_home_by_its_id() -> None:
    config = '[default]\nmax_deliveries = 1\ndead_letter_queue = "dead"\n[queues.dead]\nmax_deliveries = "none"\n'
    world = World(config)
    client = world.client()
    for queue in ("a", "b"):
        for number in range(2):
            client.puts(f"{queue}{number}", queue)
            settles(world)
            client.says(f"get {queue}/open")
            client.says(f"get {queue}/abort")
            settles(world)
    assert world.items("dead") == [b"a0", b"a1", b"b0", b"b1"]
    _, found = asked(world, "POST", "/api/queues/dead/find", {"where": ["origin=b"]})
    assert data_of(found) == ["b0", "b1"]
    one = found["items"][1]["id"]
    _, told = asked(world, "POST", "/api/queues/dead/redrive", {"where": [f"id={one}"]})
    assert told["moved"] == 1 and world.items("b") == [b"b1"]
    _, told = asked(world, "POST", "/api/queues/dead/redrive", {"where": ["regex~[01]$"], "expected": 2})
    assert told["moved"] == 2 and world.items("a") == [b"a0", b"a1"] and world.items("dead") == [b"b0"]
    world.broker.queues.by_name["dead"].check()


def test_a_reader_that_waits_gets_what_was_set_aside_when_it_is_back() -> None:
    world = filled(6)
    admin = Admin(world)
    admin.asks("POST", "/api/queues/q/purge", {"where": ["regex~5$"]})
    queue = world.broker.queues.by_name["q"]
    while len(queue.in_transfer) < 4:
        assert goes_on(world)
    reader = world.client()
    reader.says("get q", "get q", "get q/t=60000")
    settles(world)
    heard = reader.hears()
    assert "item 4" in heard and "item 5" in heard and heard.count("item ") == 3
    told = admin.hears()
    assert told is not None and told[1]["purged"] == 0, "a client has taken it"
    assert len(world.items()) == 3 and not queue.in_transfer
    queue.check()


@pytest.mark.parametrize("cancels", [False, True])
@pytest.mark.parametrize(("path", "body"), [("purge", {}), ("move", {"to": "r"})])
def test_items_that_are_being_given_back_are_shown(
    path: str, body: dict[str, str], cancels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (move, purge):
        monkeypatch.setattr(module, "RETURNED_PER_TURN", 2)
    world = filled(12)
    Admin(world).asks("POST", f"/api/queues/q/{path}", {**body, "where": ["regex~[08]$|11$"]})
    queue, seen = world.broker.queues.by_name["q"], list[OperationView]()
    while len(queue.in_transfer) < 8:
        assert goes_on(world)
    running = next(iter(world.broker.operations.running.values()))
    assert running.view(world.now_ms).returning == 0
    if cancels:
        running.cancel()
    while goes_on(world):
        seen.append(running.view(world.now_ms))
    back = [each for each in seen if each.returning]
    assert len(back) >= 3 and all(each.remaining_ms == -1 for each in back)
    counts = [each.returning for each in back]
    assert counts == sorted(counts, reverse=True) and running.view(world.now_ms).returning == 0
    assert f"gives back {counts[0]} items that stood ahead" in progress_text(back[0])


def test_a_cancelled_one_gives_back_what_was_set_aside() -> None:
    for path, body in (("purge", {}), ("move", {"to": "r"})):
        world = filled(12)
        admin = Admin(world)
        admin.asks("POST", f"/api/queues/q/{path}", {**body, "where": ["regex~[08]$|11$"]})
        queue = world.broker.queues.by_name["q"]
        while len(queue.in_transfer) < 4:
            assert goes_on(world)
        running = next(iter(world.broker.operations.running.values()))
        running.cancel()
        settles(world)
        heard = admin.hears()
        assert heard is not None and heard[1]["why"] == "it was cancelled"
        gone = running.done
        assert 0 < gone < 3 and sorted(world.items()) == sorted(names(12)[:0] + world.items())
        assert len(world.items()) == 12 - gone and world.items() == sorted(world.items(), key=names(12).index)
        queue.check()


def test_what_is_set_aside_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chosen, "ASIDE_ITEMS_MAX", 4)
    for path, body in (("purge", {}), ("move", {"to": "r"}), ("redrive", {})):
        world = filled(9)
        status, told = asked(world, "POST", f"/api/queues/q/{path}", {**body, "where": ["regex~[18]$"]})
        if path == "redrive":
            assert status == 409 and "does not say which queue" in told["error"]
            continue
        assert status == 200 and told.get("purged", told.get("moved")) == 1
        assert "wait behind 4 items" in told["why"]
        assert world.items() == names(9, {1})


def test_one_operation_takes_so_many_and_says_that_there_are_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("staniel.broker.selection.search.CHOSEN_MAX", 2)
    for path, body in (("purge", {}), ("move", {"to": "r"})):
        world = filled(5)
        _, told = asked(world, "POST", f"/api/queues/q/{path}", {**body, "where": ["text~item"], "expected": 4})
        assert told.get("purged", told.get("moved")) == 2 and told["why"] == "2 more are left for another one"
        _, told = asked(world, "POST", f"/api/queues/q/{path}", {**body, "where": ["text~item"], "expected": 2})
        assert told.get("purged", told.get("moved")) == 2 and told["why"] == ""


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("find", {"where": ["x"]}, "is not a term"),
        ("find", {"limit": 1001}, "limit is at most"),
        ("find", {"limit": -1}, "limit is at most"),
        ("find", {"bytes": -1}, "limit is at most"),
        ("find", {"limit": 1000, "bytes": 1 << 20}, "limit is at most"),
        ("purge", {"where": ["x"]}, "is not a term"),
        ("purge", {"where": ["tries>0"], "no_undo": True}, "no_undo goes with whole queues"),
        ("purge", {"where": ["tries=0"], "expected": -1}, "expected is negative"),
        ("move", {"to": "r", "where": ["x"]}, "is not a term"),
        ("move", {"to": "r", "where": ["tries=0"], "count": -1}, "count is negative"),
        ("redrive", {"where": ["x"]}, "is not a term"),
    ],
)
def test_a_bad_request_is_told_and_nothing_is_done(path: str, body: dict[str, object], told: str) -> None:
    world = filled(3)
    status, answer = asked(world, "POST", f"/api/queues/q/{path}", body)
    assert status == 400 and told in answer["error"]
    assert world.items() == names(3)


def test_without_undo_files_a_purge_by_terms_is_refused() -> None:
    world = filled(3, 'admin.undo_time = "none"')
    status, answer = asked(world, "POST", "/api/queues/q/purge", {"where": ["position=1"]})
    assert status == 409 and "undo_time" in answer["error"]
    assert world.items() == names(3)


def test_a_queue_that_is_deleted_meanwhile() -> None:
    for path, body in (("find", {}), ("purge", {}), ("move", {"to": "r"})):
        world = filled(9)
        admin = Admin(world)
        admin.asks("POST", f"/api/queues/q/{path}", {**body, "where": ["regex~8$"]})
        world.client().says("delete q")
        settles(world)
        while (heard := admin.hears()) is None:
            goes_on(world)
        assert heard[0] in (200, 404, 503)
        assert not world.broker.operations.running


Begin = Callable[[Admin], None]
BEGINS: dict[str, Begin] = {
    "purge": lambda admin: admin.asks("POST", "/api/queues/q/purge", {"where": ["regex~item ([158]|13)$"]}),
    "move": lambda admin: admin.asks("POST", "/api/queues/q/move", {"to": "r", "where": ["regex~item ([158]|13)$"]}),
}


@pytest.mark.parametrize("config", DURABLE)
@pytest.mark.parametrize("how", [*Crash, None], ids=[*[each.name for each in Crash], "stop"])
@pytest.mark.parametrize("operation", BEGINS)
def test_a_crash_at_any_step_neither_loses_nor_doubles(operation: str, how: Crash | None, config: str) -> None:
    for steps in range(1000):
        world = filled(15, config)
        BEGINS[operation](Admin(world))
        is_more = all(goes_on(world) for _ in range(steps))
        if how is None:
            world.broker.shutdown(world.now_ms)
            disk = world.disk.crash(Crash.DROP)
        else:
            disk = world.disk.crash(how)
        again = World(config, disk, world.now_ms)
        settles(again)
        queue = again.broker.queues.by_name["q"]
        queue.check()
        left = again.items()
        assert left == sorted(left, key=names(15).index), "the others keep their order"
        assert set(names(15, {1, 5, 8, 13})) <= set(left), "no other item is taken, by no start either"
        for each in asked(again, "GET", "/api/undo")[1]:
            assert asked(again, "POST", f"/api/undo/{each['id']}")[0] == 200
        assert sorted(again.items() + again.items("r")) == sorted(names(15)), steps
        if not is_more:
            break
    assert steps > 8


@pytest.mark.parametrize("operation", BEGINS)
def test_an_operation_that_a_crash_cut_off_says_so(operation: str) -> None:
    world = filled(15)
    BEGINS[operation](Admin(world))
    while not any(each.done for each in world.broker.operations.running.values()):
        assert goes_on(world)
    world.turn(1)
    again = World("", world.disk.crash(Crash.KEEP), world.now_ms)
    settles(again)
    (ended,) = asked(again, "GET", "/api/operations")[1]
    assert (ended["operation"], ended["state"]) == (operation, "failed")
    assert ended["why"] == CUT_OFF and 0 < ended["done"] < 4


@pytest.mark.parametrize("path", ["purge", "move"])
@pytest.mark.parametrize("config", DURABLE)
def test_a_deletion_beside_it_loses_nothing_that_was_set_aside(path: str, config: str) -> None:
    """It found the queue empty, deleted it, and what was set aside was in no file."""
    outcomes = set()
    for steps in range(40):
        world = filled(20, config)
        body = {"where": ["regex~item 19$"], **({"to": "r"} if path == "move" else {})}
        first, second = Admin(world), Admin(world)
        first.asks("POST", f"/api/queues/q/{path}", body)
        is_more = all(goes_on(world) for _ in range(steps))
        second.asks("DELETE", "/api/queues/q", {})
        settles(world)
        while (heard := second.hears()) is None:
            assert goes_on(world)
        assert heard[0] == (409 if "by terms: wait" in str(heard[1]) else 200)
        assert (heard[0] == 200) is (world.broker.queues.find("q") is None)
        outcomes.add(heard[0])
        for each in asked(world, "GET", "/api/undo")[1]:
            assert asked(world, "POST", f"/api/undo/{each['id']}")[0] == 200
        assert sorted(world.items() + world.items("r")) == sorted(names(20)), steps
        if not is_more:
            break
    assert outcomes == {200, 409}


@pytest.mark.parametrize("path", ["purge", "move"])
@pytest.mark.parametrize("config", DURABLE)
def test_what_is_set_aside_of_a_queue_that_is_being_deleted_goes_into_its_file(path: str, config: str) -> None:
    for steps in range(12):
        world = filled(20, config)
        first, second = Admin(world), Admin(world)
        first.asks("DELETE", "/api/queues/q", {})
        for _ in range(steps):
            goes_on(world)
        body = {"where": ["regex~item 19$"], **({"to": "r"} if path == "move" else {})}
        second.asks("POST", f"/api/queues/q/{path}", body)
        settles(world)
        assert first.hears() is not None and world.broker.queues.find("q") is None
        for each in asked(world, "GET", "/api/undo")[1]:
            assert asked(world, "POST", f"/api/undo/{each['id']}")[0] == 200
        assert sorted(world.items() + world.items("r")) == sorted(names(20)), steps


@pytest.mark.parametrize("config", CONFIGS)
def test_a_client_that_deletes_the_queue_is_answered_and_the_operation_ends(config: str) -> None:
    for steps in range(0, 12, 2):
        world = filled(20, config)
        admin, client = Admin(world), world.client()
        admin.asks("POST", "/api/queues/q/move", {"to": "r", "where": ["regex~item 19$"]})
        for _ in range(steps):
            goes_on(world)
        client.says("delete q")
        settles(world)
        assert "DELETED" in client.hears() and admin.hears() is not None
        assert not world.broker.operations.running and world.broker.queues.find("q") is None


def test_one_that_is_held_back_again_and_again_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    world = filled(20)
    admin = Admin(world)
    admin.asks("POST", "/api/queues/q/move", {"to": "r", "where": ["regex~item 19$"]})
    monkeypatch.setattr(world.broker.transfers, "is_held_back", lambda queue: bool(queue.in_transfer))
    settles(world)
    heard = admin.hears()
    assert heard is not None and "was rewritten 20 times" in str(heard[1])
    assert world.items() == names(20) and not world.broker.operations.running


@pytest.mark.parametrize("where", [[], ["regex~[13]$"]])
@pytest.mark.parametrize("path", ["purge", "move"])
def test_a_pause_is_for_clients(path: str, where: list[str]) -> None:
    """A move of a paused queue moved nothing, and said so as if it were done."""
    world = filled(5)
    asked(world, "POST", "/api/queues/q/pause", {"gets": True, "puts": False})
    to = {"to": "r"} if path == "move" else {}
    _, told = asked(world, "POST", f"/api/queues/q/{path}", {"where": where, **to})
    assert told.get("purged", told.get("moved")) == (2 if where else 5)
    assert world.broker.queues.by_name["q"].gets_paused


def test_two_by_terms_go_one_after_the_other() -> None:
    world = filled(9)
    first = Admin(world)
    first.asks("POST", "/api/queues/q/move", {"to": "r", "where": ["regex~8$"]})
    while not world.broker.operations.running:
        assert goes_on(world)
    second = Admin(world)
    second.asks("POST", "/api/queues/q/purge", {"where": ["position=0"]})
    while (heard := second.hears()) is None:
        assert takes_turn(world)
    assert heard[0] == 409 and "searches q by terms" in heard[1]["error"]
    settles(world)
    assert world.items() == names(9, {8})


@pytest.mark.parametrize("path", ["purge", "move"])
def test_a_turn_passes_no_more_than_its_share(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many chosen ones stand between the others: each began the share anew."""
    monkeypatch.undo()
    world = filled(2000)
    queue, most, before, is_more = world.broker.queues.by_name["q"], 0, 0, True
    to = {"to": "r"} if path == "move" else {}
    Admin(world).asks("POST", f"/api/queues/q/{path}", {"where": ["regex~[05]0$"], **to})
    while is_more:
        is_more = takes_turn(world)
        most, before = max(most, len(queue.in_transfer) - before), len(queue.in_transfer)
        is_more = world.sync() or is_more
        for task in world.start_tasks():
            world.finish_task(task)
            is_more = True
    assert len(world.items()) == 1961
    assert chosen.PASSED_PER_TURN // 2 < most <= 4 * chosen.PASSED_PER_TURN


def test_items_that_a_full_target_does_not_take_come_back_to_their_places() -> None:
    world = filled(9, "queues.r.max_items = 1\n")
    status, told = asked(world, "POST", "/api/queues/q/move", {"to": "r", "where": ["regex~[2478]$"]})
    assert (status, told["moved"]) == (200, 1) and "r is full" in told["why"]
    assert world.items("r") == [b"item 2"] and world.items() == names(9, {2})


def test_items_of_an_undo_file_that_cannot_be_written_come_back_to_their_places() -> None:
    world = filled(9)
    admin = Admin(world)
    admin.asks("POST", "/api/queues/q/purge", {"where": ["regex~[2478]$"]})
    world.disk.fail("write", "undo/", errno.EIO, times=100)
    settles(world)
    heard = admin.hears()
    assert heard is not None and heard[0] == 503 and "the undo file cannot be written" in heard[1]["error"]
    assert world.items() == names(9)
    assert find(world, "tries>0")["found"] == 0, "no client has seen them"


def test_what_is_shown_is_not_kept_whole() -> None:
    world = filled(0)
    world.client().puts("x" * 100_000)
    settles(world)
    seen: list[int] = []

    def show(each: Candidate) -> bool:
        seen.append(each.position)
        return False

    found = search.ItemSearch(world.broker.queues.by_name["q"], parse([]), world.now_ms, show)
    assert list(found.pieces()) == [None] and seen == [0]
    assert not found.chosen.count, "a look chooses nothing"


def test_the_audit_log_names_the_terms() -> None:
    world = filled(3)
    asked(world, "POST", "/api/queues/q/move", {"to": "r", "where": ["text~item", "position=1"]})
    done, begun = asked(world, "GET", "/api/audit")[1][:2]
    assert (begun["result"], begun["why"], begun["items"]) == ("begun", "where text~item and position=1", 1)
    assert (done["result"], done["why"], done["items"]) == ("done", "", 1)


DEAD_LETTERS = "\n".join(f'queues.{name}.max_deliveries=1\nqueues.{name}.dead_letter_queue="q"' for name in "ab")


def past_of_each(found: dict[str, Any]) -> list[str]:
    return [each["past"]["origin"] for each in found["items"]]


@pytest.mark.parametrize("origin", ["a", "b"])
def test_of_items_put_at_the_same_moment_with_equal_payloads_those_go_that_the_terms_name(origin: str) -> None:
    """The other queue's dead letter went instead."""
    world = World(DEAD_LETTERS)
    client, worker = world.client(), world.client()
    for name in "ab":
        client.puts("ping", name)
    settles(world)
    for name in "ab":
        worker.says(f"get {name}/open")
    worker.session.close(world.now_ms)
    settles(world)
    assert sorted(past_of_each(find(world))) == ["a", "b"]
    assert asked(world, "POST", "/api/queues/q/purge", {"where": [f"origin={origin}"]})[1]["purged"] == 1
    assert past_of_each(find(world)) == [name for name in "ab" if name != origin]


def test_of_equal_items_the_one_with_that_end_of_life_goes() -> None:
    world = World()
    client = world.client()
    for expiry in (0, 60):
        client.says(f"set q 0 {expiry} 4", "ping")
    settles(world)
    lasting = find(world)["items"][0]["expires_at_ms"]
    assert asked(world, "POST", "/api/queues/q/purge", {"where": ["position=1"]})[1]["purged"] == 1
    assert [each["expires_at_ms"] for each in find(world)["items"]] == [lasting]


@pytest.mark.parametrize("config", CONFIGS)
def test_of_equal_items_the_one_that_was_tried_so_often_goes(config: str) -> None:
    world = World(config)
    client, other = world.client(), world.client()
    for _ in range(3):
        client.puts("ping")
    settles(world)
    client.says("get q/open")
    for _ in range(3):
        other.says("get q/open")
        other.says("get q/abort")
    client.says("get q/abort")
    settles(world)
    assert [each["deliveries"] for each in find(world)["items"]] == [1, 3, 0]
    assert asked(world, "POST", "/api/queues/q/purge", {"where": ["tries>=3"]})[1]["purged"] == 1
    assert [each["deliveries"] for each in find(world)["items"]] == [1, 0]


@pytest.mark.parametrize("path", ["purge", "move"])
def test_an_undo_does_not_take_for_gone_what_another_operation_has_set_aside(path: str) -> None:
    """It answered that the items were gone, and could not be done again."""
    world = World()
    client = world.client()
    for number in range(5):
        client.puts(f"moved {number}", "a")
    settles(world)
    undo = asked(world, "POST", "/api/queues/a/move", {"to": "q"})[1]["undo"]
    for number in range(20):
        client.puts(f"item {number}")
    settles(world)
    by_terms, admin = Admin(world), Admin(world)
    body = {"where": ["text~item 19"], **({"to": "r"} if path == "move" else {})}
    by_terms.asks("POST", f"/api/queues/q/{path}", body)
    while len(world.broker.queues.by_name["q"].in_transfer) < 6:
        assert goes_on(world)
    admin.asks("POST", f"/api/undo/{undo}")
    settles(world)
    heard = admin.hears()
    assert heard is not None and heard[0] == 503 and "items of q set aside" in heard[1]["error"]
    assert asked(world, "POST", f"/api/undo/{undo}")[1]["returned"] == 5
    assert world.items("a") == [f"moved {number}".encode() for number in range(5)]


@pytest.mark.parametrize("body", [{}, {"no_undo": True}])
def test_a_purge_of_the_whole_queue_says_what_another_operation_has_set_aside(body: dict[str, bool]) -> None:
    world = filled(20)
    by_terms, admin = Admin(world), Admin(world)
    by_terms.asks("POST", "/api/queues/q/move", {"to": "r", "where": ["text~item 19"]})
    while not world.broker.queues.by_name["q"].in_transfer:
        assert goes_on(world)
    admin.asks("POST", "/api/queues/q/purge", body)
    settles(world)
    heard = admin.hears()
    assert heard is not None and heard[0] == 200 and heard[1]["purged"] < 20
    assert "items of q set aside until its end" in heard[1]["why"]
