"""Drains one batch from a server into a spool and says how far it came; a process that tests kill between two steps.

    python -m tests.pipeline.drainer SERVER QUEUE SPOOL BATCH ITEMS [STEP]

With STEP it waits for ever behind that step, having said `at STEP`.
"""

from __future__ import annotations

import sys
import time

from staniel.pipeline.sources.drain import BatchLimits, Drain, DrainStep
from staniel.pipeline.sources.drain_spool import DrainSpool


def main() -> None:
    server, queue, place, batch, items = sys.argv[1:6]
    stop_at = sys.argv[6] if len(sys.argv) > 6 else ""

    def after(step: DrainStep) -> None:
        if step.value == stop_at:
            print("at", step.value, flush=True)
            while True:
                time.sleep(60)

    spool = DrainSpool(place)
    with spool:
        count = Drain([server], [queue], spool, connections=2, after=after).fill(
            int(batch), BatchLimits(int(items), 1 << 40), 0
        )
    print("drained", count, flush=True)


if __name__ == "__main__":
    main()
