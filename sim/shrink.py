"""The shortening of a failing history: steps are skipped as long as the rest still fails in the same way."""

from __future__ import annotations

from msgspec import structs

from staniel.sim.history import Outcome, SeedPlan
from staniel.sim.run import history_of

RUNS_MAX = 400


def shrink(seed_plan: SeedPlan) -> Outcome:
    """Return the outcome of the shortest history that was found; that of `seed_plan` itself if it does not fail."""
    best = history_of(seed_plan).outcome()
    if best.violation is None:
        return best
    kind, skipped, runs = best.violation.kind, set(seed_plan.skipped), 0
    size = seed_plan.steps // 2
    while size:
        at = 0
        while at < seed_plan.steps and runs < RUNS_MAX:
            part = set(range(at, min(at + size, seed_plan.steps))) - skipped
            at += size
            if not part:
                continue
            runs += 1
            outcome = history_of(structs.replace(seed_plan, skipped=frozenset(skipped | part))).outcome()
            if outcome.violation is not None and outcome.violation.kind is kind:
                best, skipped = outcome, skipped | part
        size //= 2
    return best
