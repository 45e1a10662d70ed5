"""The record that a busy segment is full of: an item without an expiry. Compiled, put_record.pyx takes its place."""

from __future__ import annotations

from staniel.journal.libkestrel.records import PUT, PUT_HEAD
from staniel.queues.item import Numbered

pack_put_head = PUT_HEAD.pack  # bound here: see journal/kestrel/encoder.py


def put_record(item: Numbered) -> bytes:
    """PUT without an expiry. Source: "Write journal" of the libkestrel journal format."""
    data = item.data
    return pack_put_head(PUT, len(data), item.errors, item.id, item.added_ms) + data
