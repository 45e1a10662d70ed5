"""`python -m staniel.server` and the `staniel` command."""

from __future__ import annotations

import os
import sys

from staniel.broker.version import VERSION_LINE


def main() -> None:
    """Run the command line. Signals are held before its code is loaded, which takes a tenth of a second; the version
    alone is told without it.
    """
    if sys.argv[1:] in (["--version"], ["-V"]):
        return say_version()
    if sys.argv[1:2] == ["serve"]:
        from staniel.server import signals  # the others need no handlers

        signals.hold()
    try:
        from staniel.server.cli.main import main as commands

        commands(prog_name="staniel")
    except KeyboardInterrupt:  # while it was loaded; later ones are click's
        sys.exit(1)


def say_version() -> None:
    """As click's option does, whose text this is."""
    try:
        print(VERSION_LINE, flush=True)
    except BrokenPipeError:
        os._exit(1)  # the interpreter would try again at its end, and tell of the failure


if __name__ == "__main__":
    main()
