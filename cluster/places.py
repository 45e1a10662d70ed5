"""Places of records: an epoch, and a number within the whole stream."""

from __future__ import annotations

from typing import NamedTuple

ID_BYTES = 16
"""Bytes of the id of a member or of a cluster."""


class Place(NamedTuple):
    """The position of a record in the stream. Numbers go on across epochs; two members have the same record if they
    have the same epoch at the same number. Lengths are never compared.
    """

    epoch: int
    number: int

    def __str__(self) -> str:
        return f"{self.epoch}/{self.number}"


NOWHERE = Place(0, 0)
"""The place before the first record."""
