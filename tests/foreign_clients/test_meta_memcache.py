"""meta-memcache 4: meta commands with every flag that memcached answers; what it cannot read is an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.process import Server
from tests.support.wire import drain

pytestmark = pytest.mark.programs("python:meta_memcache")


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    from meta_memcache import CacheClient, ServerAddress, connection_pool_factory_builder

    build = connection_pool_factory_builder(recv_timeout=30)
    pools: list[Any] = []

    def pool(address: Any) -> Any:
        pools.append(build(address))
        return pools[-1]

    address = ServerAddress("127.0.0.1", server.port)
    yield CacheClient.cache_client_from_servers(servers=[address], connection_pool_factory_fn=pool)
    for made in pools:
        while made.get_counters().available:
            made.release_connection(made.pop_connection(), error=True)  # it has no other way to close them


def test_it_puts_and_takes(client: Any) -> None:
    assert client.set("jobs", "one", ttl=60) and client.set("jobs", "two", ttl=60, no_reply=True)
    assert client.set_cas("jobs", "three", ttl=60) == 0, "stored; a queue has no CAS to give"
    assert [client.get("jobs") for _ in range(4)] == ["one", "two", "three", None]
    assert client.set("größe", 1, ttl=60) and client.get("größe") == 1
    assert client.delete("jobs") and not client.delete("jobs")


def test_what_a_queue_cannot_do_is_an_error_and_stores_nothing(server: Server, client: Any) -> None:
    from meta_memcache.configuration import LeasePolicy
    from meta_memcache.errors import MemcacheServerError

    attempts: list[Callable[[], object]] = [
        lambda: client.set("jobs", "x", ttl=60, cas_token=5),
        lambda: client.refill("jobs", "x", ttl=60),
        lambda: client.delta("jobs", 1),
        lambda: client.touch("jobs", 5),
        lambda: client.get("jobs", touch_ttl=5),
        lambda: client.get_or_lease("jobs", lease_policy=LeasePolicy()),
        lambda: client.set("with blank", "x", ttl=60),
    ]
    for attempt in attempts:
        with pytest.raises(MemcacheServerError):
            attempt()
    assert drain(server.address, "jobs") == []
