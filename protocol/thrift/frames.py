"""Thrift's framed transport: each message behind its length, four bytes, big-endian. It needs no thrift library."""

from __future__ import annotations

from struct import Struct

FRAME_BYTES_MAX = 64 << 20
"""The largest frame. All items of one put are in one frame; a client with more can send another."""

_LENGTH = Struct("!i")
LENGTH_BYTES = _LENGTH.size


def frame_length(data: bytes | bytearray, at: int) -> int:
    """Return the length that the frame at `at` announces. It may be negative."""
    (size,) = _LENGTH.unpack_from(data, at)
    assert isinstance(size, int)
    return size


def framed(message: bytes) -> bytes:
    """Return `message` as a frame."""
    return _LENGTH.pack(len(message)) + message


class Frames:
    """The byte stream of one connection, split into frames."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.bytes_max = frame_bytes_max
        self._buffer = bytearray()

    @property
    def pending_bytes(self) -> int:
        """Bytes that have arrived and are not handed out; never an announced length."""
        return len(self._buffer)

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def clear(self) -> None:
        self._buffer.clear()

    def next(self) -> bytes | int | None:
        """Return the next frame without its length, None if it is incomplete. An int is an impossible length.

        After such a length the next frame cannot be found.
        """
        if len(self._buffer) < LENGTH_BYTES:
            return None
        size = frame_length(self._buffer, 0)
        if not 0 < size <= self.bytes_max:
            return size
        end = LENGTH_BYTES + size
        if len(self._buffer) < end:
            return None
        frame = bytes(memoryview(self._buffer)[LENGTH_BYTES:end])
        del self._buffer[:end]
        return frame
