"""What the compiled values, each in a .pyx, have of the msgspec Structs beside them: equality, a hash, a text and a
copy, all from the fields that `__match_args__` names. Plain Python's Structs bring these along.
"""

from __future__ import annotations

from typing import Any


def values_of(value: Any) -> tuple[Any, ...]:
    """The fields, in their order."""
    return tuple([getattr(value, name) for name in value.__match_args__])


def is_equal(value: Any, other: object) -> bool:
    """Another class is never equal: NotImplemented, as Python's operators want it."""
    return values_of(value) == values_of(other) if type(other) is type(value) else NotImplemented


def hash_of(value: Any) -> int:
    """Of a value whose fields do not change."""
    return hash((type(value), values_of(value)))


def shown(value: Any, more: str = "") -> str:
    """As a call that makes it. `more`: what is shown behind the fields."""
    fields = ", ".join([f"{name}={getattr(value, name)!r}" for name in value.__match_args__])
    return f"{type(value).__name__}({fields}{more})"


def copied(value: Any) -> tuple[type, tuple[Any, ...]]:
    """What copy and pickle make an equal one of: the class, and what it is called with."""
    return type(value), values_of(value)
