"""The errors of the client: each says what is known about the item afterwards."""

from __future__ import annotations

from staniel.protocol.client.replies import Item


class ClientError(Exception):
    """Every error of this package."""


class Full(ClientError):
    """The queue took nothing: it is full (NOT_STORED). The item is not stored; the connection goes on."""


class Refused(ClientError):
    """The server answered with an error; the text is the server's. Nothing changed; it may hang up after it."""


class NotAllStored(ClientError):
    """`refused`: for each item of a put_many that is not stored, its index and why. All others are stored."""

    def __init__(self, refused: dict[int, Full | Refused]) -> None:
        super().__init__(f"{len(refused)} items were not stored; the first: {next(iter(refused.values()))}")
        self.refused = refused


class ConnectionLost(ClientError):
    """The connection is gone, or was closed because an answer was cut off. What it had open is back in its queue.

    `answered`: how many items of a put_many, from the first, had their answer; whether the others are stored is not
    known. `refused`: which of those answered were not stored. `item`: an item that had been handed over and whose close
    has no answer: it is done, or it will come again.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.answered = 0
        self.refused: dict[int, Full | Refused] = {}
        self.item: Item | None = None
