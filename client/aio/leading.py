"""The search for the leader of a cluster over connections: `client/cluster.py` decides, this asks and waits."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from staniel.client.aio.transport import pause
from staniel.client.cluster import PATIENCE_S_MIN, PAUSE_S_MAX, PAUSE_S_MIN, Cluster, was_silent
from staniel.client.errors import ClientError
from staniel.client.servers import Address

ValueT = TypeVar("ValueT")


async def ask_leader(
    cluster: Cluster,
    ask: Callable[[Address, float], Awaitable[ValueT]],
    may_search_on: Callable[[ClientError], bool],
    leader_wait_s: float,
) -> tuple[ValueT, Address]:
    """Return the reply of the leader, and its address. `ask` is given the longest time for a reply, infinite until a
    server was silent. While none leads, search again for `leader_wait_s` from the first failure on. Raises NoLeader,
    when each server was asked once at least, and at once the error of a request after which the search may not go on.
    """
    until_s, pause_s = math.inf, PAUSE_S_MIN
    has_asked_all = is_one_silent = False
    while True:
        search = cluster.search()
        while (address := search.next_server()) is not None:
            left_s = until_s - time.monotonic()
            if has_asked_all and left_s <= 0:
                raise search.error
            try:
                value = await ask(address, max(left_s, PATIENCE_S_MIN) if is_one_silent else math.inf)
            except ClientError as error:
                if not may_search_on(error):
                    raise
                search.note_failure(address, error)
                is_one_silent = is_one_silent or was_silent(error)
                until_s = min(until_s, time.monotonic() + leader_wait_s)
            else:
                search.note_leader(address)
                return value, address
        has_asked_all = True
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise search.error
        await pause(min(pause_s, left_s))
        pause_s = min(2 * pause_s, PAUSE_S_MAX)
