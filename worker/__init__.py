"""Workers: programs that take items from queues and call a function with each. See docs/worker.md.

`worker` starts and stops the lanes of one process; a `lane` takes items over a connection of its own and calls the
function by one of `runners`, in its thread, in a process or on an event loop; `keeper` extends open items and enforces
time limits; `ledger` knows what became of each item; `periodic` puts items at the times of cron expressions. All of it
uses `staniel.client` as any program could, and nothing of the server.
"""

from __future__ import annotations

from staniel.worker.dead import DeadLetter, GiveUp
from staniel.worker.events import Hooks
from staniel.worker.periodic import Periodic, Schedule
from staniel.worker.settings import Mode, Order, Server, Settings
from staniel.worker.worker import Ending, Worker

__all__ = [
    "DeadLetter",
    "Ending",
    "GiveUp",
    "Hooks",
    "Mode",
    "Order",
    "Periodic",
    "Schedule",
    "Server",
    "Settings",
    "Worker",
]
