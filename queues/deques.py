"""The two calls of a deque that busy queues make most. Compiled, deques.pyx replaces them."""

from __future__ import annotations

from collections import deque

append, popleft = deque.append, deque.popleft
"""Called with the deque. Bound here because a method is looked up by its name at each call."""
