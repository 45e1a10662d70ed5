"""Work through a queue with pymemcache: every job at least once, whatever is killed meanwhile.

    python worker_pymemcache.py --queue jobs --done done.txt

It may be killed at any time: a job that was not closed goes back to the head of the queue.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import time
from pathlib import Path

from login_pymemcache import LoginClient
from pymemcache.exceptions import MemcacheError

WAIT_MS = 1000
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


def main() -> None:
    args = arguments()
    done = Done(args.done)
    # One connection and no pool: a job can be closed only on the connection that opened it.
    secret = args.secret_file.read_text().strip().encode() if args.user else b""
    client = LoginClient(
        (args.host, args.port), user=args.user, secret=secret, connect_timeout=5, timeout=30, no_delay=True
    )
    pause, last_job = 0.1, time.monotonic()
    while time.monotonic() - last_job < args.idle_s:
        try:
            if work_once(client, args, done):
                last_job = time.monotonic()
            pause = 0.1
        except (MemcacheError, OSError) as error:
            # What was open is back in the queue. pymemcache connects again with the next request.
            client.close()
            print(f"lost {error!r}", flush=True)
            time.sleep(pause * random.uniform(0.5, 1))
            pause = min(2 * pause, PAUSE_SECONDS_MAX)


def work_once(client: LoginClient, args: argparse.Namespace, done: Done) -> bool:
    """Open a job, work, close it. If anything goes wrong before the close reaches the server, the job comes again."""
    job, item_id = client.gets(f"{args.queue}/t={WAIT_MS}/open")
    if job is None:
        return False
    mark = mark_of(item_id.decode(), job)
    if mark in done:
        print(f"again {job.decode()}", flush=True)
    else:
        work(job, args.work_ms)
        done.add(mark)
    client.get(f"{args.queue}/close")
    return True


def mark_of(item_id: str, job: bytes) -> str:
    """The same for every delivery of one item; the digest keeps items apart should two ever have the same id."""
    return f"{item_id}-{hashlib.sha256(job).hexdigest()[:16]}"


def work(job: bytes, work_ms: int) -> None:
    """Your work. It may be cut off at any point, and is then done again from the start."""
    print(f"begin {job.decode()}", flush=True)
    time.sleep(work_ms / 1000)
    print(f"done {job.decode()}", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Work through a queue.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=22133)
    parser.add_argument("--queue", default="jobs")
    parser.add_argument("--user", default="", help="of a server with users [none]")
    parser.add_argument("--secret-file", type=Path, help="file with the user's password or token")
    parser.add_argument("--done", type=Path, default=Path("done.txt"), help="file of finished items [done.txt]")
    parser.add_argument("--work-ms", type=int, default=0, help="how long a job takes [0]")
    parser.add_argument("--idle-s", type=float, default=float("inf"), help="stop after so long without a job [never]")
    return parser.parse_args()


if __name__ == "__main__":
    main()
