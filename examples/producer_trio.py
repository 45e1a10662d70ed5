"""Put jobs into a queue with Staniel's client on trio, many to a round trip, none that the server has not confirmed.

python producer_trio.py --queue jobs --count 100

It needs the extra `aio`: pip install 'staniel[aio]'
"""

from __future__ import annotations

import argparse
import random

import trio

import staniel.client
from staniel.client import ConnectionLost, NotAllStored, TrioClient

PAUSE_SECONDS_MAX = 5.0


async def main() -> None:
    args = arguments()
    jobs = [f"{args.prefix}-{number}".encode() for number in range(args.count)]
    pause = 0.1
    while jobs:
        before = len(jobs)
        try:
            async with staniel.client.connect(args.host, args.port) as client:
                while jobs:
                    jobs = await put(client, args.queue, jobs)
                    if jobs:
                        await trio.sleep(pause)  # the queue is full
        except ConnectionLost as lost:
            # The first `answered` are settled. Of the rest, some may be stored: putting them again may double them.
            jobs = [jobs[index] for index in lost.refused] + jobs[lost.answered :]
            print(f"not put: {lost}", flush=True)
            await trio.sleep(pause * random.uniform(0.5, 1))
        pause = 0.1 if len(jobs) < before else min(2 * pause, PAUSE_SECONDS_MAX)
    print(f"put {args.count} jobs", flush=True)


async def put(client: TrioClient, queue: str, jobs: list[bytes]) -> list[bytes]:
    """Put them all; those that the server would not take."""
    try:
        await client.put_many(queue, jobs)
    except NotAllStored as error:
        print(error, flush=True)
        return [jobs[index] for index in error.refused]
    return []


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Put jobs into a queue.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=22133)
    parser.add_argument("--queue", default="jobs")
    parser.add_argument("--count", type=int, default=100, help="how many jobs [100]")
    parser.add_argument("--prefix", default="job", help="a job is PREFIX-NUMBER [job]")
    return parser.parse_args()


if __name__ == "__main__":
    trio.run(main)
