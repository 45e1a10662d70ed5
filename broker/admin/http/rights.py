"""The rights that routes need, by name. Each function returns why clients with these rights may not use the path; "" if
they may. `names` are the open parts of the path. The target of a move is in its body, so the move itself calls
`target_refusal`.
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
    """Refuse no client here: `queries.find_operation` checks the rights to the operation's queue."""
    return ""


def look_at_all(rights: Rights, queues: Queues, names: tuple[str, ...]) -> str:
    return rights.refusal_to_look()


def admin(rights: Rights, queues: Queues, names: tuple[str, ...]) -> str:
    return rights.refusal_of_all(Role.ADMIN)


def read(rights: Rights, queues: Queues, names: tuple[str, ...]) -> str:
    return rights.refusal(Role.READ, names[0])


def take(rights: Rights, queues: Queues, names: tuple[str, ...]) -> str:
    """Require the right to read, and the right to create a child queue: a read of a child creates it."""
    why = rights.refusal(Role.READ, names[0])
    return why or (making_refusal(rights, queues, names[0]) if parent_of(names[0]) else "")


def write(rights: Rights, queues: Queues, names: tuple[str, ...]) -> str:
    return rights.refusal(Role.WRITE, names[0]) or making_refusal(rights, queues, names[0])


def operate(rights: Rights, queues: Queues, names: tuple[str, ...]) -> str:
    return rights.refusal(Role.OPERATE, names[0])
