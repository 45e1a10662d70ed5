"""Which memcache a connection speaks. Knows the two names; refuses to know how they differ."""

from __future__ import annotations

from enum import Enum


class Dialect(Enum):
    """MEMCACHED is what today's clients expect; KESTREL answers byte for byte as Kestrel 2.4 did."""

    MEMCACHED = "memcached"
    KESTREL = "kestrel"
