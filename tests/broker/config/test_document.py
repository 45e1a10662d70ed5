"""docs/config.md and examples/staniel.toml against the Structs: no key forgotten, invented or given another default."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec import Struct

from staniel.broker.config.load import load
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
from staniel.broker.config.values import KINDS
from staniel.queues.config import QueueConfig, Values

ROOT = Path(__file__).parents[3]
DOCUMENT = (ROOT / "docs" / "config.md").read_text()
EXAMPLE = ROOT / "examples" / "staniel.toml"
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


def rows(title: str) -> list[list[str]]:
    """The cells of a section's table."""
    body = DOCUMENT.split(f"\n## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in body.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.parametrize("title", SECTIONS)
def test_every_key_is_documented_with_its_type_and_default(title: str) -> None:
    keys = keys_of(SECTIONS[title])
    documented = {row[0]: (row[1], row[2]) for row in rows(title)}
    assert documented == {name: (key.kind.word, f"`{key.kind.show(key.default)}`") for name, key in keys.items()}


@pytest.mark.parametrize("title", SECTIONS)
def test_every_key_has_a_meaning_on_one_line_and_stands_once(title: str) -> None:
    table = rows(title)
    assert all(len(row) == 4 and row[3].endswith((".", ".*")) for row in table)
    assert len({row[0] for row in table}) == len(table)


def test_what_a_reload_takes_over_is_told() -> None:
    document = " ".join(DOCUMENT.split())
    told = document.split(" A reload applies ")[1].split(". The reply and a line")[0]
    of_server = re.sub(r"\([^)]*\)", "", told.split("and of `[server]`: ")[1])
    assert set(re.findall(r"`(\w+)`", of_server)) == {
        name for name, key in keys_of(ServerSettings).items() if key.is_reloaded
    }


def test_every_kind_of_a_queue_setting_is_read() -> None:
    assert set(KINDS) == set(Values)


def test_the_document_leads_to_the_example() -> None:
    assert "[examples/staniel.toml](../examples/staniel.toml)" in DOCUMENT


def test_the_example_loads() -> None:
    config = load(str(EXAMPLE))
    assert config.queue("jobs").max_age_ms == 0
    assert config.queue("recent").sync_ms == 50
    assert (config.queue("events+mail").max_age_ms, config.queue("events+audit").max_age_ms) == (3_600_000, 0)
