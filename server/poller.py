"""The poller that tells which sockets are ready. Compiled, poller.pyx takes its place."""

from __future__ import annotations

import select

Poller = select.epoll
