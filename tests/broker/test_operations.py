"""Long operations have an id: operators see how far they are, and end them early."""

from __future__ import annotations

from staniel.broker.operations.move import ITEMS_PER_SLICE
from staniel.sim.world import World
from tests.broker.test_undo import Admin, asked, filled, goes_on, settles

COUNT = 8 * ITEMS_PER_SLICE


def shown(world: World) -> list[dict[str, object]]:
    found: list[dict[str, object]] = asked(world, "GET", "/api/operations")[1]
    return found


def test_a_running_move_tells_how_far_it_is() -> None:
    world = filled(COUNT)
    mover, watcher = Admin(world), Admin(world)
    mover.asks("POST", "/api/queues/q/move", {"to": "r"})
    while not world.broker.operations.running or not next(iter(world.broker.operations.running.values())).done:
        goes_on(world)
    world.now_ms += 1000
    watcher.asks("GET", "/api/operations")
    heard = watcher.hears()
    assert heard is not None
    one = heard[1][0]
    assert (one["operation"], one["queue"], one["target"], one["state"]) == ("move", "q", "r", "running")
    assert 0 < one["done"] < one["total"] == COUNT and one["rate_per_second"] > 0 and one["remaining_ms"] > 0
    settles(world)
    told = mover.hears()
    assert told is not None and told[1]["undo"] == one["id"]
    ended = shown(world)[0]
    assert (ended["state"], ended["done"], ended["undo"]) == ("done", COUNT, one["id"])
    assert asked(world, "GET", f"/api/operations/{one['id']}")[1] == ended


def cancelled(world: World, method: str, path: str, body: object = None) -> dict[str, object]:
    """What came of an operation that was cancelled after its first items."""
    world.client()
    admin = Admin(world)
    admin.asks(method, path, body)
    while not any(each.done for each in world.broker.operations.running.values()):
        goes_on(world)
    number = next(iter(world.broker.operations.running))
    assert asked(world, "POST", f"/api/operations/{number}/cancel")[0] == 200
    settles(world)
    found: dict[str, object] = asked(world, "GET", f"/api/operations/{number}")[1]
    assert found["state"] == "cancelled" and asked(world, "POST", f"/api/operations/{number}/cancel")[0] == 409
    return found


def test_a_move_is_cancelled_between_items_and_undone() -> None:
    world = filled(COUNT)
    before = world.items("q")
    found = cancelled(world, "POST", "/api/queues/q/move", {"to": "r"})
    done = found["done"]
    assert isinstance(done, int) and 0 < done < COUNT
    assert world.items("r") == before[:done] and world.items("q") == before[done:]
    told = asked(world, "POST", f"/api/undo/{found['undo']}")[1]
    assert told["returned"] == done and sorted(world.items("q")) == sorted(before)


def test_an_undo_is_cancelled_and_begun_again() -> None:
    world = filled(COUNT)
    number = asked(world, "POST", "/api/queues/q/move", {"to": "r"})[1]["undo"]
    found = cancelled(world, "POST", f"/api/undo/{number}")
    done = found["done"]
    assert isinstance(done, int) and 0 < done < COUNT and len(world.items("q")) == done
    told = asked(world, "POST", f"/api/undo/{number}")[1]
    assert (told["returned"], told["gone"]) == (COUNT - done, 0) and len(world.items("q")) == COUNT


def test_a_purge_is_cancelled_and_undone() -> None:
    world = filled(COUNT)
    found = cancelled(world, "POST", "/api/queues/q/purge")
    done = found["done"]
    assert isinstance(done, int) and len(world.items("q")) == COUNT - done
    assert asked(world, "POST", f"/api/undo/{found['undo']}")[1]["returned"] == done


def test_an_unknown_operation_is_told() -> None:
    world = filled(1)
    for path in ("/api/operations/7", "/api/operations/x"):
        status, told = asked(world, "GET", path)
        assert status == 404 and "there is no operation" in told["error"]
