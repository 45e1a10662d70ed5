"""None where C code expects an object is an exception, never the end of the process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from staniel.compiled import stem_of

NUMBERS = ("long long", "Py_ssize_t", "bint", "int")
# Each call in a child process, which the interpreter's end would take along.
CALL_EACH = """
import importlib, os, sys

def blank(name):
    module, _, kind = name.rpartition(".")
    found = getattr(importlib.import_module(module), kind)
    return found.__new__(found)

for line in sys.stdin:
    module, kind, name, *arguments = line.split()
    importlib.import_module(module)
    child = os.fork()
    if not child:
        owner = importlib.import_module(module) if kind == "-" else blank(f"{module}.{kind}")
        given = {"None": lambda _: None, "1": lambda _: 1}
        try:
            getattr(owner, name)(*[given.get(each, blank)(each) for each in arguments])
        except Exception:
            pass
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print(line.strip())
print("end")
"""


def typed_functions() -> Iterator[tuple[str, str, str, list[str]]]:
    """(module, class or "", name, the types of its arguments) of all that the .pxd files declare for Python and C."""
    source = Path(stem_of("staniel.x")).parent
    for folder, _, names in os.walk(source, followlinks=True):
        for name in sorted(each for each in names if each.endswith(".pxd")):
            module = ".".join(["staniel", *Path(folder).relative_to(source).parts, name[:-4]])
            text, kind = Path(folder, name).read_text("utf-8"), ""
            homes = dict.fromkeys(re.findall(r"^cdef class (\w+)", text, re.MULTILINE), module)
            for home, imported in re.findall(r"^from (staniel[\w.]+) cimport (.+)$", text, re.MULTILINE):
                homes |= dict.fromkeys(re.findall(r"[A-Z]\w+", imported), home)
            for line in text.splitlines():
                if found := re.match(r"cdef class (\w+)", line):
                    kind = found[1]
                elif found := re.match(r"( *)cpdef (?:[\w ]+ )?(\w+)\((.*)\)", line):
                    given = [each.strip() for each in found[3].split(",")]
                    types = [each.rpartition(" ")[0] for each in given if each and each != "self"]
                    kinds = [f"{homes[each]}.{each}" if each in homes else each for each in types]
                    yield module, kind if found[1] else "", found[2], kinds


@pytest.mark.compiled
def test_none_never_ends_the_process() -> None:
    """Given for each argument, and found in the fields of objects that nothing has initialized."""
    calls: list[str] = []
    for module, kind, name, types in typed_functions():
        numbers = [each.startswith(NUMBERS) for each in types]
        nothing = ["1" if number else "None" for number in numbers]
        empty = [each if each.startswith("staniel.") else none for each, none in zip(types, nothing, strict=True)]
        calls += [" ".join([module, kind or "-", name, *arguments]) for arguments in (nothing, empty)]
    assert len(calls) > 100
    told = subprocess.run(
        [sys.executable, "-c", CALL_EACH], input="\n".join(calls), capture_output=True, text=True, timeout=120
    )
    assert told.returncode == 0, told.stderr
    assert told.stdout.splitlines() == ["end"]
