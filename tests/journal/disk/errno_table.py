"""The table of errno_table.md of what comes of each errno, amid each operation.

`python -m tests.journal.disk.errno_table --write` tries every call of every operation with every errno, which takes one
to two hours of one core, and writes the table; without `--write` it says whether the table is right. The suite tries
some (test_errno_table.py).
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from multiprocessing import Pool
from pathlib import Path
from random import Random

import click

from tests.journal.disk.errno_operations import OPERATIONS
from tests.journal.disk.errno_walk import CLASS_OF, CLASSES, Outcome, Result, Trial, base, pairs, trials, tried

DOCUMENT = Path(__file__).with_suffix(".md")
TABLE = re.compile(r"^\| operation \|.*?(?=^\s*$)", re.MULTILINE | re.DOTALL)
GROUPS = {
    "read": ("read", "reader", "size", "list"),
    "open, create": ("open", "create", "make_folder", "overwrite", "lock", "hold"),
    "write": ("write", "allocate", "reserve", "fill"),
    "rename, remove, cut": ("rename", "link", "remove", "truncate"),
    "sync": ("sync", "sync_folder", "sync_all"),
}
"""Calls of the disk. The others only look, and nothing rests on what they find."""
GROUP_OF = {verb: group for group, verbs in GROUPS.items() for verb in verbs}
Cells = dict[tuple[str, str, str], frozenset[Outcome]]
"""By operation, group of calls and class of errnos."""


def cells_of(results: Iterable[Result]) -> Cells:
    found: dict[tuple[str, str, str], set[Outcome]] = defaultdict(set)
    for each in results:
        if (group := GROUP_OF.get(each.call[0])) is not None:
            found[each.trial.operation, group, CLASS_OF[each.trial.errno]].add(each.outcome)
    return {place: frozenset(outcomes) for place, outcomes in found.items()}


def words(outcomes: frozenset[Outcome]) -> str:
    return ", ".join(each.value for each in Outcome if each in outcomes)


def cell(by_class: dict[str, frozenset[Outcome]]) -> str:
    """What all errnos have in common, then what is more with some classes of them."""
    common = frozenset.intersection(*by_class.values())
    more: dict[frozenset[Outcome], list[str]] = defaultdict(list)
    for kind, outcomes in by_class.items():
        if outcomes > common:
            more[outcomes - common].append(kind)
    parts = [words(common)] if common else []
    for outcomes, kinds in more.items():
        others = [kind for kind in CLASSES if kind not in kinds]
        name = f"not {others[0]}" if len(others) == 1 else ", ".join(kinds)
        parts.append(f"{name}: {words(outcomes)}")
    return "; ".join(parts) or "–"


def rendered(cells: Cells) -> str:
    lines = [f"| operation | {' | '.join(GROUPS)} |", "|---" * (1 + len(GROUPS)) + "|"]
    for name in OPERATIONS:
        row = [{kind: cells.get((name, group, kind), frozenset()) for kind in CLASSES} for group in GROUPS]
        lines.append(f"| {name} | {' | '.join(map(cell, row))} |")
    return "\n".join(lines) + "\n"


def written(document: str) -> str:
    """The table as it stands in the document."""
    found = TABLE.search(document)
    assert found is not None, "the document has no table of errnos"
    return found[0]


def read(table: str) -> Cells:
    by_word = {each.value: each for each in Outcome}
    cells: Cells = {}
    for line in table.splitlines()[2:]:
        name, *texts = [part.strip() for part in line.strip("|").split("|")]
        for group, text in zip(GROUPS, texts, strict=True):
            found: dict[str, set[Outcome]] = {kind: set() for kind in CLASSES}
            for part in text.split("; ") if text != "–" else []:
                who, colon, what = part.rpartition(": ")
                names = set(who.removeprefix("not ").split(", ")) if colon else set(CLASSES)
                for kind in set(CLASSES) - names if who.startswith("not ") else names:
                    found[kind].update([by_word[word] for word in what.split(", ")])
            cells |= {(name, group, kind): frozenset(outcomes) for kind, outcomes in found.items()}
    return cells


def sample(form: str, name: str, count: int, random: Random) -> Iterator[Trial]:
    """So many trials of an operation: of as many kinds of calls as that allows."""
    by_kind: dict[object, list[Trial]] = defaultdict(list)
    calls = base(form, name).calls
    for each in trials(form, name):
        verb, path = calls[each.at]
        by_kind[verb, re.sub(r"\d+", "", path)].append(each)
    kinds = list(by_kind.values())
    while count > 0:
        random.shuffle(kinds)
        for of_kind in kinds[:count]:
            yield random.choice(of_kind)
        count -= len(kinds)


@click.command()
@click.option("--write", is_flag=True, help="Write the table into errno_table.md.")
@click.option("--processes", default=2, show_default=True)
@click.option("--share", default=1.0, show_default=True, help="Try so many of them, drawn by lot; writes nothing.")
@click.option("--seed", default=1, show_default=True, help="Of the lot.")
@click.option("--only", default="", help="Operations whose names contain this; writes nothing.")
def main(write: bool, processes: int, share: float, seed: int, only: str) -> None:
    """Try each call of the disk with each errno."""
    random = Random(seed)
    chosen = [
        trial
        for form, name in pairs()
        if only in name
        for trial in trials(form, name)
        if share >= 1 or random.random() < share
    ]
    with Pool(processes) as pool:
        results = list(pool.imap(tried, chosen, chunksize=50))
    for result in results:
        for wrong in result.wrong:
            print(f"{result.trial}: {' '.join(result.call)}: {result.outcome.name}: {wrong}")
    bad = sum(bool(result.wrong) for result in results)
    calls = sum(len(base(form, name).calls) for form, name in pairs() if only in name)
    print(f"{len(OPERATIONS)} operations, {len(pairs())} with their formats, {calls} calls, {len(results)} trials")
    print(
        ", ".join(f"{each.value}: {count}" for each, count in Counter(each.outcome for each in results).most_common())
    )
    print(f"{bad} with something wrong")
    document = DOCUMENT.read_text("utf-8")
    table = rendered(cells_of(results))
    if only or share < 1:
        sys.exit(1 if bad else 0)
    if write and not bad:
        DOCUMENT.write_text(document.replace(written(document), table), "utf-8")
    elif table != written(document):
        print("the table of errno_table.md is another one: --write")
        bad += 1
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
