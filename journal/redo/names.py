"""Which files may be in a redo log: a start writes into the files that it names, and cuts them."""

from __future__ import annotations

from staniel.journal.spool_listing import may_be_in_spool
from staniel.journal.workq.files import segment_numbers


def may_be_logged(path: str) -> bool:
    """Whether `path`, below the spool, may be that of a journal, or of a command log in whatever folder there."""
    if may_be_in_spool(path):
        return True
    *folders, last = path.split("/")
    return "\0" not in path and not {"", ".", ".."} & {*folders} and bool(segment_numbers([(last, True)]))
