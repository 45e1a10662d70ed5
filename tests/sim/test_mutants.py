"""The simulator notices when a rule is broken: each mutant is caught by one of its first seeds."""

from __future__ import annotations

import gc
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from staniel.sim.__main__ import main
from staniel.sim.disk.disk import Disk
from staniel.sim.history import SeedPlan
from staniel.sim.mutants.clocks import MUTANTS as OF_CLOCKS
from staniel.sim.mutants.delays import MUTANTS as OF_DELAYS
from staniel.sim.mutants.equal import MUTANTS as OF_EQUAL_ITEMS
from staniel.sim.mutants.holds import MUTANTS as OF_HOLDS
from staniel.sim.mutants.hub import MUTANTS as OF_HUBS
from staniel.sim.mutants.ids import MUTANTS as OF_IDS
from staniel.sim.mutants.jobs import MUTANTS as OF_JOBS
from staniel.sim.mutants.keys import MUTANTS as OF_KEYS
from staniel.sim.mutants.limits import MUTANTS as OF_LIMITS
from staniel.sim.mutants.packs import MUTANTS as OF_PACKS
from staniel.sim.mutants.queues import MUTANTS
from staniel.sim.mutants.redo import MUTANTS as OF_REDO
from staniel.sim.mutants.redrives import MUTANTS as OF_REDRIVES
from staniel.sim.mutants.settings import MUTANTS as OF_SETTINGS
from staniel.sim.mutants.several import MUTANTS as OF_SEVERAL
from staniel.sim.mutants.starts import MUTANTS as OF_STARTS
from staniel.sim.mutants.streams import MUTANTS as OF_STREAMS
from staniel.sim.mutants.syncs import MUTANTS as OF_SYNCS
from staniel.sim.mutants.transfers import MUTANTS as OF_TRANSFERS
from staniel.sim.mutants.undo import MUTANTS as OF_UNDO
from staniel.sim.mutants.users import MUTANTS as OF_USERS
from staniel.sim.power_cuts import states_of
from staniel.sim.profiles import PROFILES
from staniel.sim.run import run
from staniel.sim.shrink import shrink

pytestmark = pytest.mark.pure
SEEDS_MAX = 400
FROM = {
    "a kept file is not synced": 39,
    "kept files go before the move that gives them up is durable": 233,
    "a hold grows beyond its limit": 54,
    "a segment that a holder may have read grows after a crash": 75,
    "a segment of a command log that a holder may have read grows after a crash": 44,
    "a pack that could not take the name of its archive is kept in the place of that": 218,
    "a new queue numbers its files without regard to those that a hold keeps": 56,
    "a link of a killed process counts as kept": 4,
    "a hold takes over its predecessor's files": 132,
    "a pack does not wait for the records that it rests on": 132,
    "an intent is not synced before its copy": 49,
    "cleaning drops a delete before the addition that it ends": 45,
    "a rotation seals a file that it has not synced": 16,
    "a folder whose sync fails is forgotten where a new queue is made": 53,
    "a sync without room in a rotation counts as a full disk": 66,
    "a sync of intents without room is tried again": 26,
    "a child of a shared journal that keeps none gets no copies": 17,
    "a text put that is refused midway says that nothing is stored": 30,
    "an intent is ended when the copy has landed": 33,
    "the first equal item is a copy, wherever it lies": 107,
    "an equal item that the same turn put before may be the copy": 40004039,
    "a copy is looked for behind the highest number, also if no segment has it": 12025419,
    "a deletion gives a file that it has not synced the name of a sealed one": 14009655,
    "a pack meets what an earlier one could not remove": 469,
    "a pack gets its last name though a file that it covers could not be removed": 38,
    "a pack forgets the files that the one before it could not remove": 1183,
    "stand-ins in front of the item that is read back count as lost": 39,
    "no room is kept for the mark of a failed sync": 54,
    "a mark counts as whole before the start has synced what a killed process left": 1277,
    "a mark takes an earlier one that is left in its room for its beginning": 3003580,
    "a client that waits behind a delete is not told that it is done": 106,
    "a file that is complete stays in the redo log as it was": 95,
    "the redo log is not told what was synced before it knew the file": 1024,
    "a start believes what the redo log has a wrong checksum of": 507,
    "what was synced in a close is not told to the redo log before the answer": 224,
    "items go back though their answer has left, when a later one cannot": 34,
    "what has arrived under TLS is decrypted a record at a time": 29,
    "an empty journal that is written anew forgets the number of the last transaction": 90,
    "a search takes archives above 2**63 for newer than the current file": 7825,
    "a redo log that has run out of numbers gives them to other files": 67,
    "a start reads the numbers of the redo log's batches as 64 bits with a sign": 26,
    "a journal is rewritten under a purge or an undo": 157,
    "two operations note copies for one queue at once": 290,
    "what finds no room at its target goes back before the file says that it stays": 241,
    "a start looks for the copies of items that found no room": 134,
    "what a killed process has removed counts as gone from the disk": 10,
    "an undo returns items with times that a put may have": 19,
    "a move gives its copies the time that a put has": 43,
    "a rewritten journal has no pasts": 373,
    "a sync without room in a rewrite counts as a full disk": 266,
    "a deleted queue stays on pages": 301,
    "a page that awaits more is not told that it has all": 15004118,
    "the mark of a failed sync is left half written and believed where there is no room": 135,
    "any number of clients may wait": 44,
    "a client that waits keeps its place when its rights end": 40,
    "an end by id is that of the oldest read": 60,
    "a moved item leaves before the disk has its copy": 88,
    "a slice is settled before its removal is durable": 70,
    "a redriven item leaves before the disk has its copy": 71,
    "a move goes on to what has become an alias": 55,
    "a number behind the last one becomes the last one": 67,
    "a copy has the past of the copy before it": 31,
    "the answer to an end by id does not wait for its sync": 374,
    "an undo looks for all items of a redrive in the first home": 72,
    "a torn mark forgets the sidecars that archives have had": 83001544,
    "the empty pack of a deletion forgets the number of the last transaction": 82006199,
    "a deletion ends before the removal of its pack is durable": 91020127,
    "files are removed without a list of their names": 91018091,
    "a file that was opened twice is forgotten when the other one is closed": 94004149,
    "a request asks in each turn whether a deletion has ended": 92025851,
    "two undos at once claim equal copies each for itself": 5,
    "a descriptor is used again within the batch of events that speaks of its last owner": 21,
    "a stop leaves clients connected": 20,
    "a successor is closed though a sync is still to come for it": 31,
    "a journal is rewritten under the puts that are not finished": 20,
    "a repeated put is answered before the first one is durable": 14,
    "a deleted queue ends the wait at several, and the client stays at the others": 49,
    "flags whose item is cut off are taken for the number of a transaction": 13,
    "a cut of a segment takes the first item that a reader needs": 13,
    "items of a cut segment are looked up where they were before": 29,
    "a deletion that waits forgets how many items it may remove": 26,
    "an empty queue goes without an undo though an operation brings items back to it": 11,
    "a queue goes without what has come since its items were written to the undo file": 12,
}
"""Where to look first, as mutants.md has it: a matter of time alone."""
TRACED = {"segments of a deleted queue go before its reader's file says that all is read": 94500009}
"""Seeds that are found by cutting the power at each step (power_cuts.py)."""
NO_MUTANT = re.compile(r"\b(Type|Attribute|Name|Import)Error\(")
"""A mutant that calls something by an old name breaks the server off, and not the rule."""
assert OF_JOBS is OF_HUBS is OF_STREAMS is OF_PACKS is OF_REDO is OF_SETTINGS is OF_SYNCS is OF_TRANSFERS
assert OF_TRANSFERS is OF_UNDO is OF_LIMITS is OF_USERS is OF_STARTS is OF_EQUAL_ITEMS is OF_CLOCKS
assert (
    OF_CLOCKS is OF_DELAYS is OF_HOLDS is OF_IDS is OF_KEYS is OF_REDRIVES is OF_SEVERAL is MUTANTS
)  # each file adds its own


@pytest.mark.parametrize("what", [what for what in MUTANTS if what not in TRACED])
def test_a_broken_rule_is_found(what: str) -> None:
    make, profile = MUTANTS[what]
    with make():
        start = FROM.get(what, 0)
        for seed in [*range(start, start + SEEDS_MAX), *range(min(start, SEEDS_MAX))]:
            violation = run(seed, profile).violation
            if violation is not None:
                assert not NO_MUTANT.search(violation.why), f"the mutant does not fit the product: {violation}"
                return
    raise AssertionError(f"not found with {SEEDS_MAX} seeds of {profile}: {what}")


@pytest.mark.parametrize("what", TRACED)
def test_a_broken_rule_is_found_by_cutting_the_power_at_each_step(what: str) -> None:
    make, profile = MUTANTS[what]
    with make():
        violation = states_of(SeedPlan(TRACED[what], PROFILES[profile])).outcome.violation
    assert violation is not None and not NO_MUTANT.search(violation.why), violation


def test_the_document_lists_every_broken_rule_in_one_table() -> None:
    document = Path(__file__).with_name("mutants.md").read_text()
    table = document.split("| broken rule |")[1].split("\n\n")[0]
    listed = re.findall(r"^\| (.+?) \| `([\w-]+)` \| [0-9]+ \| .+ \|$", table, re.MULTILINE)
    assert dict(listed) == {what: profile for what, (_, profile) in MUTANTS.items()} and len(listed) == len(MUTANTS)


def test_the_ways_to_lose_an_item_name_the_seeds_of_the_table() -> None:
    here = Path(__file__)
    table = here.with_name("mutants.md").read_text()
    chapter = here.parents[1].joinpath("README.md").read_text().split("## Ways to lose")[1]
    rows = re.findall(r"^\| .+ \| .+ \| ([^|`]+?)(?:; [^|]+)? \| `([\w-]+)` (\d+) \|$", chapter, re.MULTILINE)
    assert len(rows) >= 6
    assert [row for row in rows if "| {} | `{}` | {} |".format(*row) not in table] == []


def test_a_mutant_leaves_nothing_behind() -> None:
    before = Disk.sync_folder
    with MUTANTS["no folder is ever synced"][0]():
        assert Disk.sync_folder is not before
    assert Disk.sync_folder is before


def test_a_failing_history_is_made_short() -> None:
    with MUTANTS["a close is not recorded"][0]():
        seed_plan = SeedPlan(0, PROFILES["kill"])
        whole, short = run(0, "kill"), shrink(seed_plan)
    assert whole.violation is not None and short.violation is not None
    assert short.violation.kind is whole.violation.kind
    assert len(short.transcript) < len(whole.transcript)


def test_the_command_says_how_many_and_that_all_is_well() -> None:
    result = CliRunner().invoke(main, ["--seeds", "10", "--jobs", "1", "--steps", "40"])
    assert result.exit_code == 0, result.output
    assert "10 seeds, " in result.output and "0 failures" in result.output
    assert gc.isenabled()  # with one process it has run in ours


def test_the_command_says_how_to_see_a_failing_seed_again() -> None:
    with MUTANTS["replies depend on nothing"][0]():
        arguments = ["--seeds", "3", "--jobs", "1", "--profile", "power", "--verbose"]
        result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1
    assert "again: python -m staniel.sim --seed " in result.output
    assert "  = " in result.output and "  accident  power loss" in result.output


def test_the_command_counts_states() -> None:
    arguments = ["--seeds", "1", "--jobs", "1", "--profile", "power", "--steps", "20", "--crashes", "1", "--states"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert " 0 states" not in result.output
