"""The workload of jobs of one seed: the requests of its clients, and the configuration, drawn from the given
`Random`.
"""

from __future__ import annotations

from random import Random

from staniel.journal.workq.encoder import DELETE, encode_bare, encode_time
from staniel.protocol.workq.fields import show_time
from staniel.queues.jobs.times import NS_A_MS
from staniel.sim.jobs.conversation import Request, Want, job_id, raw_id
from staniel.sim.profiles import Profile

NAMES = ("q", "q", "r", "s")
IDS = 14
POLICIES = {"always": "always", "50ms": "interval", "1s": "interval", "os": "os"}


class JobWorkload:
    """The properties of one seed: where the log is, how small its segments are, what clients request."""

    def __init__(self, rng: Random, profile: Profile) -> None:
        self.profile = profile
        self.folder = "log" if rng.random() < 0.5 else "s/.staniel/cmdlog"
        self.honours_max_fails = rng.random() < 0.3
        policy = rng.choice(profile.policies)
        lines = [
            "[workq]",
            "port = 0",
            f'cmdlog_sync = "{POLICIES[policy]}"',
            f"cmdlog_seg_size = {rng.choice((60, 150, 400, 400, 2000, 1_000_000))}",
            f"cmdlog_clean_int = {rng.choice((30, 100, 100, 400, 60_000))}",
            f"honour_max_fails = {str(self.honours_max_fails).lower()}",
        ]
        if self.folder == "log":
            lines.append('cmdlog_path = "log"')
        if POLICIES[policy] == "interval":
            lines.append(f'cmdlog_sync_int = "{policy}"')
        if profile.redo_logs:
            lines.insert(0, f'server.redo_log = "{rng.choice(profile.redo_logs)}"')
        self.config = "\n".join(lines) + "\n"
        self.count = 0

    def next_requests(self, rng: Random, now_ms: int) -> list[Request]:
        """Return one request, or a short pipeline of them."""
        count = 1 if rng.random() < 0.7 else rng.randrange(2, 6)
        return [self._request(rng, now_ms) for _ in range(count)]

    def _request(self, rng: Random, now_ms: int) -> Request:
        want = rng.choice(
            (Want.ADD,) * 6 + (Want.SCHEDULE, Want.RUN) + (Want.LEASE,) * 5 + (Want.COMPLETE,) * 3
            + (Want.FAIL, Want.DELETE, Want.DELETE, Want.RESULT, Want.INSPECT, Want.INSPECT)
        )  # fmt: skip
        if want is Want.LEASE:
            return self._lease(rng)
        number = rng.randrange(1, IDS + 1)
        id = raw_id(number)
        if want in (Want.ADD, Want.SCHEDULE, Want.RUN):
            return self._add(rng, want, number, now_ms)
        if want in (Want.COMPLETE, Want.FAIL):
            result = self._data(rng, now_ms)
            line = f"{want.value} {job_id(number)} {len(result)}\r\n".encode()
            return Request(want, line + result + b"\r\n", id, (), result)
        if want is Want.RESULT:
            wait_ms = rng.choice((0, 0, 30, 200))
            return Request(want, f"result {job_id(number)} {wait_ms}\r\n".encode(), id, wait_ms=wait_ms)
        return Request(want, f"{want.value} {job_id(number)}\r\n".encode(), id)

    def _lease(self, rng: Random) -> Request:
        names = tuple(rng.sample(("q", "r", "s"), rng.choice((1, 1, 1, 2, 3))))
        wait_ms = rng.choice((0, 0, 0, 20, 300))
        return Request(Want.LEASE, f"lease {' '.join(names)} {wait_ms}\r\n".encode(), names=names, wait_ms=wait_ms)

    def _add(self, rng: Random, want: Want, number: int, now_ms: int) -> Request:
        name, data = rng.choice(NAMES), self._data(rng, now_ms)
        ttr_ms = rng.choice((10, 30, 100, 60_000))
        ttl_ms = rng.choice((50, 200, 5000, 600_000, 600_000, 86_400_000))
        head = f"{want.value} {job_id(number)} {name} {ttr_ms}"
        if want is Want.RUN:
            line = f"{head} {rng.choice((10, 100, 1000))} {len(data)}"
        elif want is Want.SCHEDULE:
            line = f"{head} {ttl_ms} {self._moment(rng, now_ms)} {len(data)}{self._flags(rng)}"
        else:
            line = f"{head} {ttl_ms} {len(data)}{self._flags(rng)}"
        whole = f"{line}\r\n".encode() + data + b"\r\n"
        return Request(want, whole, raw_id(number), (name,), data, ttr_ms=ttr_ms)

    def _moment(self, rng: Random, now_ms: int) -> str:
        far = (70_000, 3_600_000, 8 * 3_600_000) if self.profile.wall_steps else ()
        at_ms = now_ms + rng.choice((-100, 5, 40, 700, 3000, *far))
        return show_time(at_ms * NS_A_MS).decode().replace("Z", f".{at_ms % 1000:03}Z")

    def _flags(self, rng: Random) -> str:
        words = ""
        if rng.random() < 0.3:
            words += f" -priority={rng.choice((-2, 1, 5))}"
        if rng.random() < 0.3:
            words += f" -max-attempts={rng.choice((1, 2, 3))}"
        if rng.random() < 0.3:
            words += f" -max-fails={rng.choice((1, 2, 3))}"
        return words

    def _data(self, rng: Random, now_ms: int) -> bytes:
        self.count += 1
        if self.profile.forged and rng.randrange(1000) < self.profile.forged:
            time = encode_time(now_ms * NS_A_MS)
            ids = [raw_id(rng.randrange(1, IDS + 1)) for _ in range(rng.choice((1, 3, 9)))]
            return b"%d" % self.count + b"".join(encode_bare(time, DELETE, id) for id in ids)
        size = rng.choice((200, 700)) if rng.randrange(1000) < self.profile.large_items else rng.choice((0, 0, 3, 20))
        return b"%d" % self.count + b"." * size
