"""Compiles the modules that have a .pxd beside them, with Cython and cc: `python packaging/extensions.py DIR`.

DIR is replaced as a whole, after a server of the new extensions has kept an item. It gets one extension for each
module, and the manifest with which src/staniel/compiled.py finds them and compares them with their sources. The C files
are made in a temporary folder, so the checkout stays clean.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ProcessPoolExecutor
from contextlib import chdir
from pathlib import Path
from typing import Any

from compiled_set import locked, replacement, sync

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "staniel"
PACKAGES = ("broker", "journal", "protocol", "queues", "server")  # where a module may have a .pxd
SUFFIXES = (".py", ".pxd", ".pyx")
KEYS = "keys.txt"  # hashes of inputs and of extensions: what is as it was is not compiled again
DIRECTIVES: dict[str, Any] = {
    "language_level": 3,
    # A negative or too large index into a peer's bytes raises IndexError, as in Python.
    "boundscheck": True,
    "wraparound": True,
    # A number beyond 64 bits raises OverflowError; division rounds as in Python.
    "cdivision": False,
    "overflowcheck": True,
    # A field of None raises AttributeError; unchecked, it would end the process. Costs 0.7 % of a put.
    "nonecheck": True,
    # Types come from the .pxd files alone: annotations are for mypy.
    "annotation_typing": False,
    "always_allow_keywords": True,
    "binding": False,
}
FLAGS = ["-O2", "-g0", "-fno-semantic-interposition", "-Wno-unused-function", "-Wno-unreachable-code"]
SANITIZE = ["-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]


def modules(tree: Path) -> list[str]:
    """Return the full names of the modules that are compiled."""
    paths = [path.relative_to(tree) for package in PACKAGES for path in (tree / package).rglob("*.pxd")]
    return sorted([".".join(["staniel", *path.with_suffix("").parts]) for path in paths])


def stem_of(tree: Path, module: str) -> Path:
    """Return the path of a module's source, without its suffix."""
    return tree.joinpath(*module.split(".")[1:])


def copy_sources(tree: Path) -> None:
    """Make the tree in which Cython looks for `staniel.queues.item`. It works for minutes, and the checkout may change
    meanwhile: what is compiled, its key and its hash in the manifest are those of this copy.
    """
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tree / name, ignore=no_sources)
    shutil.copy(SOURCE / "__init__.py", tree)


def no_sources(folder: str, names: list[str]) -> list[str]:
    """Return which of the files and folders in `folder` are not copied."""
    return [name for name in names if name == "__pycache__" or Path(name).suffix not in ("", *SUFFIXES)]


def source_of(tree: Path, module: str) -> Path:
    """Return the .pyx if there is one, else the .py."""
    stem = stem_of(tree, module)
    return next(path for path in (stem.with_suffix(".pyx"), stem.with_suffix(".py")) if path.exists())


def translate(module: str, tree: Path) -> str:
    """Translate one module to C. Return the path of the C file, which names its source as seen from the tree."""
    from Cython.Compiler import Options
    from Cython.Compiler.Main import CompilationOptions, compile_single

    target = str(tree.parent / f"{module}.c")
    options = CompilationOptions(
        Options.default_options,
        compiler_directives=Options.get_directive_defaults() | DIRECTIVES,
        include_path=[str(tree.parent)],
        output_file=target,
    )
    with chdir(tree):
        result = compile_single(str(source_of(tree, module)), options, full_module_name=module)
    if result.num_errors:
        raise SystemExit(f"{module}: Cython found {result.num_errors} errors")
    return target


def build_one(module: str, tree: Path, folder: Path, sanitize: bool) -> None:
    """Compile one module to an extension in `folder`."""
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    flags = SANITIZE if sanitize else FLAGS
    extension = Extension(
        module.rpartition(".")[2],
        [translate(module, tree)],
        extra_compile_args=flags,
        extra_link_args=[flag for flag in flags if flag.startswith("-fsanitize")] or ["-s"],
    )
    command = build_ext(Distribution({"ext_modules": [extension]}))
    command.build_lib = command.build_temp = str(tree.parent / module)
    command.ensure_finalized()
    command.run()
    made = command.get_ext_fullpath(extension.name)
    shutil.copy(made, folder / (module + suffix()))


def texts_of(tree: Path, module: str, seen: set[str]) -> list[str]:
    """Return the sources a module's extension depends on: its own and the .pxd of all it cimports, recursively."""
    stem = stem_of(tree, module)
    paths = (stem.with_suffix(".pxd"), source_of(tree, module))
    texts = [path.read_text("utf-8") for path in paths if path.exists()]
    for other in re.findall(r"^from (staniel[\w.]+) cimport", "\n".join(texts), re.MULTILINE):
        if other not in seen:
            seen.add(other)
            texts += texts_of(tree, other, seen)
    return texts


def keys_of(tree: Path, names: list[str], sanitize: bool) -> dict[str, str]:
    """Return a hash for each extension of all it depends on: sources, compiler, interpreter, options."""
    import Cython

    options = [Cython.__version__, sys.version, str(DIRECTIVES), str(SANITIZE if sanitize else FLAGS)]
    texts = {name: texts_of(tree, name, {name}) for name in names}
    return {name: hashlib.sha256("\0".join([*texts[name], *options]).encode()).hexdigest() for name in names}


def digest_of(extension: Path) -> str:
    """Return a hash of an extension; empty if it cannot be read."""
    try:
        return hashlib.sha256(extension.read_bytes()).hexdigest()
    except OSError:
        return ""


def reusable(target: Path, keys: dict[str, str]) -> set[str]:
    """Return the modules whose extensions in `target` are made of the same inputs, and are as they were made."""
    try:
        known = [line.split() for line in (target / KEYS).read_text("ascii").splitlines()]
        return {
            name
            for name, key, digest in known
            if keys.get(name) == key and digest_of(target / (name + suffix())) == digest
        }
    except (OSError, ValueError):
        return set()


def suffix() -> str:
    return str(sysconfig.get_config_var("EXT_SUFFIX"))


def compiler() -> str:
    return str(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]


def missing_tool() -> str:
    """Return what this machine lacks to compile; empty if nothing is missing."""
    if shutil.which(compiler()) is None:
        return f"the C compiler {compiler()!r}"
    header = Path(sysconfig.get_path("include"), "Python.h")
    return "" if header.exists() else f"{header}, which comes with the interpreter's development package"


def manifest(tree: Path, names: list[str], folder: Path) -> str:
    """Return the finder's manifest: the names, a hash of the sources and the size of each extension."""
    spec = importlib.util.spec_from_file_location("compiled_finder", SOURCE / "compiled.py")
    assert spec is not None
    assert spec.loader is not None
    finder = importlib.util.module_from_spec(spec)
    os.environ["STANIEL_PURE"] = "1"
    spec.loader.exec_module(finder)
    lines = [suffix()]
    for name in names:
        known = finder.hash_of(str(stem_of(tree, name)))
        lines.append(f"{name} {known} {(folder / (name + suffix())).stat().st_size}")
    return "\n".join([*lines, "end"])


def build_all(names: list[str], tree: Path, folder: Path, *, sanitize: bool, processes: int) -> None:
    """Compile modules to extensions in `folder`. One process is this one: nothing outlives it but a run of cc."""
    if processes == 1:
        for name in names:
            build_one(name, tree, folder, sanitize)
        return
    with ProcessPoolExecutor(processes) as pool:
        building = [pool.submit(build_one, name, tree, folder, sanitize) for name in names]
        try:
            for done in building:
                done.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)  # one that fails is enough to know
            raise


def try_out(folder: Path) -> None:
    """Have a server of the extensions in `folder` keep an item, in a process of its own. Exit if it does not."""
    environment = {**os.environ, "STANIEL_COMPILED": str(folder), "STANIEL_PURE": "0"}
    command = [sys.executable, str(ROOT / "packaging" / "check_wheel.py")]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    if ran.returncode:
        print(ran.stdout + ran.stderr, file=sys.stderr)
        why = (ran.stderr.splitlines() or [f"exit status {ran.returncode}"])[-1]
        raise SystemExit(f"the compiled modules do not work: {why}")


def compile_all(
    target: Path,
    names: list[str] | None = None,
    *,
    sanitize: bool = False,
    processes: int | None = None,
    is_tried: bool = False,
) -> list[str]:
    """Fill `target` with the extensions of all modules, or of `names`, and their manifest. Return the modules.
    `processes` None: one for each core. `is_tried`: they must first serve, which needs an installed Staniel.
    """
    if lacking := missing_tool():
        raise SystemExit(f"cannot compile without {lacking}. It is optional: plain Python runs what is not compiled")
    target = target.absolute()
    with replacement(target) as fresh, tempfile.TemporaryDirectory(prefix=fresh.name, dir=target.parent) as build:
        tree = Path(build).resolve() / "staniel"
        copy_sources(tree)
        names = modules(tree) if names is None else names
        assert names, "no module has a .pxd"
        keys = keys_of(tree, names, sanitize)
        reused = reusable(target, keys)
        for name in reused:
            shutil.copy(target / (name + suffix()), fresh)
        missing = [name for name in names if name not in reused]
        build_all(missing, tree, fresh, sanitize=sanitize, processes=processes or os.cpu_count() or 1)
        (fresh / "manifest.txt").write_text(manifest(tree, names, fresh), "ascii")
        lines = [f"{name} {key} {digest_of(fresh / (name + suffix()))}\n" for name, key in keys.items()]
        (fresh / KEYS).write_text("".join(lines), "ascii")
        if is_tried:
            try_out(fresh)
        sync(fresh)
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="where the extensions go; what is there is replaced")
    parser.add_argument("--sanitize", action="store_true", help="with AddressSanitizer and UBSan, for the fuzzers")
    chosen = parser.parse_args()
    if locked(chosen.folder) is None:
        print(f"another process compiles into {chosen.folder}; it is waited for", flush=True)
        locked(chosen.folder, is_waited_for=True)
    names = compile_all(chosen.folder, sanitize=chosen.sanitize, is_tried=not chosen.sanitize)
    size = sum(path.stat().st_size for path in chosen.folder.iterdir())
    print(f"{len(names)} modules, {size / 1e6:.1f} MB in {chosen.folder}")


if __name__ == "__main__":
    sys.exit(main())
