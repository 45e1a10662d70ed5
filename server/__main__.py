"""`python -m staniel.server` and the `staniel` command."""

from __future__ import annotations

import codecs
import os
import sys

from staniel.broker.version import VERSION_LINE
from staniel.compiled import why_not_compiled

STARTED_AGAIN = "STANIEL_UTF8_PROCESS"  # the number of a process that has been started again for UTF-8


def main() -> None:
    """Run the command line. Signals are held before its code is loaded, which takes a tenth of a second; `--version`
    alone is handled without it.
    """
    fill_standard_descriptors()
    use_utf8()
    if sys.argv[1:] in (["--version"], ["-V"]):
        return say_version()
    if sys.argv[1:2] == ["serve"]:
        from staniel.server import signals  # the others need no handlers

        signals.hold_signals()
    try:
        from staniel.server.cli.main import main as commands

        commands(prog_name="staniel")
    except KeyboardInterrupt:  # while it was loaded; later ones are click's
        sys.exit(1)


def fill_standard_descriptors() -> None:
    """Open /dev/null for a closed standard input, output or error. Otherwise a socket or a journal would get that
    number, and libraries would write their errors into it.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            try:
                os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            except OSError:
                return


def use_utf8() -> None:
    """Restart this process in Python's UTF-8 mode if the locale has another encoding: names of queues are UTF-8 on the
    disk, in configuration files and on the command line, and the environment must not change which files those are.
    """
    encoding = codecs.lookup(sys.getfilesystemencoding()).name
    if sys.flags.utf8_mode or encoding == "utf-8" or os.environ.get(STARTED_AGAIN) == str(os.getpid()):
        return
    os.environ["PYTHONUTF8"] = "1"  # for what this process starts
    os.environ[STARTED_AGAIN] = str(os.getpid())
    try:
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
    except OSError:
        pass  # journal/disk/os_fs.py does without


def say_version() -> None:
    """Print the version in the form of click's option, and on standard error why the installation is not compiled."""
    try:
        print(VERSION_LINE, flush=True)
        if why := why_not_compiled():
            print(f"staniel: not compiled when it was installed: {why}", file=sys.stderr)
    except BrokenPipeError:
        os._exit(1)  # the interpreter would try again at its end, and tell of the failure


if __name__ == "__main__":
    main()
