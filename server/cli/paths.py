"""The paths that commands take as arguments."""

from __future__ import annotations

import os
import stat
from typing import Any

import click


class ExistingPath(click.Path):
    """A path of something that exists. Where the system refuses to tell, the error says so: click.Path says then that
    the path does not exist.
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
