"""The errors of etcd's client. Each says whether the request may have had an effect."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum


class Effect(Enum):
    """The effect that a failed request had on etcd, as far as it is known."""

    NONE = "none"
    UNKNOWN = "unknown"


class EtcdError(Exception):
    """The base of all errors of this package."""


class BadReplyError(EtcdError):
    """A reply that no etcd sends, or one that is larger than this client accepts. Programs see EtcdUnreachable."""


class EtcdRefusal(EtcdError):
    """An error that etcd replied with; the request has had no effect. `code` is gRPC's."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(f"etcd refuses: {message}")
        self.message, self.code = message, code


class EndpointFailure(EtcdError):
    """An endpoint that did not do what it was asked for; another one may. Programs see EtcdUnreachable."""

    def __init__(self, endpoint: str, why: str, effect: Effect = Effect.UNKNOWN) -> None:
        super().__init__(f"{endpoint}: {why}")
        self.why, self.effect = why, effect


class ForeignEtcd(EndpointFailure):
    """An endpoint that belongs to another etcd than the one that this client knows, and no other endpoint replies.
    Nothing was written there.
    """

    def __init__(self, endpoint: str, known: int, actual: int) -> None:
        why = f"it is of the etcd cluster {actual:x}, not of {known:x}: correct the list of endpoints"
        super().__init__(endpoint, why)
        self.known, self.actual = known, actual


class EtcdUnreachable(EtcdError):
    """No endpoint did what it was asked for; the text has the reason of each. The request can be repeated. A put that
    compares never raises this: it has Outcome.
    """

    def __init__(self, failures: Sequence[EndpointFailure]) -> None:
        super().__init__(f"no endpoint of etcd does as asked: {'; '.join(map(str, failures))}")


class EtcdWentBack(EtcdError):
    """An etcd that replied with a lower revision than it had before: it was restored from a backup, or has lost data.
    What it says may be older than what was agreed on.
    """

    def __init__(self, endpoint: str, known: int, actual: int) -> None:
        why = f"it is at revision {actual} and was at {known} before: it was restored from a backup, or has lost data"
        super().__init__(f"{endpoint}: {why}")
        self.known, self.actual = known, actual
