"""The declaration of each setting of a queue, as Queue, Log and Queues read it.

broker/config/queue_settings.py makes the settings from the file: the queue's own, its parent's, [default]'s.
"""

from __future__ import annotations

from enum import Enum
from operator import attrgetter
from typing import Annotated

from msgspec import Struct, field

UNLIMITED_ITEMS = 2**31 - 1
UNLIMITED_BYTES = 2**63 - 1
SYNC_ALWAYS = 0
SYNC_OS = -1


class JournalDialect(Enum):
    """Ways to write a reserve in a Kestrel journal: opcode 3, as in the documents, or 9, as Kestrel 2.1-2.4
    reads it.
    """

    DOCUMENTS = "documents"
    KESTREL_24 = "kestrel-2.4"


class Format(Enum):
    """Formats of a queue's journal files."""

    KESTREL = "kestrel"
    LIBKESTREL = "libkestrel"


class Values(Enum):
    """Kinds of values that a setting of queues can have. `KINDS` in broker/config/values.py reads and shows each."""

    ITEMS = "a number, or none"
    DELIVERIES = "a number from 1 up, or none"
    PERCENT = "a number from 0 to 100"
    SIZE = "a size, or none"
    ITEM_SIZE = "a size that an item can have, or none"
    DURATION = "a duration, or none"
    DELAYS = "durations, one for each delivery, or none"
    SYNC = "always, os, or a duration"
    FLAG = "true or false"
    OPPOSITE_FLAG = "true or false, and the key says the opposite of the attribute"
    QUEUE_NAME = "the name of a queue, or none"
    TEXT = "a text, or none"
    FORMAT = "a journal format"
    DIALECT = "a dialect of Kestrel's journals"


class QueueConfig(Struct, frozen=True, kw_only=True):
    """The settings of a queue, each declared only here, in the order in which they are shown: attribute with its unit,
    type, kind of values, key in the file if it differs, default. Sizes in bytes, durations in ms; 0 means none for
    every `_ms` except `sync_ms` (0 always, -1 left to the OS).
    """

    max_items: Annotated[int, Values.ITEMS] = UNLIMITED_ITEMS
    max_bytes: Annotated[int, Values.SIZE] = field(name="max_size", default=UNLIMITED_BYTES)
    max_item_bytes: Annotated[int, Values.ITEM_SIZE] = field(name="max_item_size", default=16 << 20)
    # The same as in Amazon SQS. Each takes half a kilobyte and the item.
    max_open_reads: Annotated[int, Values.ITEMS] = 120_000
    max_waiters: Annotated[int, Values.ITEMS] = UNLIMITED_ITEMS
    max_age_ms: Annotated[int, Values.DURATION] = field(name="max_age", default=0)
    discard_old_when_full: Annotated[bool, Values.FLAG] = False
    max_expire_sweep: Annotated[int, Values.ITEMS] = UNLIMITED_ITEMS
    expire_to_queue: Annotated[str, Values.QUEUE_NAME] = ""
    max_deliveries: Annotated[int, Values.DELIVERIES] = 0
    dead_letter_queue: Annotated[str, Values.QUEUE_NAME] = ""
    # After the first delivery, the second, …; the last one for all later deliveries.
    retry_delays_ms: Annotated[tuple[int, ...], Values.DELAYS] = field(name="retry_delay", default=())
    # Of the delay; at most this much is added.
    retry_jitter_percent: Annotated[int, Values.PERCENT] = field(name="retry_jitter", default=0)
    fanout_only: Annotated[bool, Values.FLAG] = False
    max_queue_age_ms: Annotated[int, Values.DURATION] = field(name="max_queue_age", default=0)
    open_timeout_ms: Annotated[int, Values.DURATION] = field(name="open_transaction_timeout", default=0)
    keep_journal: Annotated[bool, Values.FLAG] = True
    sync_ms: Annotated[int, Values.SYNC] = field(name="sync_journal", default=SYNC_ALWAYS)
    journal_format: Annotated[Format, Values.FORMAT] = Format.KESTREL
    archive_path: Annotated[str, Values.TEXT] = ""
    journal_dialect: Annotated[JournalDialect, Values.DIALECT] = JournalDialect.DOCUMENTS
    default_journal_bytes: Annotated[int, Values.SIZE] = field(name="default_journal_size", default=16 << 20)
    max_memory_bytes: Annotated[int, Values.SIZE] = field(name="max_memory_size", default=128 << 20)
    max_journal_bytes: Annotated[int, Values.SIZE] = field(name="max_journal_size", default=1 << 30)
    compact_delay_ms: Annotated[int, Values.DURATION] = field(name="min_journal_compact_delay", default=60_000)
    aggressive_rewrites: Annotated[bool, Values.OPPOSITE_FLAG] = field(name="disable_aggressive_rewrites", default=True)
    client_id_for_dequeue: Annotated[str, Values.TEXT] = field(name="white_list_client_id_for_dequeue", default="")
    client_id_for_enqueue: Annotated[str, Values.TEXT] = field(name="white_list_client_id_for_enqueue", default="")
    enable_trace: Annotated[bool, Values.FLAG] = False


read_head_guards = attrgetter("max_age_ms", "open_timeout_ms", "retry_delays_ms")
"""Read the settings that may keep the head of the line from a client, or put another item before it. With any of them a
queue looks before each read.
"""
