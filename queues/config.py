"""The resolved settings of one queue, as Queue, Log and Queues read them, and their defaults.

`QueueSettings` in broker/config/schema.py has the TOML key and the allowed values of each; broker/config/load.py builds
these from the file: the queue's own settings, its parent's, [default]'s.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

UNLIMITED_ITEMS = 2**31 - 1
UNLIMITED_BYTES = 2**63 - 1
SYNC_ALWAYS = 0
SYNC_OS = -1


class JournalDialect(Enum):
    """Ways to write a reserve in a Kestrel journal: opcode 3, as the documents say, or 9, as Kestrel 2.1-2.4
    read it.
    """

    DOCUMENTS = "documents"
    KESTREL_24 = "kestrel-2.4"


class Format(Enum):
    """Formats of a queue's journal files."""

    KESTREL = "kestrel"
    LIBKESTREL = "libkestrel"


class QueueConfig(Struct, frozen=True, kw_only=True):
    """Sizes in bytes, durations in ms; 0 means none for every `_ms` but `sync_ms` (0 always, -1 left to the OS)."""

    max_items: int = UNLIMITED_ITEMS
    max_bytes: int = UNLIMITED_BYTES
    max_item_bytes: int = 16 << 20
    max_open_reads: int = 120_000  # as Amazon SQS has it: half a kilobyte each, and the item
    max_waiters: int = UNLIMITED_ITEMS
    max_age_ms: int = 0
    max_queue_age_ms: int = 0
    open_timeout_ms: int = 0
    discard_old_when_full: bool = False
    max_expire_sweep: int = UNLIMITED_ITEMS
    expire_to_queue: str = ""
    max_deliveries: int = 0
    dead_letter_queue: str = ""
    retry_delays_ms: tuple[int, ...] = ()  # after the first delivery, the second, …; the last one from then on
    retry_jitter_percent: int = 0  # of the delay: so much is added at most
    fanout_only: bool = False
    enable_trace: bool = False
    client_id_for_dequeue: str = ""
    client_id_for_enqueue: str = ""
    keep_journal: bool = True
    sync_ms: int = SYNC_ALWAYS
    journal_format: Format = Format.KESTREL
    archive_path: str = ""
    journal_dialect: JournalDialect = JournalDialect.DOCUMENTS
    default_journal_bytes: int = 16 << 20
    max_memory_bytes: int = 128 << 20
    max_journal_bytes: int = 1 << 30
    compact_delay_ms: int = 60_000
    aggressive_rewrites: bool = True
