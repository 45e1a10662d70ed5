"""Broken rules of settings: that change, at the ends of their ranges, and of queues that become aliases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from staniel.broker.config import values
from staniel.broker.operations.move import RunningMove
from staniel.queues.calendar import Calendar
from staniel.queues.registry import Queues
from staniel.sim.mutants.queues import MUTANTS, mutant, replaced
from staniel.sim.world import config_of


@mutant("a queue that an alias reaches in two ways gets two copies", "aliases")
def two_copies() -> Any:
    def make(right: Any) -> Any:
        def targets(self: Queues, name: str, now_ms: int) -> Any:
            if name not in self.aliases:
                return right(self, name, now_ms)
            return [target for leg in self.aliases[name].targets for target in self.targets(leg, now_ms)]

        return targets

    return replaced(Queues, "targets", make)


@mutant("a move goes on to what has become an alias", "aliases")
@contextmanager
def alias_shadowed() -> Iterator[None]:
    def check(right: Any) -> Any:
        def call(self: RunningMove, *arguments: Any) -> Any:
            queues = self.tools.queues
            aliases, queues.aliases = queues.aliases, {}
            try:
                return right(self, *arguments)
            finally:
                queues.aliases = aliases

        return call

    def check_name(right: Any) -> Any:
        def call(self: Queues, name: str) -> None:
            aliases, self.aliases = self.aliases, {}
            try:
                right(self, name)
            finally:
                self.aliases = aliases

        return call

    with (
        replaced(RunningMove, "_check_source", check),
        replaced(RunningMove, "_check_target", check),
        replaced(Queues, "_check_name", check_name),
    ):
        yield


@mutant("an item that expired before the epoch never expires", "ranges")
def never_expires() -> Any:
    return replaced(Calendar, "end_of_life", lambda right: lambda self, now_ms, life_ms: self.wall_ms(now_ms) + life_ms)


@mutant("a duration has no end", "ranges")
@contextmanager
def endless_duration() -> Iterator[None]:
    with replaced(values, "_within", lambda right: lambda duration_ms, value: duration_ms):
        yield
    config_of.cache_clear()


__all__ = ["MUTANTS"]
