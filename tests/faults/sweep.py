"""Every journal of the public cases, cut at every byte and with every bit flipped: is what is left of it served?

`python -m tests.faults.sweep` does all of them in some minutes; the suite takes a sample. The cases
are those of tests/conformance, the judge is in tests/support. Each damaged spool is recovered by a broker on the fake
disk, used, and recovered again.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

import click

from staniel.broker.events import Level
from staniel.journal.kestrel.records import SAVE_XID
from staniel.sim.disk.disk import Disk
from tests.conformance import cases, replay
from tests.support.judge import Judge
from tests.support.records import addx
from tests.support.spool import content_of, put_file
from tests.support.world import START_MS, World

NEIGHBOUR = "neighbour"
READ_BYTES_MAX = 1 << 20  # one piece; the files have some hundred bytes
LEFT = "left in place"
Files = dict[str, bytes]


class Damaged(NamedTuple):
    """A spool of which one file has been damaged."""

    name: str
    files: Files


class Watched(World):
    """A world that keeps what the broker reports of damage: (file, offset) to where the rest was saved."""

    damages: dict[tuple[str, int], str]

    def _report(self, level: Level, event: str, /, **fields: object) -> None:
        super()._report(level, event, **fields)
        if event in ("journal.damaged", "journal.torn"):
            assert isinstance(fields["at"], int)
            self.damages[str(fields["file"]), fields["at"]] = str(fields["saved_as"])


class Frugal(Disk):
    """Notes the largest read that was asked for: the real disk allocates that much before it reads."""

    asked_bytes = 0

    def read(self, path: str, at: int, count: int) -> bytes:
        self.asked_bytes = max(self.asked_bytes, count)
        return super().read(path, at, count)


def every_case() -> list[tuple[str, Files]]:
    """(name, files) of each."""
    rows = cases.load("kestrel/journal_cases.json")
    return [(row["name"], {name: bytes.fromhex(data) for name, data in row["files"].items()}) for row in rows]


def cuts() -> Iterator[Damaged]:
    """Each file cut at each byte."""
    for case, files in every_case():
        for name, data in files.items():
            for length in range(len(data)):
                yield Damaged(f"{case}: {name} cut at {length}", {**files, name: data[:length]})


def flips() -> Iterator[Damaged]:
    """Each bit of each file flipped."""
    for case, files in every_case():
        for name, data in files.items():
            for bit in range(8 * len(data)):
                bent = bytearray(data)
                bent[bit // 8] ^= 1 << bit % 8
                yield Damaged(f"{case}: {name} bit {bit}", {**files, name: bytes(bent)})


def sample(all_of_them: list[Damaged], count: int, seed: int) -> list[Damaged]:
    return Random(seed).sample(all_of_them, count)


def queues_of(files: Files) -> list[str]:
    """The queues that the file names speak of."""
    found = {re.fullmatch(r"([^.~]+)(\.\d+(\.pack)?)?", name) for name in files}
    return sorted({match[1] for match in found if match})


class Verdict:
    """What the judge makes of one queue's files."""

    def __init__(self, queue: str, files: Files) -> None:
        judge = Judge(START_MS)
        self.files = {name: files[name] for name in replay.files_of(queue, files)}
        self.valid = {name: judge.read(data, is_sealed=name != queue) for name, data in self.files.items()}
        self.contents = [judge.open[xid] for xid in sorted(judge.open)] + [entry.content for entry in judge.line]
        self.is_written_anew = any(entry.remembered is not None for entry in judge.line)

    @property
    def every(self) -> list[bytes]:
        """All items in their order."""
        return [data for data, _, _, _ in self.contents]

    def live(self, now_ms: int) -> list[bytes]:
        """Those that have not expired by `now_ms`."""
        return [data for data, _, expires_ms, _ in self.contents if not expires_ms or expires_ms > now_ms]

    def damage(self) -> dict[tuple[str, int], bytes]:
        """(file as it is called after recovery, offset) to what cannot be read, for each file that is damaged."""
        damaged = {name: at for name, at in self.valid.items() if at < len(self.files[name])}
        return {(name.removesuffix(".pack"), at): self.files[name][at:] for name, at in damaged.items()}


def verdicts(files: Files) -> dict[str, Verdict]:
    """Of each queue. Summaries that say nothing are set aside by a start, and count for nothing."""
    counted = {name: data for name, data in files.items() if name not in empty_packs(files)}
    return {queue: Verdict(queue, counted) for queue in queues_of(counted)}


def empty_packs(files: Files) -> set[str]:
    return {name for name, data in files.items() if name.endswith(".pack") and says_nothing(data)}


def check(damaged: Damaged, used: bool = True) -> list[str]:
    """What is wrong with how this spool is recovered; with how it goes on from there, if it is `used`."""
    disk = Frugal()
    disk.make_folder("s")
    for name, data in {**damaged.files, NEIGHBOUR: addx(b"mine")}.items():
        put_file(disk, name, data)
    nothing = empty_packs(damaged.files)
    judged = verdicts(damaged.files)
    world = recovered(disk)
    asked_bytes = disk.asked_bytes
    found = {queue: world.items(queue) for queue in judged}
    wrong = [
        f"{queue}: {found[queue]} instead of {verdict.every}"
        for queue, verdict in judged.items()
        if found[queue] != verdict.every
    ]
    wrong += check_damage(world, judged, nothing)
    wrong += [line for verdict in judged.values() if not verdict.is_written_anew for line in check_files(disk, verdict)]
    if world.items(NEIGHBOUR) != [b"mine"]:
        wrong.append("the neighbour has lost its item")
    if asked_bytes > READ_BYTES_MAX:
        wrong.append(f"a read of {asked_bytes} bytes")
    wrong += check_service(world, judged) if used else []
    return [f"{damaged.name}: {each}" for each in wrong]


def recovered(disk: Disk) -> Watched:
    world = Watched.__new__(Watched)
    world.damages = {}
    world.__init__("", disk)  # type: ignore[misc]
    return world


def says_nothing(summary: bytes) -> bool:
    """Whether it replaces nothing: it may be what a power cut has left of a name."""
    return not summary or (len(summary) == 5 and summary[0] == SAVE_XID)


def check_damage(world: Watched, judged: dict[str, Verdict], nothing: set[str]) -> list[str]:
    """File and offset are reported; what was cut off is kept, what was not cut is said to be in its place. Of summaries
    that say nothing the whole is kept.
    """
    expected = {key: (lost, verdict) for verdict in judged.values() for key, lost in verdict.damage().items()}
    reported = {(file, at): saved_as for (file, at), saved_as in world.damages.items() if file not in nothing}
    if reported.keys() != expected.keys() or not nothing <= {file for file, _ in world.damages}:
        return [f"reported {[*world.damages]}, expected {[*expected]} and {nothing}"]
    wrong = []
    for (file, at), saved_as in reported.items():
        lost, verdict = expected[file, at]
        if saved_as != LEFT:
            kept = content_of(world.disk, saved_as)
        elif verdict.is_written_anew:
            continue  # with all of its files
        else:
            kept = content_of(world.disk, f"s/{file}")[at:]
        if kept != lost or (saved_as == LEFT and "." not in file):
            wrong.append(f"{kept!r} is kept of {file}: {saved_as}")
    return wrong


def check_files(disk: Disk, verdict: Verdict) -> list[str]:
    """No other byte of the spool is touched: archives as they were, the current file up to its damage."""
    wrong = []
    for name, before in verdict.files.items():
        now = content_of(disk, f"s/{name.removesuffix('.pack')}")
        if "." not in name:
            valid = verdict.valid[name]
            now, before = now[:valid], before[:valid]
        if now != before:
            wrong.append(f"{name} was {before!r} and is {now!r}")
    return wrong


def check_service(world: World, judged: dict[str, Verdict]) -> list[str]:
    """Each queue takes another item, and a kill later everything is there: old items in order, then the new one."""
    client = world.client()
    parents = [queue for queue in judged if "+" not in queue]  # a child gets its copy from its parent
    for queue in parents:
        client.puts("new", queue)
    world.sync()
    if client.hears() != " ".join(["STORED"] * len(parents)):
        return ["a put was refused"]
    again = recovered(world.disk.kill())
    wrong = [f"{file} is damaged again at {at}" for file, at in again.damages if "." not in file]
    for queue, verdict in judged.items():
        found = again.items(queue)
        if found[-1:] != [b"new"] or not between(verdict.live(START_MS), found[:-1], verdict.every):
            wrong.append(f"{queue}: {found} after a kill, expected {verdict.every} and a new one")
    return wrong


def between(least: list[bytes], found: list[bytes], most: list[bytes]) -> bool:
    """Whether `found` has all of `least` and nothing but `most`, in the order of that."""
    rest = iter(most)
    return all(each in rest for each in found) and sum(map(found.count, set(found))) >= len(least)


@click.command()
@click.option("--share", type=click.FloatRange(0, 1), default=1.0, show_default=True, help="Of all cuts and flips.")
@click.option("--seed", type=int, default=0, show_default=True)
def main(share: float, seed: int) -> None:
    """Damage every public case in every way; exit status 1 if one of them is not served as it should be."""
    wrong: list[str] = []
    for what, all_of_them in (("cuts", list(cuts())), ("flips", list(flips()))):
        chosen = sample(all_of_them, round(share * len(all_of_them)), seed)
        for number, damaged in enumerate(chosen, 1):
            wrong += check(damaged)
            if number % 10_000 == 0 or number == len(chosen):
                print(f"{number} of {len(chosen)} {what}, {len(wrong)} wrong", flush=True)
    print("\n".join(wrong[:100]))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
