"""A payload as JSON, in pieces: encoding a hundred megabytes at once would take most of a second."""

from __future__ import annotations

from base64 import b64encode
from codecs import getincrementaldecoder
from collections.abc import Iterator

from staniel.protocol.http.replies import encode

PIECE_BYTES = 24 << 10  # of payload; a multiple of three, so that base64 needs no padding within. As text it may be six
# times as long: a millisecond
LONG_BYTES = 64 << 10  # longer payloads are shown in pieces

_DECODER = getincrementaldecoder("utf-8")


def members(data: bytes) -> Iterator[bytes]:
    """Yield `"encoding":…,"data":…`: text if the bytes are UTF-8, else base64. The first pieces are empty until
    that is known.
    """
    is_text, decoder = True, _DECODER()
    for at in range(0, len(data), PIECE_BYTES):
        try:
            decoder.decode(data[at : at + PIECE_BYTES], at + PIECE_BYTES >= len(data))
        except UnicodeDecodeError:
            is_text = False
            break
        yield b""
    yield b'"encoding":"text","data":"' if is_text else b'"encoding":"base64","data":"'
    decoder = _DECODER()
    for at in range(0, len(data), PIECE_BYTES):
        piece = data[at : at + PIECE_BYTES]
        yield encode(decoder.decode(piece))[1:-1] if is_text else b64encode(piece)
    yield b'"'


def text_in_pieces(text: str) -> Iterator[bytes]:
    """Yield the inside of a JSON string."""
    for at in range(0, len(text), PIECE_BYTES):
        yield encode(text[at : at + PIECE_BYTES])[1:-1]
