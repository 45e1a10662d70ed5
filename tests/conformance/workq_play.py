"""Plays a case of workq's protocol against a world with a stepped clock: nothing is slow, nothing is by chance.

The steps of the case file: conn, send, split, pause_ms, expect, expect_regex, timeout_ms, silent_ms, expect_close,
close.
"""

from __future__ import annotations

import re
import time
from itertools import pairwise
from typing import Any

from tests.support.job_world import JobClient, JobWorld

STEP_MS = 10
UTC = re.compile(r"\{\{UTC([+-]\d+)\}\}")


def expand(value: Any, now_ms: int) -> bytes:
    """Text, a list of parts, or {"repeat", "times"}; `{{UTC+n}}` is a time n seconds from now."""
    if isinstance(value, list):
        return b"".join(expand(part, now_ms) for part in value)
    if isinstance(value, dict):
        return expand(value["repeat"], now_ms) * int(value["times"])

    def moment(match: re.Match[str]) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now_ms // 1000 + int(match[1])))

    return UTC.sub(moment, value).encode("latin-1")


class Play:
    """One case: its connections, and what they have heard and not used."""

    def __init__(self, world: JobWorld) -> None:
        self.world = world
        self.clients: dict[str, JobClient] = {}
        self.heard: dict[str, bytes] = {}

    def run(self, case: dict[str, Any]) -> None:
        for number, step in enumerate(case["steps"]):
            self.step(step, f"{case['name']}, step {number}")
        for name, client in self.clients.items():
            assert self.heard[name] + client.hears_raw() == b"", f"{case['name']}: left over on {name}"
            client.hangs_up()
        self.world.check()

    def step(self, step: dict[str, Any], where: str) -> None:
        self.world.pass_time(step.get("pause_ms", 0), STEP_MS)
        name = step["conn"]
        if name not in self.clients:
            self.clients[name], self.heard[name] = self.world.worker(), b""
        client = self.clients[name]
        if step["send"] is not None:
            data = expand(step["send"], self.world.now_ms)
            cuts = [0, *step.get("split", []), len(data)]
            for begin, end in pairwise(cuts):
                client.feeds(data[begin:end])
        if step.get("close"):
            self.clients.pop(name).hangs_up()
        elif "silent_ms" in step:
            self.world.pass_time(step["silent_ms"], STEP_MS)
            assert client.hears_raw() == b"", where
        elif step.get("expect_close"):
            assert client.is_cut_off and client.hears_raw() == b"", where
            self.clients.pop(name).hangs_up()
        elif "expect" in step:
            want = expand(step["expect"], self.world.now_ms)
            self.wait(name, step["timeout_ms"], lambda heard: len(heard) >= len(want))
            assert self.heard[name][: len(want)] == want, where
            self.heard[name] = self.heard[name][len(want) :]
        else:
            pattern = re.compile(step["expect_regex"], re.DOTALL)
            self.wait(name, step["timeout_ms"], lambda heard: pattern.fullmatch(heard.decode("latin-1")) is not None)
            assert pattern.fullmatch(self.heard[name].decode("latin-1")), (where, self.heard[name])
            self.heard[name] = b""

    def wait(self, name: str, most_ms: int, enough: Any) -> None:
        self.heard[name] += self.clients[name].hears_raw()
        for _ in range(most_ms // STEP_MS + 2):
            if enough(self.heard[name]):
                return
            self.world.turn(STEP_MS)
            self.heard[name] += self.clients[name].hears_raw()
