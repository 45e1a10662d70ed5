"""The table of errno_tools.md of what comes of each errno, in each call that a tool makes.

`python -m tests.journal.tools.errno_tools --write` runs each tool once for each call of `os` on its files and each
errno, once and from then on, and once killed there, and writes the table; without `--write` it says whether the table
is right. The suite tries some (test_errno_tools.py).
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from functools import cache
from multiprocessing import Pool
from pathlib import Path
from random import Random

import click
import pytest
from click.testing import CliRunner
from msgspec import Struct

from staniel.journal.disk.os_fs import OsFs
from staniel.journal.spool import Spool
from staniel.journal.tools.source import ReadSource
from staniel.pipeline.tasks.convert import convert_spool
from staniel.queues.config import Format
from staniel.server.backup import check as checks
from staniel.server.backup import store as stores
from staniel.server.backup.restore import is_unfinished
from staniel.server.cli import adopt, backup, journal, journal_damaged, journal_reading, journal_repair
from staniel.server.cli.main import main as staniel
from tests.faults.rich import _asks, _jobs, _puts, files
from tests.journal.tools.refused_os import GROUP_OF, GROUPS, Call, Killed, Lasts, Refusal, watched
from tests.support.world import START_MS, World

DOCUMENT = Path(__file__).with_suffix(".md")
TABLE = re.compile(r"^\| tool \|.*?(?=^\s*$)", re.MULTILINE | re.DOTALL)
NAMES = ("EIO", "EROFS", "ESTALE", "ENOSPC", "EDQUOT", "EMFILE", "ENFILE", "ENOMEM", "EACCES", "EPERM", "EINTR")
ERRNOS = {name: getattr(errno, name) for name in NAMES}
COLUMNS = (*GROUPS, "killed")
CONFIG = """
default.sync_journal = "always"
queues.big.max_memory_size = "10KB"
queues.big.max_journal_size = "160KB"
queues.big.default_journal_size = "3KB"
queues.mail.journal_format = "libkestrel"
queues.mail.default_journal_size = "2KB"
[workq]
port = 0
"""
MEMORY = "/dev/shm"
NOW_MS = START_MS + 60_000
OURS = ("lock", "append.lock", "last_backup", "last_backup.new", "ballast", "failed_sync.room")
"""Names of files that a tool may write into a spool that it reads."""
Tree = dict[str, bytes]


class Outcome(Enum):
    DONE = "done"
    REFUSED = "refused"
    MARKED = "marked"


class Tool(Struct, frozen=True):
    """`arguments`, in which {s} is the spool, {o} the old folder, {t} the target, {b} a folder with two backups.
    `after` looks at what the tool has left, in a folder with those names, and returns the outcome, or what is wrong.
    """

    name: str
    arguments: tuple[str, ...]
    after: Callable[[Path, Tool, Ran], Outcome | str]
    source: str = "s"


class Ran(Struct):
    """What a tool has said. `code` is None if it was killed."""

    code: int | None
    said: str
    printed: str
    calls: list[Call]


class Trial(Struct, frozen=True):
    tool: str
    refusal: Refusal

    @property
    def errno(self) -> str:
        number = self.refusal.errno
        return "kill" if self.refusal.lasts is Lasts.KILL else errno.errorcode[number]

    def __str__(self) -> str:
        return f"{self.tool} / {self.refusal.at} / {self.errno} / {self.refusal.lasts.value}"


class Result(Struct):
    trial: Trial
    call: Call
    outcome: Outcome | None
    wrong: list[str]

    @property
    def column(self) -> str:
        return COLUMNS[-1] if self.trial.refusal.lasts is Lasts.KILL else GROUP_OF[self.call[0]]


def tree(folder: Path, left_out: tuple[str, ...] = OURS) -> Tree:
    """Every file below a folder."""
    found: Tree = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in left_out:
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found


@cache
def template() -> Path:
    """A folder with a spool `s` of queues in both formats and jobs, the same as an old server's folder `o`, and two
    backups of the spool, `b`.
    """
    where = MEMORY if Path(MEMORY).is_dir() else None
    root = Path(tempfile.mkdtemp(prefix="staniel-template-", dir=where))
    world = World(CONFIG)
    _puts(world, "big", 24, 500)
    _asks(world, *["get big"] * 5, "get big/open")
    _puts(world, "other", 4, 30)
    _asks(world, "get mail+a", "get mail+b")
    _puts(world, "mail", 12, 300)
    _asks(world, *["get mail+a"] * 5, *["get mail+b"] * 3)
    _jobs(world)
    world.broker.shutdown(world.now_ms)
    for path in files(world.disk):
        if not path.endswith((".room", "ballast")):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(world.disk.read(path, 0, 1 << 30))
    (root / "o").mkdir()
    for path in [*(root / "s").iterdir(), *(root / "s/.staniel/cmdlog").glob("*.log")]:
        if path.is_file():
            shutil.copy(path, root / "o" / path.name)
    assert len(list((root / "s").glob("big*"))) > 1 and list((root / "s/.staniel/segments").iterdir())
    for number in range(2):
        with fixed_time(NOW_MS - 5000 + number * 1000):
            said = CliRunner().invoke(staniel, ["backup", "take", f"{root}/b", "--spool", f"{root}/s"])
        assert not said.exit_code, said.output
        (root / "s/.staniel/paused").write_bytes(b"{}") if not number else None
    (root / "s/.staniel/paused").unlink()
    return root


@contextmanager
def fixed_time(now_ms: int = NOW_MS) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (backup, adopt, journal, journal_repair, journal_reading, journal_damaged):
            patch.setattr(module, "wall_ms", lambda: now_ms)
        for module in (backup, adopt):
            patch.setattr(module, "steady_ms", lambda: 0)
        yield


def run(tool: Tool, root: Path, refusal: Refusal | None = None) -> Ran:
    """Run a tool in this process on the folders below `root`."""
    names = {"s": f"{root}/s", "o": f"{root}/o", "t": f"{root}/t", "b": f"{root}/b"}
    arguments = [each.format_map(names) for each in tool.arguments]
    with fixed_time(), watched(str(root), refusal) as watch:
        try:
            if arguments[0] == "pipeline":
                (found,) = convert_spool((names["s"], arguments[1], Format(arguments[2]), NOW_MS))
                return Ran(2 if found.refusal else 0, found.refusal, "", watch.calls)
            said = CliRunner().invoke(staniel, arguments)
        except Killed:
            return Ran(None, "", "", watch.calls)
    if isinstance(said.exception, Killed):
        return Ran(None, "", "", watch.calls)
    if said.exception is not None and not isinstance(said.exception, SystemExit):
        raise said.exception
    return Ran(said.exit_code, said.output, said.stdout, watch.calls)


@contextmanager
def prepared() -> Iterator[Path]:
    where = MEMORY if Path(MEMORY).is_dir() else None
    with tempfile.TemporaryDirectory(prefix="staniel-tools-", dir=where) as folder:
        root = Path(folder) / "x"
        shutil.copytree(template(), root)
        yield root


@cache
def sound(name: str) -> tuple[Ran, Tree, Tree]:
    """What the tool says if nothing is refused, what its target is, and what its source is then."""
    tool = TOOLS[name]
    with prepared() as root:
        ran = run(tool, root)
        ran.said = ran.said.replace(str(root), "")
        ran.printed = ran.printed.replace(str(root), "")
        assert ran.code in (0, 1), ran.said
        return ran, tree(root / "t"), tree(root / tool.source)


def tried(trial: Trial) -> Result:
    tool = TOOLS[trial.tool]
    refusal = trial.refusal
    with prepared() as root:
        before = tree(root / tool.source)
        try:
            ran = run(tool, root, refusal)
        except Exception as error:  # whatever it is, it is what we look for
            call = sound(tool.name)[0].calls[refusal.at]
            return Result(trial, call, None, [f"{type(error).__name__}: {error}"])
        call = ran.calls[refusal.at]
        call = (call[0], call[1].replace(str(root), ""))
        ran.printed = ran.printed.replace(str(root), "")
        wrong = []
        if tool.source and tool.after is not converted and tree(root / tool.source) != before:
            wrong.append("the source has changed")
        found = tool.after(root, tool, ran)
        outcome = found if isinstance(found, Outcome) else None
        if not isinstance(found, Outcome):
            wrong.append(found)
        wrong += untold(trial, ran, root, outcome)
        return Result(trial, call, outcome, wrong)


def untold(trial: Trial, ran: Ran, root: Path, outcome: Outcome | None) -> list[str]:
    """Return what is missing in the words of a tool that has ended without its result."""
    expected = sound(trial.tool)[0].code
    if ran.code is None:
        return []
    if ran.code == expected:
        return [f"code {ran.code}, and {outcome}"] if outcome not in (Outcome.DONE, None) else []
    lines = [line for line in ran.said.splitlines() if os.strerror(trial.refusal.errno) in line]
    if not lines:
        return [f"code {ran.code}, without the reason: {ran.said!r}"]
    if not any(str(root) in line and ";" in line for line in lines):
        return [f"code {ran.code}, without path or remedy: {lines}"]
    return [f"code {ran.code}, expected 2 for what was refused"] if ran.code not in (1, 2) else []


# what a tool has left


def printed(root: Path, tool: Tool, ran: Ran) -> Outcome | str:
    """Look at a tool that only reads."""
    expected = sound(tool.name)[0]
    if ran.code is None:
        return Outcome.REFUSED
    if ran.code == expected.code:
        same = ran.printed == expected.printed
        return Outcome.DONE if same else f"other output: {ran.printed[-300:]!r}"
    if ran.code == 1 and tool.name.endswith("verify"):
        return f"a refusal is taken for damage: {ran.said[-300:]!r}"
    if re.search(r": byte \d|[1-9]\d* damaged|torn", ran.said):
        return f"a refusal is taken for damage: {ran.said[-300:]!r}"
    return Outcome.REFUSED


def made(root: Path, tool: Tool, ran: Ran) -> Outcome | str:
    """Look at a tool that makes a folder."""
    target = root / "t"
    if not target.exists() or not [path for path in target.rglob("*") if path.is_file() and path.name not in OURS]:
        return Outcome.REFUSED if ran.code != 0 else "nothing was made"
    if is_unfinished(str(target)):
        return Outcome.MARKED
    left = tree(target)
    expected = sound(tool.name)[1]
    if left == expected:
        return Outcome.DONE
    others = sorted(name for name in {*left, *expected} if left.get(name) != expected.get(name))
    return f"neither marked nor whole (exit code {ran.code}): {others}"


def converted(root: Path, tool: Tool, ran: Ran) -> Outcome | str:
    """Look at a spool in which a queue was converted: a start must serve the same items."""
    spool, old = root / "s", tree(template() / "s")
    is_planned = (spool / ".staniel/convert.plan").exists()
    names = {path.name for path in spool.iterdir() if path.is_file()}
    kept = {name for name in old if "/" not in name}
    is_new = sorted(names) == sorted(name for name in sound(tool.name)[2] if "/" not in name)
    if "has been replaced" in ran.said and (is_planned or names != kept):
        return f"says that nothing was replaced: {ran.said[-200:]!r}"
    again = root / "again"
    shutil.copytree(spool, again)
    if items(again) != items_before():
        return f"other items: {items(again)} for {items_before()}"
    if is_planned:
        return Outcome.MARKED
    if names == kept:
        changed = [name for name in kept if (spool / name).read_bytes() != old[name]]
        return f"changed: {changed}" if changed else Outcome.REFUSED
    return Outcome.DONE if is_new else f"files: {sorted(names)}"


def items(folder: Path) -> dict[str, list[bytes]]:
    """What a start would serve, by queue."""
    fs = OsFs()
    try:
        Spool(fs, str(folder))
        return contents(fs, folder)
    finally:
        fs.close()


def contents(fs: OsFs, folder: Path) -> dict[str, list[bytes]]:
    from staniel.journal.tools.contents import contents as at

    found = {}
    source = ReadSource(fs, str(folder))
    for queue in ("big", "other", "mail+a", "mail+b"):
        content = at(source, queue, NOW_MS, NOW_MS, jobs=False)
        found[queue] = sorted(content.read(item, 12) for item in content.items)
        content.close()
    return found


@cache
def items_before() -> dict[str, list[bytes]]:
    with prepared() as root:
        return items(root / "s")


def backed_up(root: Path, tool: Tool, ran: Ran) -> Outcome | str:
    """Look at a folder of backups: each one that is listed is whole, also the earlier ones."""
    place = root / tool.arguments[2].format_map({"b": "b", "t": "t"})
    if not place.exists() or (not (place / "staniel-backups").exists() and not (place / "backups").exists()):
        return Outcome.REFUSED if ran.code != 0 else "there is no backup"
    try:
        store = backup.open_store(str(place), writes=False)
    except Exception as error:
        return Outcome.REFUSED if ran.code != 0 else str(error)
    try:
        ids = stores.ids(store)
        faults = list(checks.check(store, ids, checks.Checked(), lambda size: None))
        if faults:
            return f"a backup is not whole: {faults[0]}"
        earlier = set(kept_backups()) if place.name == "b" else set()
        if tool.name.startswith("backup prune"):
            earlier = {max(earlier)}
        if not earlier <= set(ids):
            return f"backups are gone: {earlier - set(ids)}"
        expected = 1 if tool.name.startswith("backup prune") else len(earlier) + 1
        return Outcome.DONE if len(ids) == expected and not ran.code else Outcome.REFUSED
    finally:
        store.close()


@cache
def kept_backups() -> list[str]:
    store = backup.open_store(str(template() / "b"), writes=False)
    try:
        return stores.ids(store)
    finally:
        store.close()


LIST = (
    Tool("journal verify", ("journal", "verify", "{s}"), printed),
    Tool("journal dump", ("journal", "dump", "{s}"), printed),
    Tool("journal stats", ("journal", "stats", "{s}"), printed),
    Tool("journal at", ("journal", "at", "now", "big", "--spool", "{s}"), printed),
    Tool("journal history", ("journal", "history", "big", "xid=1", "--spool", "{s}"), printed),
    Tool("journal damaged", ("journal", "damaged", "{s}"), printed),
    Tool("journal repair", ("journal", "repair", "{s}", "--to", "{t}"), made),
    Tool("journal repair, of files", ("journal", "repair", "{s}/big", "{s}/other", "--to", "{t}"), made),
    Tool("journal convert", ("journal", "convert", "{s}", "-Q", "big", "--to", "libkestrel"), converted),
    Tool("journal convert, back", ("journal", "convert", "{s}", "-Q", "mail", "--to", "kestrel"), converted),
    Tool("pipeline convert", ("pipeline", "big", "libkestrel"), converted),
    Tool("backup take, the first", ("backup", "take", "{t}", "--spool", "{s}"), backed_up),
    Tool("backup take, the next", ("backup", "take", "{b}", "--spool", "{s}"), backed_up),
    Tool("backup list", ("backup", "list", "{b}"), printed, "b"),
    Tool("backup verify", ("backup", "verify", "{b}"), printed, "b"),
    Tool("backup prune", ("backup", "prune", "{b}", "--keep", "1", "--yes"), backed_up),
    Tool("restore", ("restore", "{b}", "{t}"), made, "b"),
    Tool("adopt, dry run", ("adopt", "{o}", "--dry-run"), printed, "o"),
    Tool("adopt", ("adopt", "{o}", "{t}"), made, "o"),
)
TOOLS = {each.name: each for each in LIST}


# the table


def trials(name: str) -> Iterator[Trial]:
    """Every call with every errno."""
    for at in range(len(sound(name)[0].calls)):
        for number in ERRNOS.values():
            for lasts in (Lasts.ONCE, Lasts.ON):
                yield Trial(name, Refusal(at, number, lasts))
        if TOOLS[name].after is not printed:
            yield Trial(name, Refusal(at, 0, Lasts.KILL))


def words(outcomes: set[Outcome]) -> str:
    return ", ".join(each.value for each in Outcome if each in outcomes) or "–"


def rendered(results: Iterable[Result]) -> str:
    found: dict[tuple[str, str], set[Outcome]] = defaultdict(set)
    for each in results:
        if each.outcome is not None:
            found[each.trial.tool, each.column].add(each.outcome)
    lines = [f"| tool | {' | '.join(COLUMNS)} |", "|---" * (1 + len(COLUMNS)) + "|"]
    lines += [f"| {name} | {' | '.join(words(found[name, each]) for each in COLUMNS)} |" for name in TOOLS]
    return "\n".join(lines) + "\n"


def read(table: str) -> dict[tuple[str, str], list[str]]:
    """Return the outcomes by tool and column."""
    found = {}
    for line in table.splitlines()[2:]:
        name, *cells = [part.strip() for part in line.strip("|").split("|")]
        found |= {(name, column): cell.split(", ") for column, cell in zip(COLUMNS, cells, strict=True)}
    return found


def written(document: str) -> str:
    """The table as it stands in the document."""
    found = TABLE.search(document)
    assert found is not None, "the document has no table of tools"
    return found[0]


def sample(name: str, count: int, random: Random) -> list[Trial]:
    """So many trials of a tool, of as many kinds of calls as that allows."""
    by_kind: dict[object, list[Trial]] = defaultdict(list)
    for each in trials(name):
        verb, path = sound(name)[0].calls[each.refusal.at]
        by_kind[verb, re.sub(r"[0-9a-f]{2,}|\d+", "", path.rpartition("/")[2])].append(each)
    kinds = list(by_kind.values())
    random.shuffle(kinds)
    return [random.choice(kinds[number % len(kinds)]) for number in range(count)]


@click.command()
@click.option("--write", is_flag=True, help="Write the table into errno_tools.md.")
@click.option("--processes", default=2, show_default=True)
@click.option("--share", default=1.0, show_default=True, help="Try so many of them, drawn by lot; writes nothing.")
@click.option("--seed", default=1, show_default=True, help="Of the lot.")
@click.option("--only", default="", help="Tools whose names contain this; writes nothing.")
def main(write: bool, processes: int, share: float, seed: int, only: str) -> None:
    """Try each call of each tool with each errno."""
    random = Random(seed)
    template()
    chosen = [each for name in TOOLS if only in name for each in trials(name) if share >= 1 or random.random() < share]
    try:
        with Pool(processes) as pool:
            results = list(pool.imap(tried, chosen, chunksize=20))
    finally:
        shutil.rmtree(template())
    for result in results:
        for wrong in result.wrong:
            print(f"{result.trial}: {' '.join(result.call)}: {wrong}")
    bad = sum(bool(result.wrong) for result in results)
    calls = sum(len(sound(name)[0].calls) for name in TOOLS if only in name)
    print(f"{len(TOOLS)} tools, {calls} calls, {len(results)} trials")
    print(
        ", ".join(f"{each.value}: {count}" for each, count in Counter(r.outcome for r in results if r.outcome).items())
    )
    print(f"{bad} with something wrong")
    if not only and share >= 1:
        document, table = DOCUMENT.read_text("utf-8"), rendered(results)
        if write and not bad:
            DOCUMENT.write_text(document.replace(written(document), table), "utf-8")
        elif table != written(document):
            print("the table of errno_tools.md is another one: --write")
            bad += 1
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
