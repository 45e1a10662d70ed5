"""The methods of the compiled values (.pyx) that msgspec Structs bring along in plain Python: equality, hash, text,
copy. All use the fields named by `__match_args__`.
"""

from __future__ import annotations

from typing import Any


def values_of(value: Any) -> tuple[Any, ...]:
    """Return the fields, in their order."""
    return tuple([getattr(value, name) for name in value.__match_args__])


def is_equal(value: Any, other: object) -> bool:
    """Compare two values. Return NotImplemented for another class, as Python's operators expect."""
    return values_of(value) == values_of(other) if type(other) is type(value) else NotImplemented


def hash_of(value: Any) -> int:
    """Return the hash of a value whose fields do not change."""
    return hash((type(value), values_of(value)))


def shown(value: Any, more: str = "") -> str:
    """Return the call that would make the value, as text. `more` is shown behind the fields."""
    fields = ", ".join([f"{name}={getattr(value, name)!r}" for name in value.__match_args__])
    return f"{type(value).__name__}({fields}{more})"


def copied(value: Any) -> tuple[type, tuple[Any, ...]]:
    """Return what copy and pickle need to make an equal value: the class and its arguments."""
    return type(value), values_of(value)
