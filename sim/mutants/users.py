"""Broken rules of users: who is let in, what each may do, and what a reload makes of those who are there."""

from __future__ import annotations

import hmac
from typing import Any

from staniel.broker.passwords import PasswordHash, Remembered
from staniel.broker.rights import Rights, Role
from staniel.broker.session import Session, SessionState
from staniel.broker.users import User, Users
from staniel.sim.mutants.queues import MUTANTS, mutant, replaced


@mutant("a user who may read may delete", "hub-users")
def read_deletes() -> Any:
    def make(right: Any) -> Any:
        def refusal(self: Rights, role: Role, queue: str) -> str:
            return str(right(self, Role.READ if role is Role.OPERATE else role, queue))

        return refusal

    return replaced(Rights, "refusal", make)


@mutant("a name that begins like a permitted one is permitted", "hub-users")
def name_for_prefix() -> Any:
    def make(right: Any) -> Any:
        def init(self: Rights, *args: Any) -> None:
            right(self, *args)
            self._prefixes = tuple(pattern.removesuffix("*")[:-1] for pattern in self.queues)

        return init

    return replaced(Rights, "__init__", make)


@mutant("a client that has lost a right is served on", "hub-users")
def served_on() -> Any:
    return replaced(User, "replaces", lambda right: lambda self, other: True)


@mutant("a client that waits keeps its place when its rights end", "hub-users")
def waits_on() -> Any:
    def make(right: Any) -> Any:
        def hang_up(self: Session, reply: bytes) -> None:
            if self.state is not SessionState.PARKED or reply or not self.user:
                right(self, reply)

        return hang_up

    return replaced(Session, "hang_up", make)


@mutant("a password that was right once is right for ever", "hub-users")
def old_password() -> Any:
    def make(right: Any) -> Any:
        def digest(self: Remembered, name: str, wanted: PasswordHash, password: bytes) -> bytes:
            return hmac.digest(self._key, b"\0".join((name.encode(), password)), "sha256")

        return digest

    return replaced(Remembered, "_digest", make)


@mutant("what one user was allowed is remembered for all", "hub-users")
def shared_memory() -> Any:
    def make(right: Any) -> Any:
        readable: dict[str, bool] = {}
        writable: dict[str, bool] = {}

        def init(self: Rights, *args: Any) -> None:
            right(self, *args)
            self.readable, self.writable = readable, writable

        return init

    return replaced(Rights, "__init__", make)


@mutant("who was allowed to read a queue may write to it", "hub-users")
def one_memory() -> Any:
    def make(right: Any) -> Any:
        def init(self: Rights, *args: Any) -> None:
            right(self, *args)
            self.writable = self.readable

        return init

    return replaced(Rights, "__init__", make)


@mutant("who has not said who it is is any user's equal", "hub-users")
def strangers_welcome() -> Any:
    def make(right: Any) -> Any:
        def identify(self: Users, protocol: str, address: str, certificate: tuple[str, ...]) -> Any:
            return "", None

        return identify

    return replaced(Users, "identify", make)


__all__ = ["MUTANTS"]
