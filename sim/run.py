"""One seed, run as its profile wants it. Knows which histories there are; refuses to know what happens in them."""

from __future__ import annotations

from sim.history import STEPS, History, Outcome, Plans
from sim.hub_run import HubRun
from sim.job_run import JobRun
from sim.profiles import PROFILES
from sim.queue_run import QueueRun


def history_of(plans: Plans) -> History:
    """A history that has not begun."""
    if plans.profile.hub:
        return HubRun(plans)
    return JobRun(plans) if plans.profile.jobs else QueueRun(plans)


def run(seed: int, profile: str = "everything", crashes: int = 4, steps: int = STEPS) -> Outcome:
    """One seed of a profile."""
    return history_of(Plans(seed, PROFILES[profile], crashes, steps)).outcome()
