"""The client library knows every request of the memcache protocol, or a list here says why it does not."""

from __future__ import annotations

from typing import get_args

from staniel.broker.commands.authorized import MEMCACHE
from staniel.protocol.client.replies import FINALS
from staniel.protocol.client.requests import WRITERS
from staniel.protocol.memcache import requests as memcache
from staniel.protocol.requests import Invalid, More

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
    memcache.MetaDelete: OF_META_CLIENTS,
    memcache.MetaNoop: OF_META_CLIENTS,
    memcache.MetaDebug: OF_META_CLIENTS,
    Invalid: "what a parser makes of wrong bytes",
    More: "what a parser makes of a long line that is not whole",
}
CLOSED = {memcache.Quit, memcache.Shutdown}
"""The server replies to these by closing the connection."""


def test_the_client_writes_every_request_or_a_list_says_why_not() -> None:
    assert set(get_args(memcache.Request)) == set(WRITERS) | set(NOT_WRITTEN)
    assert not set(WRITERS) & set(NOT_WRITTEN)


def test_the_client_knows_the_end_of_every_reply_to_what_it_writes() -> None:
    assert set(WRITERS) == set(FINALS) | CLOSED


def test_every_request_has_a_rule_of_rights() -> None:
    assert set(get_args(memcache.Request)) - set(MEMCACHE) == set()
