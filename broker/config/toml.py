"""Decoder of TOML tables: one table becomes one Struct of settings, or an error that names the key and the expected
value.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, TypeVar

from msgspec import Struct, structs

from staniel.broker.config.schema import MOVED, REFUSED, RELOADED, SECTIONS
from staniel.broker.config.values import KINDS, SettingKind, ValueMismatch, quoted, shown
from staniel.queues.config import Values

S = TypeVar("S", bound=Struct)


class ConfigError(Exception):
    """A wrong setting. `key` is the path of the key (or the option, or the line), `why` a sentence, `file` the file if
    known.
    """

    def __init__(self, key: str, why: str, file: str = "") -> None:
        super().__init__(key, why, file)
        self.key, self.why, self.file = key, why, file

    def __str__(self) -> str:
        return ": ".join(part for part in (self.file, self.key, self.why) if part)


class Key(Struct, frozen=True):
    """A key of a section: the attribute that gets its value, its kind, the Struct's default, and, for a key of
    [server], whether a reload applies it.
    """

    attribute: str
    kind: SettingKind
    default: Any
    is_reloaded: bool


@cache
def keys_of(section: type[Struct]) -> dict[str, Key]:
    """Return every key of `section` as written in the file, in the order of the Struct."""
    keys = {}
    for field in structs.fields(section):
        kind, *marks = field.type.__metadata__
        keys[field.encode_name] = Key(
            field.name, KINDS[kind] if isinstance(kind, Values) else kind, field.default, RELOADED in marks
        )
    return keys


def joined(path: str, key: str) -> str:
    """Return a key's path as TOML writes it: a part with special letters is quoted."""
    part = key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else quoted(key)
    return f"{path}.{part}" if path else part


def read_value(path: str, kind: SettingKind, value: object) -> Any:
    """Read `value` as `kind`. Raises ConfigError."""
    try:
        return kind.read(value)
    except ValueMismatch as wrong:
        raise ConfigError(path + wrong.at, f"expected {wrong.expected}, got {shown(wrong.found)}") from None


def read_struct(section: type[S], path: str, table: object) -> S:
    """Make a `section` from the values of `table`; its other keys have their defaults. Raises ConfigError."""
    return section(**read_given(section, path, table))


def read_given(section: type[Struct], path: str, table: object) -> dict[str, Any]:
    """Return the values that `table` gives, by the attributes of `section`. Raises ConfigError."""
    keys = keys_of(section)
    given = {}
    for name, value in read_table(path, table).items():
        if name not in keys:
            raise unknown_key(path, name, list(keys))
        given[keys[name].attribute] = read_value(joined(path, name), keys[name].kind, value)
    return given


def read_table(path: str, table: object) -> dict[str, object]:
    if not isinstance(table, dict):
        raise ConfigError(path, f"expected a table, got {shown(table)}")
    return table


def unknown_key(path: str, name: str, known: list[str]) -> ConfigError:
    """Return the error for a key that does not exist, with the reason why it is not supported or with the key that was
    probably meant.
    """
    snake = re.sub(r"(?<=[a-z])([A-Z])", r"_\1", name).lower()
    refused = REFUSED.get(snake) or REFUSED.get(snake.replace("_", ""))
    if refused is not None:
        return ConfigError(joined(path, name), f"not supported: {refused}")
    return ConfigError(joined(path, name), "unknown key" + _suggestion(snake, known))


def _suggestion(snake: str, known: list[str]) -> str:
    if snake in MOVED:
        return f", did you mean {MOVED[snake]}?"
    for section, settings in SECTIONS.items():
        if snake not in known and snake in keys_of(settings):
            return f", it belongs in [{section}]"
    import difflib  # only needed after a mistake

    near = difflib.get_close_matches(snake, known, 1)
    return f", did you mean {shown(near[0])}?" if near else ""
