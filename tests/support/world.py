"""The simulator's world for tests that tell one story: whatever is to be done behind clients' backs is done at once."""

from __future__ import annotations

from staniel.sim.disk.durable import Choose, Crash
from staniel.sim.world import START_MS, Client
from staniel.sim.world import World as SimWorld

__all__ = ["START_MS", "Client", "World", "send_copies"]


class World(SimWorld):
    """After every turn and every sync all tasks are done, and what follows from them."""

    def turn(self, ms: int = 0) -> None:
        super().turn(ms)
        self.do_tasks()

    def sync(self) -> bool:
        ran = super().sync()
        self.do_tasks()
        return ran

    def do_tasks(self) -> None:
        upkeep = self.broker.maintenance
        for _ in range(10_000):
            super().do_tasks()
            if not upkeep.is_busy:
                return
            upkeep.run_slices(self.now_ms)
        raise AssertionError("tasks without end")

    def crash(self, how: Crash | Choose) -> World:
        """The server started again after power loss."""
        return World(self.config, self.disk.crash(how), self.now_ms + 1000)


def send_copies(world: SimWorld, line: str) -> Client:
    """Ask for a move; its copies are written then, and not synced. Returns the client."""
    client = world.client().says(line)
    world.sync()  # of the operation's file
    world.turn()
    return client
