"""The poller that reports ready sockets. The compiled build uses poller.pyx instead."""

from __future__ import annotations

import select

Poller = select.epoll
