"""Spark's option strings, parsed by kind of value.

Unknown names and invalid values raise ValueError, with the nearest known name.
"""

from __future__ import annotations

import difflib
import fnmatch
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

Choice = TypeVar("Choice", bound=Enum)
NOWHERE: Mapping[str, str] = MappingProxyType({})
SIZE = re.compile(r"(\d+)\s*([kmgt]?)i?b?", re.IGNORECASE)
DURATION = re.compile(r"(\d+)\s*([a-z]*)", re.IGNORECASE)
MS_OF_UNITS = {"ms": 1, "": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
MAX_TRIGGER_DELAY_MS = 15 * 60_000  # as of Spark's Kafka source
FACTORS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class Options:
    """The options of one source. Names are case-insensitive, as in Spark."""

    def __init__(
        self,
        given: Mapping[str, str],
        known: set[str],
        source: str,
        elsewhere: Mapping[str, str] = NOWHERE,
        aliases: Mapping[str, str] = NOWHERE,
    ) -> None:
        """Check the names. `known` are the options in use, `elsewhere` other names, and where each is used; `aliases`
        are second names of known options. Raises ValueError, because an option without effect would seem to have one.
        """
        self._given = without_aliases(given, aliases)
        self._source = source
        names = {name.lower(): name for name in known}
        others = {name.lower(): name for name in elsewhere}
        for name in self._given:
            if name in others:
                raise ValueError(
                    f"option {others[name]} of {source} is for {elsewhere[others[name]]}: leave it out here"
                )
            if name not in names:
                near = difflib.get_close_matches(name, names, 1)
                hint = f"; did you mean {names[near[0]]}?" if near else f"; known are {', '.join(sorted(known))}"
                raise ValueError(f"{source} has no option {name}{hint}")

    def text(self, name: str, default: str = "") -> str:
        return self._given.get(name.lower(), default)

    def has(self, name: str) -> bool:
        return name.lower() in self._given

    def demand(self, name: str, why: str) -> str:
        value = self.text(name)
        if not value:
            raise ValueError(f"{self._source} needs the option {name}: {why}")
        return value

    def switch(self, name: str, default: bool) -> bool:
        value = self.text(name, str(default)).lower()
        if value not in ("true", "false"):
            raise ValueError(f"option {name} is true or false, not {value!r}")
        return value == "true"

    def number(self, name: str, default: int, low: int = 0) -> int:
        value = self.text(name, str(default))
        if not re.fullmatch(r"\d{1,18}", value) or int(value) < low:
            raise ValueError(f"option {name} is a number from {low} up, not {value!r}")
        return int(value)

    def integer(self, name: str, default: int) -> int:
        """Return a number that may be negative."""
        value = self.text(name, str(default))
        if not re.fullmatch(r"-?\d{1,10}", value):
            raise ValueError(f"option {name} is a whole number, not {value!r}")
        return int(value)

    def bytes(self, name: str, default: int) -> int:
        """Return a size: 1000, 64k, 128m, 1g."""
        value = self.text(name, str(default)).strip()
        match = SIZE.fullmatch(value)
        if match is None:
            raise ValueError(f"option {name} is a size like 64m, not {value!r}")
        return int(match[1]) * FACTORS[match[2].lower()]

    def duration_ms(self, name: str, default: int) -> int:
        """Return a time in ms: 500ms, 30s, 15m, 1h, 2d; a number alone is ms."""
        match = DURATION.fullmatch(self.text(name, str(default)).strip())
        if match is None or match[2].lower() not in MS_OF_UNITS:
            raise ValueError(f"option {name} is a time like 30s or 15m, not {self.text(name)!r}")
        return int(match[1]) * MS_OF_UNITS[match[2].lower()]

    def choice(self, name: str, default: Choice) -> Choice:
        value = self.text(name, str(default.value))
        for member in type(default):
            if member.value.lower() == value.lower():
                return member
        raise ValueError(f"option {name} is one of {', '.join(one.value for one in type(default))}, not {value!r}")

    def names(self, name: str) -> list[str]:
        """Return a list, separated by commas, or as JSON: `["one,two", "three"]` are two names, one with a comma."""
        if self.text(name).startswith("["):
            try:
                return msgspec.json.decode(self.text(name), type=list[str])
            except msgspec.MsgspecError:
                pass  # a shell pattern may begin with a bracket too
        return [text.strip() for text in self.text(name).split(",") if text.strip()]

    def object(self, name: str) -> dict[str, Any]:
        """Return a JSON object. Raises ValueError."""
        try:
            value = json.loads(self.text(name))
        except ValueError as error:
            raise ValueError(f"option {name} is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise ValueError(f"option {name} is a JSON object, not {value!r}")
        return value


def without_aliases(given: Mapping[str, str], aliases: Mapping[str, str]) -> dict[str, str]:
    """Return options by their own names, in small letters. Raises ValueError for one that is given by both names."""
    values = {name.lower(): value for name, value in given.items()}
    for alias, name in aliases.items():
        if alias.lower() in values:
            if name.lower() in values:
                raise ValueError(f"options {alias} and {name} say the same: give one of them")
            values[name.lower()] = values.pop(alias.lower())
    return values


def trigger_wait(options: Options, name: str) -> tuple[int, int]:
    """Return how many rows a batch waits for, 0: for none, and how many ms it waits at most. Raises ValueError."""
    if options.has("maxTriggerDelay") and not options.has(name):
        raise ValueError(f"option maxTriggerDelay says how long {name} waits: give that too")
    return options.number(name, 0, 1 if options.has(name) else 0), options.duration_ms(
        "maxTriggerDelay", MAX_TRIGGER_DELAY_MS
    )


def as_option(names: Sequence[str]) -> str:
    """Return a list of names as the text of an option, for `Options.names`."""
    plain = all(name == name.strip() and "," not in name and not name.startswith("[") for name in names)
    return ",".join(names) if plain else msgspec.json.encode(list(names)).decode()


class QueuePatterns:
    """The selected queues: names, shell patterns, or a regular expression over the whole name."""

    def __init__(self, options: Options) -> None:
        self._names = options.names("queue") + options.names("queues")
        pattern = options.text("queuePattern")
        if pattern and self._names:
            raise ValueError("options queue and queuePattern say the same in two ways: give one of them")
        try:
            self._pattern = re.compile(pattern) if pattern else None
        except re.error as error:
            raise ValueError(f"option queuePattern is no regular expression: {error}") from None

    @property
    def named(self) -> bool:
        """True if names or patterns were given."""
        return bool(self._names) or self._pattern is not None

    def __contains__(self, name: str) -> bool:
        if self._pattern is not None:
            return self._pattern.fullmatch(name) is not None
        return not self._names or any(_means(pattern, name) for pattern in self._names)

    def unmet(self, names: Iterable[str]) -> list[str]:
        """Return the given names and patterns that match none of these queues."""
        present = list(names)
        if self._pattern is not None and not any(name in self for name in present):
            return [self._pattern.pattern]
        return [pattern for pattern in self._names if not any(_means(pattern, name) for name in present)]


def _means(wanted: str, name: str) -> bool:
    """Return True if a pattern selects a queue. A queue's name may look like a pattern, so an equal name
    matches too.
    """
    return wanted == name or fnmatch.fnmatchcase(name, wanted)
