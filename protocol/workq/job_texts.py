"""The texts of the most frequent requests and replies: job ids, which are UUIDs in canonical form, and the reply to a
lease. The compiled build uses job_texts.pyx instead.
"""

from __future__ import annotations

from binascii import Error, hexlify, unhexlify

ID_BYTES = 36
HEX_BYTES = 32


def read_id(word: bytes) -> bytes | None:
    """Return the 16 bytes of a UUID in canonical form, of any version; None if it is none."""
    if len(word) != ID_BYTES or word[8:24:5] != b"----":
        return None
    digits = word.replace(b"-", b"")
    if len(digits) != HEX_BYTES:
        return None
    try:
        return unhexlify(digits)
    except Error:
        return None


def is_job_id(raw: bytes) -> bool:
    """Return True if a job can have this id: random (version 4), of the usual variant."""
    return raw[6] & 0xF0 == 0x40 and raw[8] & 0xC0 == 0x80


def job_id_at(data: bytes, at: int) -> bytes | None:
    """Return the 16 bytes of the id whose text begins at byte `at`, None if no job can have it."""
    id = read_id(data[at : at + ID_BYTES])
    return id if id is not None and id[6] & 0xF0 == 0x40 and id[8] & 0xC0 == 0x80 else None


def show_id(raw: bytes) -> bytes:
    """Return the canonical text of 16 bytes."""
    text = hexlify(raw)
    return b"%b-%b-%b-%b-%b" % (text[:8], text[8:12], text[12:16], text[16:20], text[20:])


def leased(id: bytes, shown_terms: bytes, payload: bytes) -> bytes:
    """Return the reply to a lease."""
    text = hexlify(id)
    parts = text[:8], text[8:12], text[12:16], text[16:20], text[20:], shown_terms, len(payload), payload
    return b"+OK 1\r\n%b-%b-%b-%b-%b%b%d\r\n%b\r\n" % parts
