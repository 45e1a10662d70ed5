"""The examples of each command, as its `--help` shows them."""

from __future__ import annotations

from collections.abc import Iterator

import click

from staniel.server.cli.main import main


def _leaves(command: click.Command, context: click.Context, words: str = "") -> Iterator[tuple[str, click.Command]]:
    """Each command that is no group, by its words after `staniel`."""
    if not isinstance(command, click.Group):
        yield words.strip(), command
        return
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from _leaves(found, click.Context(found, context, name), f"{words} {name}")


COMMANDS = dict(_leaves(main, click.Context(main, info_name="staniel")))
EXAMPLES = {
    words: [line.strip() for line in (command.epilog or "").splitlines()[2:]] for words, command in COMMANDS.items()
}
