"""The version this server says it is. pyproject.toml reads it from here."""

from staniel.compiled import BUILD

VERSION = "0.1.0"
VERSION_LINE = f"staniel {VERSION} ({BUILD})"  # of the command line

# libmemcached takes a server whose version starts with 0 for a broken one; what follows the first part is free.
WIRE_VERSION = f"1.6.0-staniel-{VERSION}"
