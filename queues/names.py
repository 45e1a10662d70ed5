"""The rules of queue names: for a new queue, in any protocol, and for a name from a journal file. A name is also a file
name and a word of a request. Spools of other servers may have queues that the first rule does not allow; they are
served.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

NAME_BYTES_MAX = 200  # a file name may have 255: this leaves room for `.<digits>.pack` and a little more
FILE_NAME_MAX = 255  # no file system has longer names; what a request calls a file may be longer
RESERVED = frozenset("./~\0")
# A word of a request has only bytes above the blank, as ISO-8859-1; 0x7F is also a control character. Bytes from 0x80
# on may be parts of UTF-8 characters.
_WORD = re.compile("[!-~\x80-\xff]*")
# Returns the string that requests have for a name (protocol's `queue_name`). A dictionary finds the same object without
# comparing characters. CPython 3.12.0 to 3.12.5 never free such a string (its issue 113993).
shared_name: Callable[[str], str] = str if (3, 12) <= sys.version_info < (3, 12, 6) else sys.intern


def name_error(name: str) -> str:
    """Return why no new queue can have this name; "" if one can."""
    if why := file_error(name):
        return why
    if _WORD.fullmatch(name) is None:
        return "a queue name cannot hold blanks, control characters or characters beyond ISO-8859-1"
    return ""


def file_error(name: str) -> str:
    """Return why a queue `name` cannot have a journal file; "" if it can. `.`, `/` and `~` have a meaning in the names
    of journal files.
    """
    if not name:
        return "a queue name cannot be empty"
    if not RESERVED.isdisjoint(name):
        return "a queue name cannot hold . / ~ or NUL"
    if len(name.encode("utf-8", "surrogateescape")) > NAME_BYTES_MAX:
        return f"a queue name cannot be longer than {NAME_BYTES_MAX} bytes"
    return ""


def parent_of(name: str) -> str:
    """Return the fan-out parent: `orders` for `orders+audit`; "" for a name without `+`."""
    parent, plus, _ = name.partition("+")
    return parent if plus else ""


def family_of(name: str) -> str:
    """Return the name of the queue that a fan-out child gets its items from; any other queue's own name."""
    return name.partition("+")[0] or name
