"""The finder of compiled modules: the same sources, translated by Cython, if this installation has them.

They lie in a folder of their own: beside this file in a platform wheel, in the environment (`lib/staniel-compiled`)
after `make compiled`. `manifest.txt` names each module with a hash of its sources. Either all of them are used or none:
an incomplete set, or one made for another interpreter or from other sources than the installed ones, is refused in one
line, and the plain Python modules run. STANIEL_PURE=1 selects those; STANIEL_COMPILED names another folder.
"""

from __future__ import annotations

import os
import sys
from _imp import create_dynamic, source_hash  # of importlib.util, whose import takes longer than all that is done here
from _io import FileIO  # a fifth of open()'s instructions
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec

MANIFEST = "manifest.txt"
HASH_KEY = 0x5374616E69656C
SOURCES = (".py", ".pxd", ".pyx")
PACKAGE = os.path.dirname(os.path.abspath(__file__))
NOTE = os.path.join(PACKAGE, "not_compiled.txt")  # packaging/build_hook.py writes it into a wheel
FOLDERS = (os.path.join(PACKAGE, "_compiled"), os.path.join(sys.prefix, "lib", "staniel-compiled"))


class BuildRefused(Exception):
    """The reason why the compiled modules cannot be used."""


def hash_of(stem: str) -> str:
    """Return a hash of a module's sources: STEM.py, and its .pxd and .pyx if they exist."""
    found = b""
    for suffix in SOURCES:
        try:
            with FileIO(stem + suffix) as file:
                found += file.readall() + suffix.encode()
        except FileNotFoundError:
            continue
    return source_hash(HASH_KEY, found).hex()


def stem_of(module: str) -> str:
    """Return the path of a module's source, without its suffix."""
    return PACKAGE + module.removeprefix("staniel").replace(".", os.sep)


def read_manifest(folder: str) -> dict[str, str]:
    """Return the paths of the extensions by module name. Raises BuildRefused."""
    try:
        with open(os.path.join(folder, MANIFEST), encoding="utf-8") as file:
            suffix, *lines = file.read().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BuildRefused(f"the list of them cannot be read: {error}") from error
    if suffix != EXTENSION_SUFFIXES[0]:
        raise BuildRefused(f"they are for another interpreter ({suffix[:80]!r}, not {EXTENSION_SUFFIXES[0]!r})")
    if not lines or lines.pop() != "end":
        raise BuildRefused("the list of them is cut off")
    found: dict[str, str] = {}
    for line in lines:
        module, _, made = line.partition(" ")
        known, _, whole_bytes = made.partition(" ")
        path = f"{folder}{os.sep}{module}{suffix}"
        try:
            size, source = os.stat(path).st_size, hash_of(stem_of(module))
        except FileNotFoundError as error:
            raise BuildRefused(f"{module} is missing") from error
        except OSError as error:
            raise BuildRefused(f"{module} cannot be read: {error}") from error
        if known != source:
            raise BuildRefused(f"the source of {module} has changed since")
        if whole_bytes != str(size):
            raise BuildRefused(f"{module} is not whole")
        found[module] = path
    return found


def try_one(files: dict[str, str]) -> None:
    """Load the first extension without running it. A missing C library, or a disk that forbids execution, affects all
    of them. Raises BuildRefused.
    """
    for module, file in files.items():
        try:
            create_dynamic(ModuleSpec(module, None, origin=file))
        except ImportError as error:
            raise BuildRefused(f"they cannot be loaded: {error}") from error
        return


class CompiledFinder:
    """An import hook that finds a module's extension before its source is found."""

    def __init__(self, files: dict[str, str]) -> None:
        self._files = files

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        file = self._files.get(name)
        if file is None:
            return None
        spec = ModuleSpec(name, ExtensionFileLoader(name, file), origin=file)
        spec.has_location = True
        return spec


def install() -> bool:
    """Install the import hook if usable compiled modules exist. Return True if it is installed."""
    if os.environ.get("STANIEL_PURE", "0") not in ("", "0"):
        return False
    folder = os.environ.get("STANIEL_COMPILED") or next((folder for folder in FOLDERS if os.path.isdir(folder)), "")
    if not folder:
        return False
    try:
        files = read_manifest(folder)
        try_one(files)
    except BuildRefused as refused:
        how = "install the wheel again" if folder == FOLDERS[0] else "run `make compiled` again"
        print(
            f"staniel: the compiled modules in {folder} are not used: {refused}. To have them: {how}; "
            "to do without and not be told: STANIEL_PURE=1",
            file=sys.stderr,
        )
        return False
    sys.meta_path.insert(0, CompiledFinder(files))
    return True


def why_not_compiled() -> str:
    """Return why the build of the installed wheel compiled nothing; empty if it did, or if plain Python was wanted."""
    if IS_COMPILED or os.environ.get("STANIEL_PURE", "0") not in ("", "0"):
        return ""
    try:
        with open(NOTE, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


IS_COMPILED = install()
BUILD = "compiled" if IS_COMPILED else "pure Python"
