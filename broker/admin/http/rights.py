"""The rights that routes need, by name: each says why the path is not for a client with these rights; "" if it is.
`names` are the open parts of the path. Where a move goes to stands in its body: it asks `target_refusal` besides.
"""

from __future__ import annotations

from collections.abc import Callable

from staniel.broker.access import making_refusal
from staniel.broker.rights import Rights, Role
from staniel.queues.names import parent_of
from staniel.queues.registry import Queues

Right = Callable[[Rights, Queues, tuple[str, ...]], str]


def any_client(rights: Rights, queues: Queues, names: tuple[str, ...]) -> str:
    """Refuse no client."""
    return ""


def of_operation(rights: Rights, queues: Queues, names: tuple[str, ...]) -> str:
    """Refuse no client here: `queries.find_operation` asks for the rights of the operation's queue."""
    return ""


def look_at_all(rights: Rights, queues: Queues, names: tuple[str, ...]) -> str:
    return rights.refusal_to_look()


def admin(rights: Rights, queues: Queues, names: tuple[str, ...]) -> str:
    return rights.refusal_of_all(Role.ADMIN)


def read(rights: Rights, queues: Queues, names: tuple[str, ...]) -> str:
    return rights.refusal(Role.READ, names[0])


def take(rights: Rights, queues: Queues, names: tuple[str, ...]) -> str:
    """Ask for the right to read, and for the right to make a child: a read of one makes it."""
    why = rights.refusal(Role.READ, names[0])
    return why or (making_refusal(rights, queues, names[0]) if parent_of(names[0]) else "")


def write(rights: Rights, queues: Queues, names: tuple[str, ...]) -> str:
    return rights.refusal(Role.WRITE, names[0]) or making_refusal(rights, queues, names[0])


def operate(rights: Rights, queues: Queues, names: tuple[str, ...]) -> str:
    return rights.refusal(Role.OPERATE, names[0])
