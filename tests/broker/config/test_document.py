"""docs/config.md and examples/staniel.toml against the Structs: no key forgotten, invented or given another default."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from staniel.broker.config.load import load
from staniel.broker.config.schema import ServerSettings
from staniel.broker.config.toml import keys_of
from staniel.broker.config.values import KINDS
from staniel.queues.config import Values
from tests.docs.settings_table import AS_MEMCACHE, ENTRY, SECTIONS, meanings_in, types_and_defaults

ROOT = Path(__file__).parents[3]
DOCUMENT = (ROOT / "docs" / "config.md").read_text()
EXAMPLE = ROOT / "examples" / "staniel.toml"


def body_of(title: str) -> str:
    return DOCUMENT.split(f"\n## {title}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("title", SECTIONS)
def test_every_key_is_documented_with_its_type_and_default(title: str) -> None:
    told = types_and_defaults(SECTIONS[title])
    assert {name: each for name, (each, _) in meanings_in(body_of(title)).items()} == told
    left_out = keys_of(SECTIONS[title]).keys() - told.keys()
    assert left_out in (set(), set(AS_MEMCACHE))
    assert not left_out or "`tls_port`, `listen`, `socket_mode`: as in [memcache]" in " ".join(body_of(title).split())


@pytest.mark.parametrize("title", SECTIONS)
def test_every_key_has_a_meaning_and_stands_once(title: str) -> None:
    found = [(name, meaning) for name, _, meaning in ENTRY.findall(body_of(title))]
    assert all(meaning.endswith((".", ".*")) for _, meaning in found)
    assert len(dict(found)) == len(found)


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
