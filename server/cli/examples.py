"""Examples of each command, one or two, which `--help` and the manual pages show. A test runs each of them."""

from __future__ import annotations

import click

EXAMPLES: dict[str, tuple[str, ...]] = {
    "serve": ("staniel serve --config /etc/staniel/staniel.toml", "staniel serve --port 22200 --spool /tmp/try"),
    "ping": ("staniel ping", "staniel ping --port 22200 --alive"),
    "health": ("staniel health", "staniel health --json --spool /var/lib/staniel"),
    "status": ("staniel status", "staniel status readonly"),
    "clients": ("staniel clients --spool /var/lib/staniel",),
    "audit": ("staniel audit -n 50",),
    "operations": ("staniel operations",),
    "reload": ("staniel reload --spool /var/lib/staniel",),
    "stop": ("staniel stop", "staniel stop --yes --config /etc/staniel/staniel.toml"),
    "top": ("staniel top --sort age", "staniel top --once --filter mail"),
    "queues": ("staniel queues", "staniel queues --prefix mail --json"),
    "peek": ("staniel peek jobs -n 5", "staniel peek jobs --offset 100 --format hex"),
    "find": ("staniel find jobs --where 'text~timeout'", "staniel find 'mail*' --where 'age>1h' --where 'tries>=3'"),
    "open": ("staniel open jobs",),
    "put": ("staniel put jobs 'resize 17.png' --expires 2h", "staniel put jobs - < order.json"),
    "get": ("staniel get jobs > item", "staniel get jobs -n 10"),
    "pause": ("staniel pause jobs --gets", "staniel pause 'mail*'"),
    "resume": ("staniel resume jobs", "staniel resume 'mail*'"),
    "abort": ("staniel abort jobs --all",),
    "move": ("staniel move jobs aside -n 100", "staniel move 'mail*' aside --where 'age>1d'"),
    "redrive": ("staniel redrive jobs-dead", "staniel redrive jobs-dead --to jobs --where 'text~timeout'"),
    "purge": ("staniel purge jobs", "staniel purge jobs --where 'age>7d' --yes"),
    "undo": ("staniel undo",),
    "delete": ("staniel delete aside",),
    "work": (
        "staniel work tasks:send --queue mail -c 8",
        "staniel work tasks:send -q mail --mode processes",
    ),
    "selftest": ("staniel selftest /var/lib", "staniel selftest /var/lib --seconds 3600 --json"),
    "backup list": ("staniel backup list /mnt/backups",),
    "backup prune": ("staniel backup prune /mnt/backups --keep 7",),
    "backup take": ("staniel backup /mnt/backups --spool /var/lib/staniel",),
    "backup verify": ("staniel backup verify /mnt/backups",),
    "restore": ("staniel restore /mnt/backups /var/lib/restored",),
    "adopt": (
        "staniel adopt --dry-run /var/spool/kestrel /var/lib/staniel",
        "staniel adopt /var/spool/kestrel /var/lib/staniel",
    ),
    "config check": ("staniel config check /etc/staniel/staniel.toml",),
    "config diff": ("staniel config diff /etc/staniel/staniel.toml",),
    "config import-kestrel": ("staniel config import-kestrel production.scala > staniel.toml",),
    "config show": ("staniel config show /etc/staniel/staniel.toml", "staniel config show"),
    "user hash": ("staniel user hash < password",),
    "journal at": ("staniel journal at 2h jobs --spool /var/lib/staniel",),
    "journal convert": ("staniel journal convert /var/lib/staniel --to libkestrel --queue jobs",),
    "journal damaged": ("staniel journal damaged /var/lib/staniel",),
    "journal dump": ("staniel journal dump /var/lib/staniel --queue jobs --payload text",),
    "journal history": ("staniel journal history jobs jobs:0 --spool /var/lib/staniel",),
    "journal repair": ("staniel journal repair /var/lib/staniel --to /var/lib/repaired",),
    "journal stats": ("staniel journal stats /var/lib/staniel",),
    "journal verify": ("staniel journal verify /var/lib/staniel",),
    "pipeline archive": ("staniel pipeline archive /var/lib/staniel /srv/archive --queue jobs",),
    "pipeline convert": ("staniel pipeline convert /var/lib/staniel --to libkestrel",),
    "pipeline drain": ("staniel pipeline drain /srv/drained --server 127.0.0.1:22133 --queue jobs",),
    "pipeline pack": ("staniel pipeline pack /var/lib/staniel --queue jobs",),
    "pipeline replay": ("staniel pipeline replay /srv/archive --server 127.0.0.1:22133 --queue jobs --to again",),
    "pipeline report": ("staniel pipeline report /var/lib/staniel /srv/report",),
    "pipeline verify": ("staniel pipeline verify /var/lib/staniel",),
}
"""The examples of each command, by its words after `staniel`."""


def with_examples(command: click.Command, words: str) -> click.Command:
    """Give `command`, or the commands of a group, the examples of EXAMPLES as the end of their help. Return it."""
    if examples := EXAMPLES.get(words):
        command.epilog = "\b\nExamples:\n" + "\n".join([f"  {example}" for example in examples])
    if isinstance(command, click.Group):
        for name, subcommand in command.commands.items():
            with_examples(subcommand, f"{words} {name}")
    return command
