"""Broken rules of settings: that change, at the ends of their ranges, and of queues that become aliases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from staniel.broker.commands import memcache as commands
from staniel.broker.config import values
from staniel.broker.transfers import Transfers
from staniel.queues.interfaces import Reason
from staniel.queues.registry import Queues
from staniel.sim.mutants.queues import MUTANTS, mutant, replaced
from staniel.sim.world import config_of


@mutant("a queue that an alias reaches in two ways gets two copies", "aliases")
def two_copies() -> Any:
    def make(right: Any) -> Any:
        def targets(self: Queues, name: str, now_ms: int) -> Any:
            if name not in self.aliases:
                return right(self, name, now_ms)
            return [target for each in self.aliases[name].targets for target in self.targets(each, now_ms)]

        return targets

    return replaced(Queues, "targets", make)


@mutant("an item that waits is sent to what has become an alias", "aliases")
@contextmanager
def alias_shadowed() -> Iterator[None]:
    def called_off(right: Any) -> Any:
        def call(self: Transfers, parting: Any, name: str, now_ms: int) -> bool:
            is_moved = parting.reason is Reason.MOVED and bool(name)
            return not is_moved and bool(right(self, parting, name, now_ms))

        return call

    def check_name(right: Any) -> Any:
        def call(self: Queues, name: str) -> None:
            aliases, self.aliases = self.aliases, {}
            try:
                right(self, name)
            finally:
                self.aliases = aliases

        return call

    with replaced(Transfers, "_is_called_off", called_off), replaced(Queues, "_check_name", check_name):
        yield


@mutant("an item that expired before the epoch never expires", "ranges")
def never_expires() -> Any:
    return replaced(commands, "ends_ms", lambda right: lambda now_ms, ttl_ms: now_ms + ttl_ms)


@mutant("a duration has no end", "ranges")
@contextmanager
def endless_duration() -> Iterator[None]:
    with replaced(values, "_within", lambda right: lambda duration_ms, value: duration_ms):
        yield
    config_of.cache_clear()


__all__ = ["MUTANTS"]
