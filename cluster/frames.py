"""Frames: a length, a checksum, a payload. Both the wire and a member's file are made of them.

4  length of the payload, big endian
4  crc32c of the length and the payload
n  the payload
"""

from __future__ import annotations

from struct import Struct

HEAD = Struct(">II")
LENGTH = Struct(">I")
PAYLOAD_BYTES_MAX = 4 << 20


def checksum(payload: bytes) -> int:
    """Return the crc32c of a payload and its length."""
    from google_crc32c import extend, value  # imported here: a server alone does not load it

    return int(extend(value(LENGTH.pack(len(payload))), payload))


def frame(payload: bytes) -> bytes:
    """Return a payload with its head."""
    assert 0 < len(payload) <= PAYLOAD_BYTES_MAX, f"{len(payload)} bytes do not fit into a frame"
    return HEAD.pack(len(payload), checksum(payload)) + payload


def read_frame(data: bytes | bytearray, at: int) -> bytes | str | None:
    """Return the payload of the frame that begins at `at`: None if more bytes are needed, a text if it is none."""
    if len(data) - at < HEAD.size:
        return None
    length, expected = HEAD.unpack_from(data, at)
    if not 0 < length <= PAYLOAD_BYTES_MAX:
        return f"a frame claims {length} bytes, more than {PAYLOAD_BYTES_MAX} or none"
    end = at + HEAD.size + length
    if len(data) < end:
        return None
    begin = at + HEAD.size
    payload = data[begin:end] if isinstance(data, bytes) else bytes(memoryview(data)[begin:end])  # one copy, not two
    return payload if checksum(payload) == expected else "the checksum of a frame is wrong"
