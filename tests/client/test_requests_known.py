"""Every request of the memcache protocol is in each table of requests: of handlers and rights, and of what the client
library writes, or a list here says why it does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest

from staniel.broker.commands import delayed_puts, first_of, keyed_puts, meta
from staniel.broker.commands import memcache as commands
from staniel.broker.commands.authorized import PROTOCOLS, commands_of
from staniel.protocol.client.requests import FINALS, WRITERS
from staniel.protocol.memcache import requests as memcache
from staniel.protocol.memcache.requests import RareRequest
from staniel.protocol.requests import Invalid, More
from staniel.protocol.text.requests import TextRequest
from staniel.protocol.thrift.requests import ThriftRequest
from staniel.protocol.workq.requests import WorkqRequest

ROOT = Path(__file__).parents[2]
OF_META_CLIENTS = "meta commands are for memcached's own clients"
OF_OPERATORS = "operators ask over HTTP, where it is undone, audited and shown while it runs"
NOT_WRITTEN = {
    memcache.GetKeys: "what the parser makes of a GetMany of very many keys",
    memcache.GetSome: "the client sends a Get for each item, all of them at once",
    memcache.Touch: "it is about all open reads of a connection; ExtendItem holds one item longer",
    memcache.Move: OF_OPERATORS,
    memcache.Pause: OF_OPERATORS,
    memcache.MetaSet: OF_META_CLIENTS,
    memcache.MetaGet: OF_META_CLIENTS,
    memcache.MetaGetFirst: OF_META_CLIENTS,
    memcache.MetaDelete: OF_META_CLIENTS,
    memcache.MetaNoop: OF_META_CLIENTS,
    memcache.MetaDebug: OF_META_CLIENTS,
    Invalid: "what a parser makes of wrong bytes",
    More: "what a parser makes of a long line that is not whole",
}
CLOSED = {memcache.Quit, memcache.Shutdown}
"""The server replies to these by closing the connection."""


def all_of(union: object) -> set[type]:
    """The classes of a union; of RareRequest those that derive from it."""
    found = set(get_args(union))
    return found - {RareRequest} | set(RareRequest.__subclasses__()) if RareRequest in found else found


def test_every_request_of_the_module_is_known() -> None:
    assert {memcache.Set, memcache.Get, memcache.GetMany, memcache.Shutdown} < all_of(memcache.Request)
    assert len(all_of(memcache.Request)) >= 34


def test_the_client_writes_every_request_or_a_list_says_why_not() -> None:
    assert all_of(memcache.Request) == set(WRITERS) | set(NOT_WRITTEN)
    assert not set(WRITERS) & set(NOT_WRITTEN)


def test_the_client_knows_the_end_of_every_reply_to_what_it_writes() -> None:
    assert set(WRITERS) == set(FINALS) | CLOSED


def test_the_property_tests_draw_every_request_that_the_client_writes() -> None:
    drawn = set(re.findall(r"memcache\.(\w+)", (ROOT / "tests" / "client" / "strategies.py").read_text("utf-8")))
    missing = {kind.__name__ for kind in set(WRITERS) - CLOSED} - drawn
    assert not missing, f"tests/client/strategies.py draws no {sorted(missing)}: add each, and what its reply means"


UNIONS = {"memcache": memcache.Request, "text": TextRequest, "thrift": ThriftRequest, "workq": WorkqRequest}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_request_has_a_handler_and_a_right(protocol: str) -> None:
    assert set(commands_of(protocol)) == all_of(UNIONS[protocol])


def lines_of(module: ModuleType) -> Iterable[tuple[str, str]]:
    """(request, its line) of each row of a table COMMANDS, as the comments have them."""
    source = (ROOT / "broker" / "commands" / f"{module.__name__.rpartition('.')[2]}.py").read_text("utf-8")
    return re.findall(r"^    memcache\.(\w+): .*  # (.+)$", source, re.MULTILINE)


def test_each_command_has_its_line_beside_its_handler_and_its_right() -> None:
    """As docs/protocol.md writes the line."""
    documented = (ROOT / "docs" / "protocol.md").read_text("utf-8")
    modules = (commands, meta, keyed_puts, delayed_puts, first_of)
    lines = dict(line for module in modules for line in lines_of(module))
    assert {f"memcache.{name}" for name in lines} == {
        f"memcache.{kind.__name__}" for kind in all_of(memcache.Request) - {Invalid, More}
    }
    assert [line for line in lines.values() if f"`{line}`" not in documented] == []
