"""Fills docs/config.md from the schema: each key of a section, its type and its default. The page itself is the source
of what a key means: of a new key that stands as "TODO".

    python -m tests.docs.settings_table
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from staniel.broker.config.schema import (
    AdminSettings,
    ClusterSettings,
    KestrelListenerSettings,
    MemcacheSettings,
    ServerSettings,
    TlsSettings,
    UserSettings,
    WorkqSettings,
)
from staniel.broker.config.toml import keys_of
from staniel.queues.config import QueueConfig

PAGE = Path(__file__).resolve().parents[2] / "docs" / "config.md"
TODO = "TODO."
WIDTH = 100
SECTIONS: dict[str, type[Struct]] = {
    "[server]": ServerSettings,
    "[memcache]": MemcacheSettings,
    "[text], [thrift]": KestrelListenerSettings,
    "[admin]": AdminSettings,
    "[tls]": TlsSettings,
    "[cluster]": ClusterSettings,
    "[users.NAME]": UserSettings,
    "[workq]": WorkqSettings,
    "[default] and [queues.NAME]": QueueConfig,
}
AS_MEMCACHE = ("tls_port", "listen", "socket_mode")
"""Keys of every listener, which the page explains under [memcache] alone."""
ENTRY = re.compile(r"^- \*\*(\w+)\*\* \(([^)]*)\): (.*(?:\n  .*)*)\n", re.MULTILINE)


def filled(text: str, sections: Mapping[str, type[Struct]] = SECTIONS) -> str:
    """Return the page with the entries that the schema says, in the page's order, new keys last."""
    for title, kind in sections.items():
        before, heading, rest = text.partition(f"\n## {title}\n")
        body, mark, after = rest.partition("\n## ")
        found = list(ENTRY.finditer(body))
        assert found, f"{title} has no entry: - **key** (type, default): meaning"
        first, last = found[0].start(), found[-1].end()
        text = "".join((before, heading, body[:first], *entries(body[first:last], kind), body[last:], mark, after))
    return text


def meanings_in(body: str) -> dict[str, tuple[str, str]]:
    """Read the entries of a section: by key its type with its default, and what it means."""
    return {name: (" ".join(told.split()), " ".join(meaning.split())) for name, told, meaning in ENTRY.findall(body)}


def entries(body: str, kind: type[Struct]) -> list[str]:
    told, meanings = types_and_defaults(kind), meanings_in(body)
    order = [*(name for name in meanings if name in told), *(name for name in told if name not in meanings)]
    return [entry(name, told[name], meanings.get(name, ("", TODO))[1]) for name in order]


def entry(name: str, told: str, meaning: str) -> str:
    text = f"- **{name}** ({told}): {meaning}"
    lines = textwrap.fill(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return f"{lines}\n"


def types_and_defaults(kind: type[Struct]) -> dict[str, str]:
    """Return what stands between the brackets, by key; "optional" has the default none."""
    told = {}
    for name, key in keys_of(kind).items():
        default = key.kind.show(key.default)
        is_optional = default == '"none"' and key.kind.word.endswith(" or none")
        word = key.kind.word.removesuffix(" or none")
        told[name] = f"optional {word}" if is_optional else f"{key.kind.word}, `{default}`"
    if kind is not MemcacheSettings and AS_MEMCACHE[0] in told:
        of_memcache = types_and_defaults(MemcacheSettings)
        told = {name: each for name, each in told.items() if name not in AS_MEMCACHE or each != of_memcache[name]}
    return told


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text("utf-8")), "utf-8")
