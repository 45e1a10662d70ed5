"""The parameters that several commands share, and the error with exit code 2."""

from __future__ import annotations

import os
import stat
from typing import Any

import click

DAY_S = 86_400
YES = click.option("--yes", "-y", "is_sure", is_flag=True, help="Do not ask.")


class CommandFailed(click.ClickException):
    """An error that kept a command from doing its work: exit code 2. Exit code 1 reports a finding."""

    exit_code = 2


def check_seconds(ctx: click.Context, param: click.Parameter, value: float) -> float:
    """Check a time-out. Raises BadParameter, also for "nan", which click's ranges accept."""
    if not 0 < value <= DAY_S:
        raise click.BadParameter(f"{value} is not a number of seconds from 0 to {DAY_S}")
    return value


class DurationParam(click.ParamType[int]):
    """A parameter type: a duration such as 30s, in ms."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from staniel.broker.config.values import parse_duration  # not to be loaded for every command

        try:
            return parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class ExistingPath(click.Path):
    """A path of something that exists. If the system refuses to tell, the error says so; click.Path would say that the
    path does not exist.
    """

    def __init__(self, *, file_okay: bool = True) -> None:
        super().__init__(exists=False, file_okay=file_okay)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path. Raises click.BadParameter."""
        try:
            mode = os.stat(value).st_mode
        except (FileNotFoundError, NotADirectoryError):
            self.fail(f"{self.name.title()} {value!r} does not exist.", param, ctx)
        except OSError as error:
            from staniel.journal.disk.refusals import refused_tool  # not to be loaded for every command

            self.fail(refused_tool(error), param, ctx)
        if not self.file_okay and not stat.S_ISDIR(mode):
            self.fail(f"{self.name.title()} {value!r} is a file.", param, ctx)
        return value
