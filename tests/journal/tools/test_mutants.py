"""Rules of the tools, each broken on purpose: the test that is named beside it fails, so it can.

The simulator does not run tools. This is for them what sim/mutants is for the server.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from staniel.broker.operations.move import RunningMove
from staniel.broker.operations.transfer import TransferOperation
from staniel.broker.operations.undo_recovery import UndoRecovery
from staniel.journal import spool_listing
from staniel.journal.disk.watched_fs import RefusedCalls
from staniel.journal.tools import convert, repair, unfinished
from staniel.pipeline.tasks import pack
from staniel.queues.config import Format
from staniel.server.backup import restore, source
from staniel.sim.disk.durable import Crash
from staniel.sim.mutants.queues import replaced
from tests.broker.streams import test_unknown_format
from tests.broker.test_equal_items import (
    test_an_item_that_finds_no_room_is_not_taken_for_one_that_has_arrived as no_room,
)
from tests.journal import test_copy_mark as marks
from tests.journal.tools import test_repair_cut_off as cut_off
from tests.journal.tools import test_unfinished_transfers as transfers
from tests.journal.tools.errno_tools import sound, trials, tried
from tests.journal.tools.refused_os import Lasts

pytestmark = [
    pytest.mark.pure,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # a killed tool does not clean up
]
KESTREL, LIBKESTREL = Format.KESTREL, Format.LIBKESTREL
Mutant = Callable[[], AbstractContextManager[None]]
Test = Callable[[Path, pytest.MonkeyPatch], None]


def always(value: Any) -> Callable[[Any], Any]:
    return lambda right: lambda *args, **named: value


@contextmanager
def all_of(*broken: AbstractContextManager[None]) -> Iterator[None]:
    with ExitStack() as stack:
        for each in broken:
            stack.enter_context(each)
        yield


def refused_reads(name: str) -> Test:
    """Each file of a spool that cannot be opened, once, by a tool, as test_errno_tools tries some."""

    def test(folder: Path, patch: pytest.MonkeyPatch) -> None:
        for each in trials(name):
            is_read = sound(name)[0].calls[each.refusal.at][0] == "open"
            if is_read and each.refusal.errno == errno.EIO and each.refusal.lasts is Lasts.ONCE:
                assert not tried(each).wrong

    return test


def killed_walk(name: str) -> Test:
    """A kill at each call of a tool, as `python -m tests.journal.tools.errno_tools` makes them."""

    def test(folder: Path, patch: pytest.MonkeyPatch) -> None:
        for each in trials(name):
            if each.refusal.lasts is Lasts.KILL:
                assert not tried(each).wrong

    return test


def marked_copy(folder: Path) -> Path:
    spool = restore.NewSpool(str(folder / "new"), 0)
    (folder / "new/orders").write_bytes(b"")
    spool.close()
    return folder / "new"


def swallowing(right: Any) -> Any:
    def is_stream(*args: Any) -> bool:
        try:
            return bool(right(*args))
        except OSError:
            return False

    return is_stream


def sources_alone(right: Any) -> Any:
    return lambda fs, folder, queue: [] if queue == "late" else right(fs, folder, queue)


def handed_back(right: Any) -> Any:
    def note_kept(self: RunningMove, found: Any) -> None:
        self._take_back(found, self.started_ms)
        right(self, found)

    return note_kept


def kept_forgotten(right: Any) -> Any:
    def moving(self: UndoRecovery, record: Any, number: int) -> Any:
        record.content.kept.pop(number, None)
        return right(self, record, number)

    return moving


def unsynced_removal(right: Any) -> Any:
    def remove(self: restore.NewSpool) -> None:
        with replaced(type(self.fs), "sync_folder", always(None)):
            right(self)

    return remove


def amid(old: Format, late: Format, test: Callable[..., None], *args: Any) -> Test:
    return lambda folder, patch: test(transfers.killed_amid_transfers(old, late), *args)


def on_files(test: Callable[..., None]) -> Test:
    return lambda folder, patch: test(transfers.killed_amid_transfers(KESTREL, KESTREL), folder)


def no_room_found(folder: Path, patch: pytest.MonkeyPatch) -> None:
    for name in ("purge", "moved_back", "move"):
        patch.setattr(f"staniel.broker.operations.{name}.ITEMS_PER_SLICE", 1)
    no_room(2, Crash.KEEP, patch)


RULES: dict[str, tuple[Mutant, Test]] = {
    "a restored folder has no mark until it is complete": (
        lambda: replaced(restore, "set_mark", always(None)), killed_walk("restore")
    ),
    "a repaired folder has no mark until it is complete": (
        lambda: replaced(repair, "set_mark", always(None)),
        lambda folder, patch: cut_off.test_a_part_of_a_copy_is_never_served_whatever_the_power_loss_leaves_of_it(
            cut_off.rich_spool()
        ),
    ),
    "a refused read counts as a missing item": (
        lambda: replaced(RefusedCalls, "check", always(None)),
        refused_reads("journal convert"),
    ),
    "a mark is not looked at where unfinished work is": (
        lambda: replaced(unfinished, "has_mark", always(False)),
        lambda folder, patch: cut_off.test_a_marked_copy_is_unfinished_work_and_is_not_repaired(cut_off.rich_spool()),
    ),
    "a mark is not looked at by a backup": (
        lambda: all_of(
            replaced(unfinished, "has_mark", always(False)), replaced(source, "unfinished_work", always([]))
        ),
        lambda folder, patch: marks.test_every_tool_refuses_a_marked_copy_and_says_what_to_do(
            marked_copy(folder), folder
        ),
    ),
    "a segment that cannot be read is none": (
        lambda: replaced(spool_listing, "_is_stream", swallowing),
        lambda folder, patch: test_unknown_format.test_a_segment_that_cannot_be_read_for_a_moment_is_no_damaged_archive(
            test_unknown_format.segments_alone(), errno.EIO
        ),
    ),
    "names that a killed restore has made count as durable": (
        lambda: replaced(restore, "sync_name", always(None)),
        marks.test_folders_that_a_killed_attempt_has_made_are_synced_before_anything_is_copied,
    ),
    "the mark of a refused copy goes before its files are gone for good": (
        lambda: replaced(restore.NewSpool, "remove", unsynced_removal),
        marks.test_what_was_copied_is_removed_for_good_before_the_mark_goes,
    ),
    "convert asks for no unfinished work": (
        lambda: replaced(convert, "unfinished_in", always([])),
        amid(
            KESTREL,
            KESTREL,
            transfers.test_a_conversion_of_either_queue_is_refused_and_another_queue_is_converted,
            "old",
            LIBKESTREL,
        ),
    ),
    "a conversion of the queue where items arrive asks for no transfers": (
        lambda: replaced(convert, "unfinished_in", lambda right: sources_alone(right)),
        amid(
            KESTREL,
            LIBKESTREL,
            transfers.test_a_conversion_of_either_queue_is_refused_and_another_queue_is_converted,
            "late",
            KESTREL,
        ),
    ),
    "a repaired copy has no intents": (
        lambda: replaced(repair.Repair, "_copy_own", always(())),
        amid(KESTREL, KESTREL, transfers.test_a_repaired_copy_goes_on_with_them),
    ),
    "a repair of some files is silent about what it leaves behind": (
        lambda: replaced(repair.Repair, "_left_behind", always(())),
        amid(KESTREL, KESTREL, transfers.test_a_repair_of_one_queues_files_names_what_it_leaves_behind, {"old"}),
    ),
    "a restore does not look for unfinished work": (
        lambda: replaced(restore, "unfinished_work", always([])),
        on_files(transfers.test_a_backup_at_rest_and_its_restore_have_them_and_a_start_goes_on),
    ),
    "the pipeline packs beside unfinished work": (
        lambda: replaced(pack, "unfinished_work", always([])),
        on_files(transfers.test_the_pipeline_neither_converts_nor_packs_either_queue),
    ),
    "an item that finds no room is given back before the file says that it stays": (
        lambda: all_of(
            replaced(RunningMove, "note_kept", handed_back),
            replaced(TransferOperation, "_hand_back", lambda right: TransferOperation._await_copies),
            replaced(UndoRecovery, "_moving", kept_forgotten),
        ),
        no_room_found,
    ),
}  # fmt: skip
"""By broken rule: how it is broken, and the test that fails."""


@pytest.mark.parametrize("rule", RULES)
def test_a_broken_rule_is_found(rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("restore", "journal convert"):
        sound(name)  # what the tools do with the rule
    broken, test = RULES[rule]
    with broken(), pytest.raises((AssertionError, pytest.fail.Exception, ValueError)):
        test(tmp_path, monkeypatch)


@pytest.mark.parametrize("rule", RULES)
def test_the_right_rule_passes_its_test(rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RULES[rule][1](tmp_path, monkeypatch)
