"""Work through a queue with Staniel's client on trio: every job at least once, whatever is killed meanwhile.

    python worker_trio.py --queue jobs --done done.txt

It may be killed at any time: a job that was not closed goes back to the head of the queue.

It needs the extra `aio`: pip install 'staniel[aio]'
"""

from __future__ import annotations

import argparse
import hashlib
import random
from pathlib import Path

import trio

import staniel.client
from staniel.client import ConnectionLost, Item, Refused, TrioClient

WAIT_SECONDS = 1.0
PAUSE_SECONDS_MAX = 5.0


class Done:
    """Which items this worker has finished, in a file, so that it also knows after it was killed."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a+")
        self._file.seek(0)
        self._marks = set(self._file.read().split())

    def __contains__(self, mark: str) -> bool:
        return mark in self._marks

    def add(self, mark: str) -> None:
        self._marks.add(mark)
        print(mark, file=self._file, flush=True)


async def main() -> None:
    args = arguments()
    done = Done(args.done)
    pause, last_job = 0.1, trio.current_time()
    while trio.current_time() - last_job < args.idle_s:
        try:
            async with staniel.client.connect(args.host, args.port) as client:
                while trio.current_time() - last_job < args.idle_s:
                    if await work_once(client, args, done):
                        last_job = trio.current_time()
                    pause = 0.1  # a server that refuses is connected to all the same
        except (ConnectionLost, Refused) as lost:
            # What was open is back in the queue. A server refuses reads for a time (`status quiescent`), or for good
            # (no such name): the lines of the log will show it.
            print(f"lost {lost}", flush=True)
            await trio.sleep(pause * random.uniform(0.5, 1))
            pause = min(2 * pause, PAUSE_SECONDS_MAX)


async def work_once(client: TrioClient, args: argparse.Namespace, done: Done) -> bool:
    """Open a job, work, close it. If anything goes wrong before the close reaches the server, the job comes again."""
    async with client.reserve(args.queue, wait_s=WAIT_SECONDS) as item:
        if item is None:
            return False
        mark = mark_of(item)
        if mark in done:
            print(f"again {item.data.decode()}", flush=True)
        else:
            await work(item.data, args.work_ms)
            done.add(mark)
    return True


def mark_of(item: Item) -> str:
    """The same for every delivery of one item; the digest keeps items apart should two ever have the same id."""
    return f"{item.id}-{hashlib.sha256(item.data).hexdigest()[:16]}"


async def work(job: bytes, work_ms: int) -> None:
    """Your work. It may be cut off at any point, and is then done again from the start."""
    print(f"begin {job.decode()}", flush=True)
    await trio.sleep(work_ms / 1000)
    print(f"done {job.decode()}", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Work through a queue.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=22133)
    parser.add_argument("--queue", default="jobs")
    parser.add_argument("--done", type=Path, default=Path("done.txt"), help="file of finished items [done.txt]")
    parser.add_argument("--work-ms", type=int, default=0, help="how long a job takes [0]")
    parser.add_argument("--idle-s", type=float, default=float("inf"), help="stop after so long without a job [never]")
    return parser.parse_args()


if __name__ == "__main__":
    trio.run(main)
