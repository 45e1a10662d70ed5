"""Manual pages made from the command line's help: `make man`, which is `python packaging/man_pages.py docs/man`.

There is one page for `staniel` and one for each of its commands: `staniel-journal-dump.1` for `staniel journal dump`.
The pages are committed, because a build of the wheel does not have the program's dependencies; a test compares them
with the help.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from staniel.broker.version import VERSION
from staniel.server.cli.main import groups, main

ABOUT = {
    "EXIT STATUS": [
        ("0", "done"),
        ("1", "refused, nothing to get, or no server answers: one line on standard error says why and what to do"),
        ("2", "wrong use, or `--yes` is missing"),
        ("3", "`health`, `ping`: it answers, and is not ready"),
        ("4", "`ping`: its port is open, and no answer comes"),
    ],
    "ENVIRONMENT": [
        ("STANIEL_SPOOL, STANIEL_URL, STANIEL_TOKEN_FILE", "as `--spool`, `--url` and `--token-file`, which win"),
        ("STANIEL_PURE", "1: plain Python runs where a compiled build is there"),
    ],
    "FILES": [
        ("spool/", "the journals, in the working directory unless `--spool` or the settings name another folder"),
        ("/etc/staniel/staniel.toml", "the settings, by the systemd unit and the container image"),
    ],
}


def escaped(text: str) -> str:
    """Escape text for roff: no escapes, no requests, hyphens that can be copied. Text in `` ` `` becomes bold."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = re.sub(r"`([^`\n]+)`", r"\\fB\1\\fP", text)
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of a help text as click reads it: a form feed ends it, and a paragraph that begins with a
    backspace keeps its lines.
    """
    for paragraph in inspect.cleandoc(text).partition("\f")[0].split("\n\n"):
        is_kept = paragraph.startswith("\b\n")
        body = escaped(paragraph.removeprefix("\b\n"))
        yield f".PP\n.nf\n{body}\n.fi\n" if is_kept else f".PP\n{body}\n"


def list_of(rows: list[tuple[str, str]]) -> str:
    return "".join([f".TP\n.B {escaped(name)}\n{escaped(' '.join(about.split()))}\n" for name, about in rows])


def page(name: str, command: click.Command, context: click.Context) -> str:
    """Return the roff of one command. `name` has hyphens in place of blanks."""
    short = command.get_short_help_str(200).rstrip(".").replace("`", "")
    usage = " ".join(command.collect_usage_pieces(context))
    parts = [
        '.\\" Made from the help of the commands by packaging/man_pages.py: do not edit.\n',
        f'.TH {name.upper()} 1 "" "Staniel {VERSION}" "Staniel"\n',
        f".SH NAME\n{escaped(name)} \\- {escaped(short)}\n",
        f".SH SYNOPSIS\n.B {escaped(context.command_path)}\n{escaped(usage)}\n",
        ".SH DESCRIPTION\n" + "".join(paragraphs(command.help or "")),
    ]
    records = [param.get_help_record(context) for param in command.get_params(context)]
    if options := [record for record in records if record is not None]:
        parts.append(".SH OPTIONS\n" + list_of(options))
    if command.epilog:
        examples = [line.strip() for line in command.epilog.splitlines()[2:]]
        parts.append(".SH EXAMPLES\n.nf\n" + "".join([f"{escaped(line)}\n" for line in examples]) + ".fi\n")
    if command is main:
        for title, names in groups().items():
            parts.append(f'.SH "{title.upper()}"\n' + list_of(commands_of(command, context, names)))
        parts += [f'.SH "{title}"\n' + list_of(rows) for title, rows in ABOUT.items()]
    elif isinstance(command, click.Group):
        rows = commands_of(command, context, tuple(command.list_commands(context)))
        parts.append(".SH COMMANDS\n" + list_of(rows))
    above = [context.parent.command_path.replace(" ", "-")] if context.parent is not None else []
    below = (
        [f"{name}-{subcommand}" for subcommand in command.list_commands(context)]
        if isinstance(command, click.Group)
        else []
    )
    seen = ",\n".join([f".BR {escaped(page_name)} (1)" for page_name in [*above, *below]])
    return "".join([*parts, ".SH SEE ALSO\n" + seen.replace(",\n", " ,\n") + "\n"])


def commands_of(group: click.Group, context: click.Context, names: tuple[str, ...]) -> list[tuple[str, str]]:
    found = [(name, group.get_command(context, name)) for name in names]
    return [(name, command.get_short_help_str(200)) for name, command in found if command is not None]


def pages(
    command: click.Command = main, word: str = "staniel", parent: click.Context | None = None
) -> Iterator[tuple[str, str]]:
    """Yield (file name, text) of the command, whose last word is `word`, and of its subcommands."""
    context = click.Context(command, parent, word, **command.context_settings)
    name = context.command_path.replace(" ", "-")
    yield f"{name}.1", page(name, command, context)
    if isinstance(command, click.Group):
        for subcommand in command.list_commands(context):
            found = command.get_command(context, subcommand)
            assert found is not None
            if not found.hidden:
                yield from pages(found, subcommand, context)


def write(folder: Path) -> None:
    """Write these pages to `folder`, and delete all others."""
    folder.mkdir(parents=True, exist_ok=True)
    made = dict(pages())
    for path in folder.glob("*.1"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (folder / name).write_text(text, "utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
