"""The numbers of open reads: signed 32-bit, rising, wrapping, never 0, never one in use. Queues number their reads by
this rule and readers of a journal compute the same numbers. Source: REMOVE_TENTATIVE of the Kestrel journal format, and
Kestrel 2.4 for the wrap.
"""

from __future__ import annotations

from collections.abc import Container

XID_MAX = 2**31 - 1
XID_MIN = -(2**31)


def next_xid(last: int, *in_use: Container[int]) -> int:
    """Return the next number after `last` that is neither 0 nor in any of `in_use`."""
    xid = last
    while True:
        xid = xid + 1 if xid < XID_MAX else XID_MIN
        if xid and not any(xid in reads for reads in in_use):
            return xid


def previous_xid(last: int, *in_use: Container[int]) -> int:
    """Return the number before `last` that is neither 0 nor in any of `in_use`."""
    xid = last
    while True:
        xid = xid - 1 if xid > XID_MIN else XID_MAX
        if xid and not any(xid in reads for reads in in_use):
            return xid


def steps_past(last: int, xid: int) -> int:
    """Return how many steps lead from `last` to `xid` on the circle of numbers; 0 or less if `last` is at `xid` or past
    it.
    """
    return (xid - last + 2**31) % 2**32 - 2**31
