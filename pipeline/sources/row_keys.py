"""Idempotency keys of rows, by which a server refuses a row that it has stored before, and what they need of a server.

A key is made of the application, the query, the batch, the partition, and the row's content; equal rows of a partition
are numbered. So the order of a partition's rows does not matter, and no row is refused because another one had its
place. A repeated batch must have the same rows in each partition.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from staniel.pipeline.lake.names import real_name
from staniel.pipeline.sources.connection import ServerConnection, ServerRefused
from staniel.pipeline.sources.item_rows import Row
from staniel.pipeline.sources.live_options import SinkOptions
from staniel.protocol.client.replies import Dump, Error, StatsReply
from staniel.protocol.escaping import ascii_word
from staniel.protocol.memcache import requests as memcache

LOGGER = logging.getLogger("staniel.pipeline")
QUEUES_A_QUESTION = 100


class KeysForgotten(Exception):
    """A batch is repeated so late that the servers may not know any more which of its rows they have stored."""


class RowKeys:
    """Makes the keys of one task's rows. It takes about 100 bytes of memory for each different row."""

    def __init__(self, *scope: str | int) -> None:
        """Begin a task. `scope` is what tells its rows from those of other tasks."""
        self._scope = blake2b(json.dumps(scope).encode(), digest_size=16).digest()
        self._equal: dict[int, int] = {}  # by digest: how many rows of it there were

    @classmethod
    def of(cls, options: SinkOptions, batch: str, query: str = "") -> RowKeys | None:
        """Return what makes the keys of this task; None if there are none, or a column has them."""
        from pyspark import TaskContext

        context = TaskContext.get()
        if not options.has_keys or options.key_column:
            return None
        assert context is not None and batch, "Spark names the batch and the partition of a task"
        return cls(options.app_id, query, int(batch), context.partitionId())

    def with_key(self, row: Row) -> Row:
        """Return the row with its key, or as a job with its id."""
        digest = blake2b(self._scope + row.content(), digest_size=16).digest()
        short = int.from_bytes(digest[:8])
        number = self._equal.get(short, 0)
        self._equal[short] = number + 1
        if number:
            digest = blake2b(b"%b%d" % (digest, number), digest_size=16).digest()
        return row.with_digest(digest)


def check_keeps_keys(connection: ServerConnection[Any, Any], queues: Sequence[str]) -> None:
    """Check that the server remembers the keys of puts to these queues over restarts. Raises ServerRefused.

    The user needs the role `read` for that; without it nothing can be checked, and a warning says so.
    """
    for first in range(0, len(queues), QUEUES_A_QUESTION):
        some = queues[first : first + QUEUES_A_QUESTION]
        (reply,) = connection.ask(memcache.DumpConfig(tuple(real_name(queue) for queue in some)))
        if isinstance(reply, Error) and reply.why:  # Kestrel gives no reason
            LOGGER.warning("%s: whether keys last over restarts cannot be seen: %s", connection.server, reply.why)
            return
        settings = _settings_of(reply.lines if isinstance(reply, Dump) else ())
        for queue in some:
            said = settings.get(ascii_word(real_name(queue))) or settings.get(real_name(queue), set())
            if "keep_journal=False" in said:
                raise ServerRefused(
                    f"{connection.server}: queue {queue} has keep_journal = false, so its keys end with the server's"
                    " process: txnAppId and keyColumn need a queue with a journal"
                )
            if not any(line.startswith("journal_format=") for line in said):
                raise ServerRefused(
                    f'{connection.server} knows no keys of puts: it is no Staniel, or has dialect = "kestrel"; leave'
                    " txnAppId and keyColumn out, or use the dialect of memcached"
                )


def _settings_of(lines: Sequence[str]) -> dict[str, set[str]]:
    """Return the lines of each queue's block, by the printed name."""
    settings: dict[str, set[str]] = {}
    queue = ""
    for line in lines:
        if line.startswith("queue '") and line.endswith("' {"):
            queue = line[len("queue '") : -len("' {")]
        settings.setdefault(queue, set()).add(line.strip())
    return settings


def has_forgotten_early(connection: ServerConnection[Any, Any]) -> bool:
    """Return True if the server has forgotten keys before their time since it started, because it had too many. False
    if the user may not see that.
    """
    (reply,) = connection.ask(memcache.Stats())
    return isinstance(reply, StatsReply) and reply.values.get("limit_max_put_keys", "0") != "0"
