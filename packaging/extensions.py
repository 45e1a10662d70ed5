"""Compiles the modules that have a .pxd beside them, with Cython and cc: `python packaging/extensions.py DIR`.

DIR is replaced as a whole. It gets one extension for each module, and the manifest with which src/staniel/compiled.py
finds them and compares them with their sources. The C files are made in a temporary folder, so the checkout stays
clean.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import re
import shutil
import sys
import sysconfig
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "staniel"
PACKAGES = ("broker", "journal", "protocol", "queues", "server")  # where a module may have a .pxd
KEYS = "keys.txt"  # hashes of the inputs: an extension whose inputs are unchanged is not compiled again
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


def modules() -> list[str]:
    """Return the full names of the modules that are compiled."""
    paths = [path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.pxd")]
    return sorted([".".join(["staniel", *path.with_suffix("").parts]) for path in paths])


def stem_of(module: str) -> Path:
    """Return the path of a module's source, without its suffix. It avoids the links of src/staniel, which a source
    distribution and the build of an image do not have.
    """
    return ROOT.joinpath(*module.split(".")[1:])


def link_packages(folder: Path) -> None:
    """Make the tree in which Cython looks for `staniel.queues.item`."""
    folder.mkdir(parents=True)
    for name in PACKAGES:
        (folder / name).symlink_to(ROOT / name)
    (folder / "__init__.py").symlink_to(SOURCE / "__init__.py")


def source_of(module: str) -> Path:
    """Return the .pyx if there is one, else the .py."""
    stem = stem_of(module)
    return next(path for path in (stem.with_suffix(".pyx"), stem.with_suffix(".py")) if path.exists())


def translate(module: str, build: str) -> str:
    """Translate one module to C. Return the path of the C file."""
    from Cython.Compiler import Options
    from Cython.Compiler.Main import CompilationOptions, compile_single

    target = str(Path(build) / f"{module}.c")
    options = CompilationOptions(
        Options.default_options,
        compiler_directives=Options.get_directive_defaults() | DIRECTIVES,
        include_path=[str(Path(build) / "tree")],
        output_file=target,
    )
    result = compile_single(str(source_of(module)), options, full_module_name=module)
    if result.num_errors:
        raise SystemExit(f"{module}: Cython found {result.num_errors} errors")
    return target


def build_one(module: str, build: str, folder: str, sanitize: bool) -> None:
    """Compile one module to an extension in `folder`."""
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    flags = SANITIZE if sanitize else FLAGS
    extension = Extension(
        module.rpartition(".")[2],
        [translate(module, build)],
        extra_compile_args=flags,
        extra_link_args=[flag for flag in flags if flag.startswith("-fsanitize")] or ["-s"],
    )
    command = build_ext(Distribution({"ext_modules": [extension]}))
    command.build_lib = command.build_temp = os.path.join(build, module)
    command.ensure_finalized()
    command.run()
    made = command.get_ext_fullpath(extension.name)
    shutil.copy(made, os.path.join(folder, module + suffix()))


def texts_of(module: str, seen: set[str]) -> list[str]:
    """Return the sources a module's extension depends on: its own and the .pxd of all it cimports, recursively."""
    stem = stem_of(module)
    texts = [path.read_text("utf-8") for path in (stem.with_suffix(".pxd"), source_of(module)) if path.exists()]
    for other in re.findall(r"^from (staniel[\w.]+) cimport", "\n".join(texts), re.MULTILINE):
        if other not in seen:
            seen.add(other)
            texts += texts_of(other, seen)
    return texts


def keys_of(names: list[str], sanitize: bool) -> dict[str, str]:
    """Return a hash for each extension of all it depends on: sources, compiler, interpreter, options."""
    import Cython

    options = [Cython.__version__, sys.version, str(DIRECTIVES), str(SANITIZE if sanitize else FLAGS)]
    return {name: hashlib.sha256("\0".join([*texts_of(name, {name}), *options]).encode()).hexdigest() for name in names}


def known_keys(target: Path) -> dict[str, str]:
    """Return the keys of the extensions that already exist."""
    try:
        return dict(line.split() for line in (target / KEYS).read_text("ascii").splitlines())
    except (OSError, ValueError):
        return {}


def suffix() -> str:
    return str(sysconfig.get_config_var("EXT_SUFFIX"))


def missing_tool() -> str:
    """Return what this machine lacks to compile; empty if nothing is missing."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"the C compiler {compiler!r}"
    header = Path(sysconfig.get_path("include"), "Python.h")
    return "" if header.exists() else f"{header}, which comes with the interpreter's development package"


def manifest(names: list[str], folder: Path) -> str:
    """Return the finder's manifest: the names, a hash of the sources and the size of each extension."""
    spec = importlib.util.spec_from_file_location("compiled_finder", SOURCE / "compiled.py")
    assert spec is not None
    assert spec.loader is not None
    finder = importlib.util.module_from_spec(spec)
    os.environ["STANIEL_PURE"] = "1"
    spec.loader.exec_module(finder)
    lines = [suffix()]
    for name in names:
        known = finder.hash_of(str(stem_of(name)))
        lines.append(f"{name} {known} {(folder / (name + suffix())).stat().st_size}")
    return "\n".join([*lines, "end"])


def compile_all(
    target: Path, names: list[str] | None = None, *, sanitize: bool = False, processes: int | None = None
) -> list[str]:
    """Fill `target` with the extensions of all modules, or of `names`, and their manifest. Return the modules.
    `processes` None: one for each core.
    """
    if lacking := missing_tool():
        raise SystemExit(f"cannot compile without {lacking}. It is optional: plain Python runs what is not compiled")
    names = modules() if names is None else names
    assert names, "no module has a .pxd"
    keys, known = keys_of(names, sanitize), known_keys(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as build, tempfile.TemporaryDirectory(dir=target.parent) as fresh:
        link_packages(Path(build) / "tree" / "staniel")
        with ProcessPoolExecutor(processes or os.cpu_count()) as pool:
            building = []
            for name in names:
                made = target / (name + suffix())
                if known.get(name) == keys[name] and made.exists():
                    shutil.copy(made, fresh)
                else:
                    building.append(pool.submit(build_one, name, build, fresh, sanitize))
            try:
                for done in building:
                    done.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)  # one that fails is enough to know
                raise
        Path(fresh, "manifest.txt").write_text(manifest(names, Path(fresh)), "ascii")
        Path(fresh, KEYS).write_text("".join([f"{name} {key}\n" for name, key in keys.items()]), "ascii")
        os.chmod(fresh, 0o755)
        shutil.rmtree(target, ignore_errors=True)
        shutil.move(fresh, target)  # as a whole: a server that starts meanwhile finds no part of it
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="where the extensions go; what is there is replaced")
    parser.add_argument("--sanitize", action="store_true", help="with AddressSanitizer and UBSan, for the fuzzers")
    chosen = parser.parse_args()
    names = compile_all(chosen.folder, sanitize=chosen.sanitize)
    size = sum(path.stat().st_size for path in chosen.folder.iterdir())
    print(f"{len(names)} modules, {size / 1e6:.1f} MB in {chosen.folder}")


if __name__ == "__main__":
    sys.exit(main())
