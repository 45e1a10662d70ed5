"""A raw connection to a server that may be killed at any moment."""

from __future__ import annotations

from tests.support.wire import Wire


class DyingWire(Wire):
    """The end of the stream is an error, also in the middle of a reply."""

    def _receive(self) -> bytes:
        data = super()._receive()
        if not data:
            raise ConnectionResetError("the server is gone")
        return data
