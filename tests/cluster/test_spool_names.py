"""Every file that a server can create in a spool is in exactly one list: followers have it too, or it is its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from staniel.cluster.spool_names import (
    ARRIVING,
    RULES,
    TEMPORARY,
    Share,
    SpoolPaths,
    is_replicated,
    rules_of,
    share_of,
)
from staniel.journal.own_files import LOSSES
from staniel.journal.spool_listing import JOBS_HELD, is_journal_file, may_be_in_spool
from tests.cluster.spools import FollowedWorld, everything
from tests.faults.rich import files, rich

SPOOL_PAGE = Path(__file__).parents[2] / "docs" / "spool.md"
ENTRY = re.compile(r"^- `([^`]+)`: ", re.MULTILINE)
IN_FOLDERS = {
    "cmdlog": ["000000001.log", "000000001.log.rw", "000000002.log.damaged.2", "append.lock", "read.lock"],
    "segments": ["q.17", "q.17.new"],
    "undo": ["1", "2~~7"],
    "keys": ["1", "1.new"],
    "held": ["1-0"],
    "kept": ["h~q.17", "trial", "trial~~1"],
    "convert": ["q", "q.17"],
    "repair": ["new/q", "x"],
    "quarantine": ["q.17@5"],
    "damaged": ["q@100+20", "q@100+20.2"],
    "aside.*": ["q", "q.17.pack"],
}
STRANGE = ["", ".", "..", "/etc/passwd", "../q", "a/../q", ".staniel", ".staniel/", ".staniel/undo/..", "q\0", "a/b",
           ".staniel/unknown", ".staniel/undo/1/2", ".staniel/undo", "x" * 256, ".staniel/aside.1/../../../x",
           ".staniel/damaged/q", ".staniel/redo.0", ".staniel/version", "./q", "q/", "//q"]  # fmt: skip


def own_names() -> list[str]:
    """A name of each file of which docs/spool.md tells."""
    listed = {name.rstrip("/") for name in ENTRY.findall(SPOOL_PAGE.read_text("utf-8"))}
    assert listed == set(LOSSES)
    names = [f"{name}/{file}" for name, files in IN_FOLDERS.items() for file in files]
    names += [name for name in listed if name not in IN_FOLDERS]
    return [f".staniel/{name}".replace("*", "1700000000000") for name in names]


@pytest.mark.parametrize("name", sorted(own_names()))
def test_every_documented_file_of_the_own_folder_has_one_rule(name: str) -> None:
    assert len(rules_of(name)) == 1
    assert is_replicated(name) is (share_of(name) is Share.REPLICATED)


def test_every_file_that_servers_have_left_has_one_rule() -> None:
    world = FollowedWorld()
    everything(world)
    seen = 0
    for disk in (world.leader, world.follower_disk, rich()):
        for path in files(disk):
            name = path.removeprefix("s/")
            if name.startswith(".staniel/"):
                assert len(rules_of(name)) == 1, name
            assert share_of(name) is not None, name
            assert is_replicated(name) is (share_of(name) is Share.REPLICATED), name
            seen += 1
    assert seen > 60


def test_what_a_backup_copies_is_replicated_but_for_what_is_derived() -> None:
    names = ["q", "q.17", "q.17.pack", "q.read.", "q.read.a.b", *own_names()]
    copied = [name for name in names if may_be_in_spool(name)]
    assert [name for name in copied if not is_replicated(name)] == [".staniel/segments/q.17"]
    assert len(copied) > 10


def test_unfinished_files_follow_the_rule_of_the_finished_one() -> None:
    assert is_replicated("q~~17") and is_replicated("q.new") and is_replicated("q.read.a~~3")
    assert is_replicated(".staniel/intents.new") and not is_replicated(".staniel/version.new")
    assert TEMPORARY.search("q.17~~4") and is_replicated(ARRIVING)


def test_archives_and_trials_of_their_folders_are_a_servers_own() -> None:
    assert share_of("archive/archive~q.17") is share_of("archive~q.17") is Share.OWN
    assert share_of("staniel~trial") is share_of(".staniel/trial") is Share.OWN
    assert not is_replicated("archive~q.17")


@pytest.mark.parametrize("name", STRANGE)
def test_no_other_name_is_taken_from_a_peer(name: str) -> None:
    assert not is_replicated(name)


def test_a_file_in_no_list_is_a_defect() -> None:
    assert share_of(".staniel/unknown") is None
    with pytest.raises(AssertionError, match="in no list"):
        SpoolPaths("s").replicated_name("s/.staniel/unknown")


def test_segments_of_a_command_log_elsewhere_have_names_as_if_it_were_in_the_spool() -> None:
    paths = SpoolPaths("/spool", "/jobs")
    assert paths.name_of("/jobs/000000001.log") == ".staniel/cmdlog/000000001.log"
    assert paths.path_of(".staniel/cmdlog/000000001.log") == "/jobs/000000001.log"
    assert paths.name_of("/spool/.staniel/cmdlog/000000001.log") is None  # of an earlier setting
    assert paths.name_of("/spool/q") == "q" and paths.path_of("q") == "/spool/q"
    assert paths.name_of("/spool2/q") is paths.name_of("/etc/passwd") is None
    assert paths.replicated_name(f"/jobs/{JOBS_HELD}/1-0") is None
    assert SpoolPaths("s").jobs_outside == "" and paths.jobs_outside == "/jobs"


def test_rules_say_why() -> None:
    assert all(rule.why for rule in RULES)
    assert is_journal_file("q.17")
