"""The rights of clients: roles, and the queues that these are for. The tables COMMANDS in commands/ name the role that
each request needs.
"""

from __future__ import annotations

from enum import Enum

from staniel.protocol.memo import remember

KNOWN_NAME_CHARS_MAX = 250
"""The longest name that a memo keeps. With names of this length, a memo has at most 1.5 MB for a user and role, or 4.5
MB with thrift's names, whose characters may have four bytes. Longer names are checked each time.
"""


class Role(Enum):
    """The roles. No role implies another, except `ADMIN`, which is all of them for all queues."""

    READ = "read"  # take items, and look at them
    WRITE = "write"  # put
    OPERATE = "operate"  # empty, delete, pause and move queues
    ADMIN = "admin"  # the server: status, reload, shutdown


WORDS = {
    Role.READ: "may not read",
    Role.WRITE: "may not write to",
    Role.OPERATE: "may not operate on",
    Role.ADMIN: "is no admin",
}


class Rights:
    """The rights of one client. `queues` are names, or beginnings of names followed by `*`. `who` begins the text of a
    refusal. `creates`: the client's puts may create queues, and so may its reads where reading creates one.

    `readable`, `writable`: queues that were checked and allowed. A reload makes new rights, whose memos are empty.
    """

    def __init__(self, who: str, roles: frozenset[Role], queues: tuple[str, ...], creates: bool = True) -> None:
        self.who = who
        self.creates = creates or Role.ADMIN in roles
        self.roles = frozenset(Role) if Role.ADMIN in roles else roles
        patterns = ("*",) if Role.ADMIN in roles else queues
        self.queues = patterns
        self._names = frozenset(pattern for pattern in patterns if not pattern.endswith("*"))
        self._prefixes = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
        self.is_for_all = "" in self._prefixes
        self.readable: dict[str, bool] = {}
        self.writable: dict[str, bool] = {}

    def refusal(self, role: Role, queue: str) -> str:
        """Return why the role may not be used on `queue`; "" if it may."""
        if role in self.roles and (queue in self._names or queue.startswith(self._prefixes)):
            return ""
        return f"{self.who} {WORDS[role]} {queue}"

    def remember(self, role: Role, queue: str) -> None:
        """Remember that `refusal` allows `role` on `queue`."""
        if len(queue) <= KNOWN_NAME_CHARS_MAX:
            remember(self.readable if role is Role.READ else self.writable, queue, True)

    def refusal_of_all(self, role: Role) -> str:
        """Return why the role may not be used on all queues together; "" if it may."""
        if role in self.roles and self.is_for_all:
            return ""
        return f"{self.who} {WORDS[role]}{'' if role is Role.ADMIN else ' all queues'}"

    def refusal_to_look(self) -> str:
        """Return why the client may not see all queues; "" if it may."""
        return self.refusal_of_all(Role.OPERATE) and self.refusal_of_all(Role.READ)

    def covers(self, other: Rights) -> bool:
        """Tell whether these rights allow everything that `other` allows."""
        if other.creates and not self.creates:
            return False
        return other.roles <= self.roles and all(self._has(pattern) for pattern in other.queues)

    def _has(self, pattern: str) -> bool:
        if pattern.endswith("*"):
            return pattern[:-1].startswith(self._prefixes)
        return pattern in self._names or pattern.startswith(self._prefixes)


class Stranger(Rights):
    """The rights of an unauthenticated client."""

    def __init__(self) -> None:
        super().__init__("", frozenset(), ())

    def refusal(self, role: Role, queue: str) -> str:
        return "unauthenticated"

    def refusal_of_all(self, role: Role) -> str:
        return "unauthenticated"


STRANGER = Stranger()
PASSER_BY = Rights("a client of the network", frozenset({Role.READ, Role.WRITE}), ("*",))
"""The rights of every client of a server without users that listens beyond loopback."""
