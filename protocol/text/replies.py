"""The replies of Kestrel's text protocol as bytes. A line ends with a bare LF.

An item is sent unchanged. An item with a line feed (only memcache and thrift clients can put one) is therefore several
lines here, as in Kestrel 2.4: changing it would lose data, and refusing it would leave an item at the head that this
client can neither read nor skip. Queues whose items may hold line feeds do not suit this protocol.
"""

from __future__ import annotations

_LINE_ENDS = str.maketrans("\r\n", "??")


def _wire(text: str) -> bytes:
    """Encode a text as ISO-8859-1. Other characters, and line ends, which would end the reply too early, become `?`."""
    return text.translate(_LINE_ENDS).encode("latin-1", "replace")


class TextReplies:
    """The replies, each with its line end."""

    done = b"+0\n"
    none = b"*\n"

    @staticmethod
    def number(n: int) -> bytes:
        """Return the number of items stored or confirmed."""
        return b"+%d\n" % n

    @staticmethod
    def item(data: bytes) -> bytes:
        return b":%b\n" % data

    @staticmethod
    def item_in_pieces(data: bytes) -> list[bytes]:
        """Return what `item` returns in pieces, so that a long item is not copied."""
        return [b":", data, b"\n"]

    @staticmethod
    def show(text: str) -> bytes:
        """Return a status in capitals, or a version."""
        return b":%b\n" % _wire(text)

    @staticmethod
    def error(why: str) -> bytes:
        return b"-%b\n" % _wire(why)

    not_that_many = error("Not that many transactions open.")
    unknown_status = error("Unknown status.")
    status_forbidden = error("Status forbidden.")

    @staticmethod
    def too_many_open(limit: int) -> bytes:
        return TextReplies.error(f"Too many open transactions; limit={limit}")

    @staticmethod
    def not_available(operation: str) -> bytes:
        """Return the refusal of `operation`, in Kestrel's words: getItem, setItem, monitorUntil, flush or delete."""
        return TextReplies.error(f"Server not available for operation {operation}")
