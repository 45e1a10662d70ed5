"""One call of the disk fails, amid each kind of operation: nothing is lost, doubled or made up, and what comes of it is
what docs/durability.md says.

These are samples; `python -m tests.journal.disk.errno_table` tries each call with each errno.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from random import Random
from typing import Any

import pytest

from staniel.broker.operations import undo_recovery
from staniel.broker.operations.purge import FileOperation
from staniel.broker.operations.undo_recovery import UndoRecovery
from staniel.journal.disk.unsynced_names import NamedFile
from staniel.journal.group_commit import GroupCommit
from staniel.journal.spool import Spool, SpoolError
from staniel.journal.undo_file import AppendFrames
from staniel.sim.mutants.queues import replaced
from tests.journal.disk.errno_operations import OPERATIONS, STREAMS
from tests.journal.disk.errno_table import DOCUMENT, GROUPS, cells_of, read, rendered, sample, written
from tests.journal.disk.errno_walk import CLASSES, Result, base, pairs, trials, tried

SEED = Random().randrange(1 << 30) if os.environ.get("STANIEL_SEEK") else 1
EACH = 22
PAIRS = pairs()
TOLD = read(written(DOCUMENT.read_text("utf-8")))


@pytest.mark.parametrize(("form", "name"), PAIRS, ids=[f"{form}-{name}" for form, name in PAIRS])
def test_a_failing_call_costs_what_the_table_says_and_no_item(form: str, name: str) -> None:
    results = [tried(each) for each in sample(form, name, EACH, Random(f"{SEED} {form} {name}"))]
    assert [(str(each.trial), each.call, each.wrong) for each in results if each.wrong] == [], f"seed {SEED}"
    for place, outcomes in cells_of(results).items():
        assert outcomes <= TOLD[place], (f"seed {SEED}", place)


def test_the_table_of_the_docs_is_as_it_is_generated() -> None:
    table = written(DOCUMENT.read_text("utf-8"))
    assert rendered(TOLD) == table
    assert all(any(TOLD[name, group, kind] for group in GROUPS) for name in OPERATIONS for kind in CLASSES)


def test_operations_that_are_cut_off_are_told_from_those_that_are_over() -> None:
    for form in STREAMS:
        assert "purge.interrupted" in base(form, "start behind half a purge").warnings
        assert "undo.interrupted" in base(form, "start behind half an undo").warnings


def wrong(form: str, name: str, verb: str, path: str, *errnos: str) -> list[Result]:
    """What is found wrong where calls `verb` on paths with `path` fail."""
    calls = base(form, name).calls
    base(form, name).found.clear()  # what was found under other rules
    base(form, name).cut.clear()
    chosen = [each for each in trials(form, name) if calls[each.at][0] == verb and path in calls[each.at][1]]
    return [found for each in chosen if each.errno in errnos and (found := tried(each)).wrong]


@contextmanager
def passed_over_in_undo_files() -> Iterator[None]:
    def make(right: Any) -> Any:
        def work(task: AppendFrames) -> None:
            with suppress(OSError):
                right(task)

        return work

    with replaced(AppendFrames, "work", make):
        yield


@contextmanager
def swallowed_in_rotation() -> Iterator[None]:
    def make(right: Any) -> Any:
        def tell(self: GroupCommit, member: Any, now_ms: int) -> None:
            with suppress(OSError):
                member.synced(now_ms)

        return tell

    with replaced(GroupCommit, "_call_synced", make):
        yield


def unread_is_full() -> Any:
    return replaced(undo_recovery, "reading", lambda right: lambda path: nullcontext())


@contextmanager
def sync_tried_again() -> Iterator[None]:
    def make(right: Any) -> Any:
        def sync(self: NamedFile) -> None:
            with suppress(OSError):
                self._file.sync()
            self._file.sync()
            self.safe_bytes = self.size

        return sync

    with replaced(NamedFile, "sync", make):
        yield


@contextmanager
def unlisted_is_none() -> Iterator[None]:
    def make(right: Any) -> Any:
        def there(self: UndoRecovery) -> list[str] | None:
            with suppress(SpoolError):
                return right(self)  # type: ignore[no-any-return]
            return None

        return there

    with replaced(UndoRecovery, "_list", make):
        yield


@contextmanager
def end_not_noted() -> Iterator[None]:
    def make(right: Any) -> Any:
        def note(self: FileOperation, head: Any, then: Any, again: Any, now_ms: int) -> None:
            self.append_head(head, then, lambda why, later_ms: then(later_ms))

        return note

    with replaced(FileOperation, "note_or_retry", make):
        yield


@contextmanager
def written_anew_in_place() -> Iterator[None]:
    """Found by a power loss between the two syncs alone."""

    def make(right: Any) -> Any:
        def settle(self: Spool, *rest: Any) -> None:
            path = f"{self.folder}/q"
            data = self.fs.read(path, 0, self.fs.size(path))
            self.fs.truncate(path, 0)
            file = self.fs.append(path)
            file.sync()
            file.write(data)
            file.sync()
            file.close()
            right(self, *rest)

        return settle

    with replaced(Spool, "sync_recovered", make):
        yield


BROKEN = {
    "a start writes a journal anew in its place": (written_anew_in_place, "put", "write", "s/q", "EINTR"),
    "failed writes to undo files are passed over": (passed_over_in_undo_files, "purge", "write", "undo/", "EIO"),
    "a rotation on a broken disk is passed over": (swallowed_in_rotation, "rotate", "rename", "s/q", "EIO"),
    "an undo file that cannot be read is a full disk": (
        unread_is_full,
        "start behind a purge",
        "read",
        "undo/",
        "EDQUOT",
    ),
    "a failed sync is tried again": (sync_tried_again, "put", "sync", "s/q", "ESTALE"),
    "undo files that cannot be listed are none": (
        unlisted_is_none,
        "start behind half a move",
        "list",
        "undo",
        "EINTR",
    ),
    "the end of a purge is not noted": (end_not_noted, "undo of a purge", "write", "undo/", "EINTR"),
}


@pytest.mark.pure
@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_rule_is_found(what: str) -> None:
    broken, name, verb, path, number = BROKEN[what]
    assert wrong("kestrel", name, verb, path, number) == []
    with broken():
        assert wrong("kestrel", name, verb, path, number)
