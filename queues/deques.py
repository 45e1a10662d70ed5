"""The two calls of a deque that busy queues are full of. Compiled, deques.pyx takes their place."""

from __future__ import annotations

from collections import deque

append, popleft = deque.append, deque.popleft
"""Called with the deque. Bound once: a method is looked up by its name at each call."""
