# Made of client/aio/leading.py by packaging/blocking_client.py (`make blocking`): change that file, not this one.
"""The search for the leader of a cluster over connections: `client/cluster.py` decides, this asks and waits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypeVar

from staniel.client.blocking.transport import pause
from staniel.client.cluster import PAUSE_S_MAX, PAUSE_S_MIN, Cluster
from staniel.client.errors import ClientError
from staniel.client.servers import Address

ValueT = TypeVar("ValueT")


def ask_leader(
    cluster: Cluster,
    ask: Callable[[Address], ValueT],
    may_search_on: Callable[[ClientError], bool],
    leader_wait_s: float,
) -> tuple[ValueT, Address]:
    """Return the reply of the leader, and its address. While none leads, search again for `leader_wait_s`. Raises
    NoLeader, and at once the error of a request after which the search may not go on.
    """
    until_s, pause_s = math.inf, PAUSE_S_MIN
    while True:
        search = cluster.search()
        while (address := search.next_server()) is not None:
            try:
                value = ask(address)
            except ClientError as error:
                if not may_search_on(error):
                    raise
                search.note_failure(address, error)
            else:
                search.note_leader(address)
                return value, address
        now_s = time.monotonic()
        until_s = min(until_s, now_s + leader_wait_s)
        if now_s >= until_s:
            raise search.error
        pause(min(pause_s, until_s - now_s))
        pause_s = min(2 * pause_s, PAUSE_S_MAX)
