"""One seed, run as its profile wants it. Knows which histories there are; refuses to know what happens in them."""

from __future__ import annotations

from staniel.sim.history import STEPS, History, Outcome, Plans
from staniel.sim.hub.run import HubRun
from staniel.sim.jobs.run import JobRun
from staniel.sim.profiles import PROFILES
from staniel.sim.queues.run import QueueRun


def history_of(plans: Plans) -> History:
    """A history that has not begun."""
    if plans.profile.hub:
        return HubRun(plans)
    return JobRun(plans) if plans.profile.jobs else QueueRun(plans)


def run(seed: int, profile: str = "everything", crashes: int = 4, steps: int = STEPS) -> Outcome:
    """One seed of a profile."""
    return history_of(Plans(seed, PROFILES[profile], crashes, steps)).outcome()
