"""Why the broker did not do what its operator asked for."""

from __future__ import annotations


class ReloadError(Exception):
    """The configuration was not taken over; nothing has changed. The text says why."""
