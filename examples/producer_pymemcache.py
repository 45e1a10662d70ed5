"""Put jobs into a queue with pymemcache, and do not count one as put before the server has said so.

python producer_pymemcache.py --queue jobs --count 100
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

from login_pymemcache import LoginClient
from pymemcache.exceptions import MemcacheError

PAUSE_SECONDS_MAX = 5.0


def main() -> None:
    args = arguments()
    # One connection, no pool. pymemcache connects again by itself with the next request after a failure.
    secret = args.secret_file.read_text().strip().encode() if args.user else b""
    client = LoginClient(
        (args.host, args.port), user=args.user, secret=secret, connect_timeout=5, timeout=30, no_delay=True
    )
    for number in range(args.count):
        put(client, args.queue, b"%b-%d" % (args.prefix.encode(), number))
    print(f"put {args.count} jobs", flush=True)


def put(client: LoginClient, queue: str, job: bytes) -> None:
    """Until it is stored. An attempt whose answer got lost may be stored, too: then the job is in the queue twice."""
    pause = 0.1
    while True:
        try:
            # noreply=False: pymemcache would otherwise send the item and never look whether it was stored.
            if client.set(queue, job, noreply=False):
                return
            print(f"{queue} is full", flush=True)
        except (MemcacheError, OSError) as error:
            print(f"not put: {error}", flush=True)
        time.sleep(pause * random.uniform(0.5, 1))
        pause = min(2 * pause, PAUSE_SECONDS_MAX)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Put jobs into a queue.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=22133)
    parser.add_argument("--queue", default="jobs")
    parser.add_argument("--user", default="", help="of a server with users [none]")
    parser.add_argument("--secret-file", type=Path, help="file with the user's password or token")
    parser.add_argument("--count", type=int, default=100, help="how many jobs [100]")
    parser.add_argument("--prefix", default="job", help="a job is PREFIX-NUMBER [job]")
    return parser.parse_args()


if __name__ == "__main__":
    main()
