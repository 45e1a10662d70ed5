"""Names of queues and files as text in tables, and as names of partition folders.

A file name may have bytes that are no UTF-8; tables hold UTF-8 only. queues/names.py decides which names of queues are
allowed.
"""

from __future__ import annotations

import re

NO_QUEUE = "__HIVE_DEFAULT_PARTITION__"
LOOKS_SHOWN = re.compile(r"\\(?=x(?:5C|[89A-F][0-9A-F]))")
SHOWN = re.compile(r"\\x(5C|[89A-F][0-9A-F])")
SURROGATE = re.compile("[\udc80-\udcff]")
# The characters that Spark escapes in a folder's name.
ESCAPED = re.compile("[\0-\x1f\x7f\"#%'*/:=?\\\\\\[\\]{}^]")
TYPED = re.compile(r"[+-]?(?:[0-9].*|NaN|Infinity)", re.DOTALL)


def shown_name(name: str) -> str:
    r"""Return a name of the file system as UTF-8, with other bytes as `\xE9`.

    If a name contains such four letters itself, its backslash becomes `\x5C`. All other names stay unchanged.
    """
    if SURROGATE.search(name) is None and LOOKS_SHOWN.search(name) is None:
        return name
    return SURROGATE.sub(lambda found: f"\\x{ord(found[0]) - 0xDC00:02X}", LOOKS_SHOWN.sub(r"\\x5C", name))


def real_name(shown: str) -> str:
    """Return the name in the file system from which `shown_name` made `shown`."""
    if "\\" not in shown:
        return shown
    return SHOWN.sub(lambda found: "\\" if found[1] == "5C" else chr(0xDC00 + int(found[1], 16)), shown)


def partition_name(name: str | None) -> str:
    """Return the text behind `queue=` in the name of a folder. None: no queue.

    The escapes are Spark's. Spark reads each as one character of ISO-8859-1, pyarrow and others as bytes of UTF-8, so
    only ASCII is escaped. The first letter is escaped if Spark or others would take the name for a number (`007` is not
    `7`) or for no queue.
    """
    if name is None:
        return NO_QUEUE
    first, others = name[:1], name[1:]
    if first < "\x80" and (TYPED.fullmatch(name) or name == NO_QUEUE or first.isspace()):
        return f"%{ord(first):02X}{ESCAPED.sub(_escaped, others)}"
    return ESCAPED.sub(_escaped, name)


def queue_of_partition(text: str) -> str | None:
    """Return the name that `partition_name` has encoded; None: no queue."""
    return None if text == NO_QUEUE else re.sub("%([0-9A-F]{2})", lambda found: chr(int(found[1], 16)), text)


def _escaped(match: re.Match[str]) -> str:
    return f"%{ord(match[0]):02X}"
