"""The command `staniel user hash`: it makes a password_hash of [users.NAME]."""

from __future__ import annotations

import os
import sys

import click

from staniel.broker.passwords import PASSWORD_BYTES_MAX, SALT_BYTES, hash_password


@click.group()
def user() -> None:
    """Prepare users of a configuration."""


@user.command(name="hash", epilog="staniel user hash < password")
def hash_() -> None:
    """Read a password and print its hash, for [users.NAME] password_hash or the first line of password_file.

    On a terminal it asks twice, without echo; else it reads the first line of standard input. The password has 1 to 512
    bytes without blanks, because a client sends USER PASSWORD in one line.
    """
    if sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True).encode()
    else:
        password = sys.stdin.buffer.readline(2 * PASSWORD_BYTES_MAX).rstrip(b"\r\n")
    if not password or len(password) > PASSWORD_BYTES_MAX // 2 or password.split() != [password]:
        raise click.ClickException(f"expected 1 to {PASSWORD_BYTES_MAX // 2} bytes without blanks")
    click.echo(hash_password(password, os.urandom(SALT_BYTES)))
