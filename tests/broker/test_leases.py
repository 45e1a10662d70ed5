"""Open reads of thrift's clients, as operators see them: how many each client has, and since when the oldest."""

from __future__ import annotations

from staniel.broker.admin import views
from staniel.broker.admin.views import HeldView
from staniel.queues.queue import Queue
from tests.support.world import World


def open_one(world: World, queue: Queue) -> int:
    taken = queue.open(world.now_ms)
    assert taken is not None
    (session,) = world.broker.sessions
    return world.broker.leases.grant(session.number, session.address, queue, taken, world.now_ms + 3_600_000)


def test_a_client_is_silent_since_it_last_sent_or_took_something() -> None:
    world = World()
    world.client().says("version")
    world.turn(1500)
    began_ms = world.now_ms - 1500
    for active_ms, silent_ms in ((0, -1), (began_ms, 1500), (world.now_ms + 7, 0)):
        shown = views.clients(
            world.broker.sessions, world.broker.leases, lambda session, at=active_ms: at, 0, 10, world.now_ms
        )
        assert [client.silent_ms for client in shown] == [silent_ms]
    assert world.broker.active_ms_of(next(iter(world.broker.sessions))) == 0, "there is no hub"


def test_leases_tell_since_when_the_oldest_is_held() -> None:
    world = World()
    client = world.client()
    for number in range(4):
        client.puts(f"{number}", "jobs")
    queue = world.broker.queues.find("jobs")
    assert queue is not None

    def held() -> tuple[HeldView, ...]:
        (found,) = views.clients(world.broker.sessions, world.broker.leases, lambda session: 0, 0, 10, world.now_ms)
        assert found.open_reads == sum(each.count for each in found.holds)
        return found.holds

    moments, numbers = [], []
    for _ in range(3):
        moments.append(world.now_ms)
        numbers.append(open_one(world, queue))
        world.turn(1000)
    (session,) = world.broker.sessions
    assert held() == (HeldView("jobs", 3, moments[0]),) and world.broker.leases.held(session.number, "jobs") == 3
    world.broker.leases.pop(numbers[1])
    assert held() == (HeldView("jobs", 2, moments[0]),)
    world.broker.leases.pop(numbers[0])
    assert held() == (HeldView("jobs", 1, moments[2]),)
    world.broker.leases.pop(numbers[2])
    assert held() == () and world.broker.leases.held(session.number, "jobs") == 0
    assert world.broker.leases.pop(numbers[2]) is None
