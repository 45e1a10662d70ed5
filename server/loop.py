"""The loop that runs the hub under trio: poll, run a turn, wait if there is nothing to do.

All sockets are in one epoll descriptor, the only thing that trio waits for: a task, or even a cancel scope, for each
request would cost more than serving it (see docs/decisions/0001).
"""

from __future__ import annotations

from math import inf

import trio

from staniel.server.gc_policy import GcPolicy
from staniel.server.hub import Hub
from staniel.server.machine import SystemMachine
from staniel.server.read_schedule import EVENTS_PER_TURN

BRIEF_WAIT_S = 0.001
UNWATCHED_WAIT_S = 0.01
TURNS_A_CHECKPOINT = 32  # under load trio's other tasks (signals) run after so many turns


class Loop:
    """A driver of a hub on its machine."""

    def __init__(self, hub: Hub, machine: SystemMachine, gc_policy: GcPolicy) -> None:
        self.hub = hub
        self._machine = machine
        self._collector = gc_policy
        self._wait_scope = trio.CancelScope()

    def stop(self) -> None:
        """Leave `run` after this turn. Any task may call it."""
        self.hub.stop()
        self._wait_scope.cancel()

    def reload(self) -> None:
        """Reload the configuration in a turn that follows at once. Any task may call it."""
        self.hub.reload()
        self._wait_scope.cancel()

    async def run(self) -> None:
        """Serve until stopped. Raises JournalFailure: then no unacknowledged change has been replied to. What ends the
        service otherwise waits for the disk's calls that have begun. The next program depends on what files show, and
        only this one learns that a sync which runs now has failed.
        """
        try:
            await self._serve()
        except BaseException:
            self._machine.syncs.wait_for_task()
            self._machine.tasks.wait_for_task()
            raise

    async def _serve(self) -> None:
        hub, poller = self.hub, self._machine.poller
        turns = 0
        while not hub.is_stopping:
            # A short blocking poll first: under load the next request is microseconds away, and a trip through trio's
            # scheduler costs as much as serving it.
            idle = hub.is_idle
            events = poller.poll(BRIEF_WAIT_S if idle else 0, EVENTS_PER_TURN)
            turns += 1
            if not events and idle:
                await self._wait()
                events = poller.poll(0, EVENTS_PER_TURN)
            elif turns % TURNS_A_CHECKPOINT == 0:
                await trio.lowlevel.checkpoint()
            hub.turn(events)

    async def _wait(self) -> None:
        """Wait until a socket is ready or the broker has something to do."""
        hub = self.hub
        now_ms = hub.clock.now_ms()
        self._collector.idle(hub.broker.maintenance.memory.used_bytes, hub.broker.queues.deleted, now_ms)
        seconds = (hub.next_ms() - now_ms) / 1000
        with trio.move_on_after(max(0.0, seconds) if seconds < 1e9 else inf) as self._wait_scope:
            try:
                await trio.lowlevel.wait_readable(self._machine.poller.fileno())
            except OSError:  # trio's own epoll cannot watch ours: no memory, or no watch left for this user
                await trio.sleep(UNWATCHED_WAIT_S)
