"""`python -m staniel.server` and the `staniel` command."""

from __future__ import annotations

import sys

from staniel.server import signals


def main() -> None:
    """Run the command line. Signals are held before its code is loaded, which takes a few tenths of a second."""
    if sys.argv[1:2] == ["serve"]:
        signals.hold()
    from staniel.server.cli.main import main as commands

    commands(prog_name="staniel")


if __name__ == "__main__":
    main()
