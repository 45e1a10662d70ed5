"""The version of this server. pyproject.toml reads it from here."""

from staniel.compiled import BUILD

VERSION = "0.1.0"
VERSION_LINE = f"staniel {VERSION} ({BUILD})"  # printed by the command line

# libmemcached rejects a server whose version starts with 0; the part after the first number is free.
WIRE_VERSION = f"1.6.0-staniel-{VERSION}"
