"""The errors of the client. Each says what is true of the item after it."""

from __future__ import annotations

from enum import Enum

from staniel.protocol.client.replies import Item


class Outcome(Enum):
    """The effect of a request that raised, as far as it is known: for a put, whether its item is stored."""

    NOT_DONE = "not done"
    PARTLY_DONE = "partly done"
    UNKNOWN = "unknown"


class ClientError(Exception):
    """The base of all errors of this package. `outcome` tells whether the request had an effect."""

    outcome = Outcome.NOT_DONE


class Full(ClientError):
    """The queue is full (NOT_STORED). The item is not stored; the connection stays usable."""


class Refused(ClientError):
    """The server replied with an error, whose text this is. Nothing changed; the server may disconnect afterwards."""


class NotAllStored(ClientError):
    """Items of a put_many were not stored: `refused` has the index and error of each. All others are stored."""

    outcome = Outcome.PARTLY_DONE

    def __init__(self, refused: dict[int, Full | Refused]) -> None:
        super().__init__(f"{len(refused)} items were not stored; the first: {next(iter(refused.values()))}")
        self.refused = refused


class NotOpen(ClientError):
    """The item is not open on this client any more: it was ended before, has timed out, its queue was deleted, or, of a
    MultiClient, its connection was lost. After a time-out or a lost connection it is delivered again.
    """

    def __init__(self, why: str, item: Item) -> None:
        super().__init__(why)
        self.item = item


class DuplicateJob(ClientError):
    """A job with this id is there already, maybe finished: an earlier call has added it. Nothing changed."""


class NoJob(ClientError):
    """No job has this id: it was deleted, it expired, or it was never added."""


class JobFinished(ClientError):
    """The job has a result already, from another worker or an earlier call. The result of this call is dropped."""


class Busy(ClientError):
    """The client is in use by another thread or task. Nothing was sent; an item that was to be ended is still open."""


class ConnectionLost(ClientError):
    """The connection is lost, or was closed because a reply was interrupted. Its open reads are back in their queues.

    `outcome`: NOT_DONE if nothing of the request was sent, else UNKNOWN. `answered` counts the items of a put_many,
    from the first, that the server replied to; whether the others are stored is unknown. `refused` has those of them
    that are not stored. `item` was given to the program, and its close has no reply: it is closed, or it will be
    delivered again; with NOT_DONE it will be. `job_id` is the id of the job that the call of Jobs was about, "" if
    there is none: adding it again with this id cannot double it.
    """

    def __init__(self, why: str, outcome: Outcome = Outcome.UNKNOWN) -> None:
        super().__init__(why)
        self.outcome = outcome
        self.answered = 0
        self.refused: dict[int, Full | Refused] = {}
        self.item: Item | None = None
        self.job_id = ""


class NoLeader(ConnectionLost):
    """No server leads the cluster at present, or none that leads could be reached; the text says what each server said.
    A later call searches again.
    """
