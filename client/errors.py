"""The errors of the client. Each says what holds for the item afterwards."""

from __future__ import annotations

from staniel.protocol.client.replies import Item


class ClientError(Exception):
    """The base of all errors of this package."""


class Full(ClientError):
    """The queue is full (NOT_STORED). The item is not stored; the connection stays usable."""


class Refused(ClientError):
    """The server replied with an error, whose text this is. Nothing changed; the server may disconnect afterwards."""


class NotAllStored(ClientError):
    """Items of a put_many were not stored: `refused` has the index and error of each. All others are stored."""

    def __init__(self, refused: dict[int, Full | Refused]) -> None:
        super().__init__(f"{len(refused)} items were not stored; the first: {next(iter(refused.values()))}")
        self.refused = refused


class ConnectionLost(ClientError):
    """The connection is lost, or was closed because a reply was interrupted. Its open reads are back in their queues.

    `answered` counts the items of a put_many, from the first, that the server replied to; whether the others are stored
    is unknown. `refused` has those of them that are not stored. `item` was given to the program, and its close has no
    reply: it is closed, or it will be delivered again.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.answered = 0
        self.refused: dict[int, Full | Refused] = {}
        self.item: Item | None = None
