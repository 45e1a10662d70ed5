"""The cost of one client's largest requests for the others.

Each attack runs alone, with polite clients, against a server of its own; and as a control against another server on the
same core, which the polite clients do not use. The delay in the control is the machine's share, which no server could
avoid. The targets and limits are here, the attacks in `attacks.py`, the timing of a turn in `turns.py`.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import click
import msgspec
from msgspec import Struct

from staniel.bench.harness import machine
from staniel.bench.harness.contestant import ROOT
from staniel.bench.harness.probe import Delays
from staniel.bench.harness.process import exit_on_signals
from staniel.bench.harness.served import OUR_CORE, Client, Served, ServerFailed, polite_delays, served
from staniel.bench.own.attacks import ATTACKS, CONFIG, Attack, Target
from staniel.bench.own.turns import Longest

RATE = 250  # requests a second of all polite clients together
POLITE = 8
SECONDS, QUICK_SECONDS = 2.0, 0.8
QUICK_ROUNDS = 3
TURN_MS_MAX = 20.0
TIMES_MAX = 2.0
HELD_MB_MAX = 256 + 128  # max_pending_size_total, and max_memory_size of the one queue that an attack fills


class Row(Struct, frozen=True):
    """The result of an attack. `turn_ms`: the longest turn under attack. `beside`: the p99 while another server is
    attacked. `times`: the polite p99 under attack divided by the greater of quiet and beside, the median of the rounds.
    `held_mb`: the highest resident size of all rounds, minus that before the first.
    """

    attack: str
    quiet: list[Delays]
    beside: list[Delays]
    attacked: list[Delays]
    turn_ms: float
    times: float
    held_mb: float

    @property
    def missed(self) -> list[str]:
        """The missed targets."""
        found = {
            "turn": self.turn_ms > TURN_MS_MAX,
            "p99": self.times > TIMES_MAX,
            "memory": self.held_mb > HELD_MB_MAX,
        }
        return [name for name, is_missed in found.items() if is_missed]


def polite(server: Served, seconds: float) -> Delays:
    """Measure the polite clients. Raises ServerFailed."""
    return polite_delays(server, RATE, POLITE, seconds)


def under_attack(server: Served, attack: Attack, target: Target, seconds: float) -> Delays:
    """Measure the polite clients of `server` under attack. Raises ServerFailed."""
    over, wrong = threading.Event(), list[Exception]()

    def work() -> None:
        try:
            attack.work(target, over)
        except Exception as error:
            wrong.append(error)

    attacker = threading.Thread(target=work, daemon=True)
    attacker.start()
    try:
        delays = polite(server, seconds)
    finally:
        over.set()
        attacker.join()
    if wrong:
        raise ServerFailed(f"{attack.name}: {wrong[0]!r}")
    return delays


def measured(attack: Attack, checkout: Path, rounds: int, seconds: float, scale: float = 1.0) -> Row:
    """Measure a server of its own, alternately quiet and under attack. Raises ServerFailed."""
    with tempfile.TemporaryDirectory(prefix="bench-turns-") as folder:
        longest = Longest(Path(folder) / "longest")
        program = [interpreter(checkout), str(ROOT / "bench" / "own" / "turns.py"), str(longest.path)]
        with served(CONFIG, None, program, checkout) as server, served(CONFIG, None, program, checkout) as other:
            target, elsewhere = (target_at(address, scale) for address in (server, other))
            if attack.prepare:
                attack.prepare(target)
                attack.prepare(elsewhere)
            polite(server, seconds)  # creates its queues, and runs every path once
            server.forget_most_rss()
            before_kb = server.rss_kb()
            quiet, beside, attacked, turn_ms = list[Delays](), list[Delays](), list[Delays](), 0.0
            for _ in range(rounds):
                quiet.append(polite(server, seconds))
                beside.append(under_attack(server, attack, elsewhere, seconds))
                await_noted(other)
                longest.forget()
                attacked.append(under_attack(server, attack, target, seconds))
                await_noted(server)
                turn_ms = max(turn_ms, longest.ms())
            held_mb = (server.most_rss_kb() - before_kb) / 1024
    times = median(
        some.p99_ms / max(one.p99_ms, control.p99_ms)
        for one, control, some in zip(quiet, beside, attacked, strict=True)
    )
    return Row(attack.name, quiet, beside, attacked, round(turn_ms, 2), round(times, 2), round(held_mb, 1))


def target_at(server: Served, scale: float) -> Target:
    memcache, text, workq, thrift = server.ports
    return Target(memcache, text, workq, thrift, scale)


def await_noted(server: Served) -> None:
    """Wait for two replies: by then the turn before the second one has ended, and has been noted."""
    client = Client(server)
    for _ in range(2):
        client.sock.sendall(b"version\r\n")
        client.hear(b"\r\n")
    client.sock.close()


def interpreter(checkout: Path) -> str:
    """Return the checkout's own interpreter, if it has one, else ours."""
    own = checkout / ".venv" / "bin" / "python"
    return str(own) if own.exists() else sys.executable


def head() -> str:
    return (
        f"{'attack':<46}{'turn ms':>9}{'quiet p99':>11}{'beside':>9}{'attacked':>10}{'times':>8}{'held MB':>9}  missed"
    )


def line(row: Row) -> str:
    quiet, beside, attacked = (median(one.p99_ms for one in some) for some in (row.quiet, row.beside, row.attacked))
    figures = f"{row.turn_ms:>9.1f}{quiet:>11.2f}{beside:>9.2f}{attacked:>10.2f}{row.times:>8.2f}{row.held_mb:>9.1f}"
    return f"{row.attack:<46}{figures}  {', '.join(row.missed)}".rstrip()


def chosen(only: Sequence[str]) -> list[Attack]:
    """Return the attacks whose name contains one of these words; all without words. Raises click.UsageError."""
    found = [one for one in ATTACKS if not only or any(word in one.name for word in only)]
    if not found:
        raise click.UsageError(f"no such attack; there are: {'; '.join(one.name for one in ATTACKS)}")
    return found


@click.command()
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--quick", is_flag=True, help=f"At most {QUICK_ROUNDS} rounds of {QUICK_SECONDS} s: three minutes.")
@click.option("--only", multiple=True, metavar="WORD", help="The attacks with this in their name; may be given again.")
@click.option(
    "--server",
    "checkout",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=ROOT,
    metavar="FOLDER",
    help="The checkout whose server is attacked, run by its own .venv if it has one.  [default: this one]",
)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write the rows here.")
def main(rounds: int, quick: bool, only: tuple[str, ...], checkout: Path, json_file: Path | None) -> None:
    """Attack the server in each way that one client can, and show the cost for the others.

    Exit status: 0 no turn above 20 ms of its thread's time, no polite p99 more than twice that of a quiet server (or of
    one beside which another is attacked), no more memory than the settings allow; 1 a target was missed, or a
    measurement failed.
    """  # fmt: skip
    attacks, rows, before = chosen(only), list[Row](), machine.ticks()
    if quick:
        rounds = min(rounds, QUICK_ROUNDS)
    if OUR_CORE is not None:
        os.sched_setaffinity(0, {OUR_CORE})
    click.echo(head())
    failures = 0
    for attack in attacks:
        try:
            rows.append(measured(attack, checkout.resolve(), rounds, QUICK_SECONDS if quick else SECONDS))
        except (ServerFailed, OSError) as error:
            failures += 1
            click.echo(f"{attack.name:<46}  FAILED: {error}")
        else:
            click.echo(line(rows[-1]))
    for warning in machine.busy_warning(machine.others_cores(before, machine.ticks())):
        click.echo(f"warning: {warning}", err=True)
    if json_file:
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(rows)) + b"\n")
    sys.exit(failures > 0 or any(row.missed for row in rows))


if __name__ == "__main__":
    exit_on_signals()
    main()
