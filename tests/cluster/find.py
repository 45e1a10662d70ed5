"""Look for the first seed that finds each mutant: python -m tests.cluster.find [NAME ...] [--seeds 300]

A story that ends as STUCK or THIN is passed over, where a worse one can be found.
"""

from __future__ import annotations

import argparse

from tests.cluster.mutants import MUTANTS
from tests.cluster.run import run

WORST = {"LOST", "TRUTH", "DIVERGED", "STALE", "FOREIGN", "SPLIT"}
MILD = {
    "answer_early": {"TRUTH", "LOST"},
    "look_without_round": {"STALE"},
    "held_replies_kept": {"LOST"},
    "min_when_written": {"THIN"},
    "asked_for_ever": {"STUCK"},
    "lease_of_a_hung_disk": {"STUCK"},
    "match_by_length": {"STUCK"},
    "epoch_in_memory": {"PROMISE"},
    "compacted_unsynced": {"STOPPED"},
    "compacted_promise": {"PROMISE", *WORST},
}
"""What a mutant is called out as, where it is not any of WORST."""


def look_for(name: str, seeds: int) -> tuple[int, str, str] | None:
    """Return the first seed that finds the mutant, its kind and its words."""
    make, profile = MUTANTS[name]
    with make():
        for seed in range(seeds):
            outcome = run(seed, profile)
            if outcome.kind in MILD.get(name, WORST):
                return seed, outcome.kind, outcome.why
    return None


def main() -> None:
    """Print a line for each mutant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=300)
    args = parser.parse_args()
    for name in args.names or MUTANTS:
        row = look_for(name, args.seeds)
        line = f'"{name}": ({row[0]}, "{row[1]}"),  # {row[2][:80]}' if row else f"not found: {name}"
        print(f"    {line}", flush=True)


if __name__ == "__main__":
    main()
