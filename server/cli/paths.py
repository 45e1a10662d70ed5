"""The paths that commands take as arguments."""

from __future__ import annotations

import os
from typing import Any

import click


class ExistingPath(click.Path):
    """A path of something that exists. Where the system refuses to tell, the error says so: click.Path says then that
    the path does not exist.
    """

    def __init__(self, *, file_okay: bool = True) -> None:
        super().__init__(exists=True, file_okay=file_okay)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path. Raises click.BadParameter."""
        try:
            os.stat(value)
        except (FileNotFoundError, NotADirectoryError):
            pass  # told by click
        except OSError as error:
            self.fail(f"cannot look at {value}: {error.strerror}", param, ctx)
        return super().convert(value, param, ctx)
