"""The part of a cluster's member that operators of its server are shown. server/cluster/ has it; a server that stands
alone has none.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from staniel.broker.admin.reasons import HealthReason


class MemberFigures(Protocol):
    """A member, as /health/ready, /metrics and the page show it beside its queues."""

    def status(self) -> Struct:
        """Return the state of the member, for /api/cluster."""

    def reasons(self) -> list[HealthReason]:
        """Return the reasons of health that are about the member."""

    def metrics(self) -> str:
        """Return its metrics, as text."""
