"""The record that a busy journal is full of: an item that joins the line. Compiled, addx.pyx takes its place."""

from __future__ import annotations

from staniel.journal.kestrel.records import ADDX, ADDX_HEAD, BLOCK_HEAD_BYTES
from staniel.queues.item import Item

pack_addx = ADDX_HEAD.pack  # bound here: CPython 3.11 makes a method object for each call of an imported name's method


def addx_record(item: Item) -> bytes:
    """ADDX without its flags (see Encoder). Source: the Kestrel journal format document, opcode 2."""
    data = item.data
    return pack_addx(ADDX, len(data) + BLOCK_HEAD_BYTES, item.added_ms, item.expires_ms) + data
