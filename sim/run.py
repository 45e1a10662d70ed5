"""Starts the history of a seed: of queues, of jobs or of the hub, as its profile says."""

from __future__ import annotations

from staniel.sim.history import STEPS, History, Outcome, SeedPlan
from staniel.sim.holds import HoldJobRun, HoldQueueRun
from staniel.sim.hub.delays import DelayRun
from staniel.sim.hub.deletions import DeletionRun
from staniel.sim.hub.equal import EqualRun
from staniel.sim.hub.ids import IdRun
from staniel.sim.hub.keys import KeyRun
from staniel.sim.hub.limits import LimitRun
from staniel.sim.hub.redrives import RedriveRun
from staniel.sim.hub.run import HubRun
from staniel.sim.hub.several import SeveralRun
from staniel.sim.hub.shares import ShareRun
from staniel.sim.hub.users import UserRun
from staniel.sim.jobs.run import JobRun
from staniel.sim.profiles import PROFILES
from staniel.sim.queues.run import QueueRun


def history_of(seed_plan: SeedPlan) -> History:
    """Return a history that has not begun."""
    if seed_plan.profile.hub:
        profile = seed_plan.profile
        if profile.metered:
            return ShareRun(seed_plan)
        if profile.redrives:
            return RedriveRun(seed_plan)
        if profile.deletions:
            return DeletionRun(seed_plan)
        if profile.equal:
            return EqualRun(seed_plan)
        if profile.by_id:
            return IdRun(seed_plan)
        if profile.keyed:
            return KeyRun(seed_plan)
        if profile.several:
            return SeveralRun(seed_plan)
        if profile.delayed:
            return DelayRun(seed_plan)
        return (UserRun if profile.users else LimitRun if profile.limits else HubRun)(seed_plan)
    if seed_plan.profile.holds:
        return HoldJobRun(seed_plan) if seed_plan.profile.jobs else HoldQueueRun(seed_plan)
    return JobRun(seed_plan) if seed_plan.profile.jobs else QueueRun(seed_plan)


def run(seed: int, profile: str = "everything", crashes: int = 4, steps: int = STEPS) -> Outcome:
    """Run one seed of a profile; return its outcome."""
    return history_of(SeedPlan(seed, PROFILES[profile], crashes, steps)).outcome()
