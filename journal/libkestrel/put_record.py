"""The common record of a busy segment, an item without an expiry: made here, and counted when it is written. Compiled,
put_record.pyx replaces this module.
"""

from __future__ import annotations

from operator import itemgetter

from staniel.journal.libkestrel.records import PUT, PUT_HEAD
from staniel.queues.item import Numbered

COMMAND_OF = itemgetter(0)
PUTS = {PUT}
pack_put_head = PUT_HEAD.pack  # bound here: see journal/kestrel/encoder.py


def put_record(item: Numbered) -> bytes:
    """Return a PUT without an expiry. Source: "Write journal" of the libkestrel journal format."""
    data = item.data
    return pack_put_head(PUT, len(data), item.errors, item.id, item.added_ms) + data


def size_of_puts(records: list[bytes]) -> int:
    """Return how many bytes `records` have together; -1 if one of them is not a PUT without an expiry."""
    return sum(map(len, records)) if set(map(COMMAND_OF, records)) <= PUTS else -1
