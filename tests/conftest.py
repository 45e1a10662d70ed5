"""What every test shares: foreign programs that may be missing, and the lines that close a run.

A test marked `programs("memcping", "python:pylibmc", "perl:CGI")` is left out where one of them is missing, and one
line at the end of the run says so. With STANIEL_REQUIRE_PROGRAMS=1, as in CI, such a test fails instead.

Tests marked `compiled` need the compiled build (`make compiled`), tests marked `pure` patch classes and need plain
Python; a run says how many it has left out. STANIEL_BUILD, `compiled` or `pure Python`, has a run fail that loads the
other.

A run ends at once if the program that it would load is that of another checkout, as with the environment of another
worktree.

Property tests try the same examples in every run, so that a red run is the change's fault; with STANIEL_SEEK=1 they try
others.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from staniel.compiled import BUILD, IS_COMPILED

TESTS = Path(__file__).parent
NODE_MODULES = Path(__file__).parents[1] / ".foreign" / "node" / "node_modules"

KERNEL_GIVES = {
    "networks": "ip link add one type bridge && ip link add two type veth peer name three && iptables -A INPUT -j DROP",
}
LIBRARIES: dict[str, Callable[[str], list[str]]] = {
    "perl": lambda name: ["perl", f"-M{name}", "-e", "1"],
    "php": lambda name: ["php", "-r", f"exit(extension_loaded('{name}') ? 0 : 1);"],
    "node": lambda name: ["node", "-e", f"require('{NODE_MODULES / name}')"],
    "ruby": lambda name: ["ruby", "-e", f"require '{name}'"],
    "commit": lambda name: ["git", "-C", str(TESTS.parent), "cat-file", "-e", f"{name}^{{commit}}"],
    "user": lambda name: ["sh", "-c", f'test "$(id -un)" = {name}'],
    "kernel": lambda name: ["unshare", "--net", "sh", "-c", KERNEL_GIVES[name]],
}
"""Commands that succeed where a library of another language is there, where git has this commit, where this is the
user, or where the kernel can do this. A source distribution has no commits, and a shallow clone few.
"""

REQUIRED = os.environ.get("STANIEL_REQUIRE_PROGRAMS") == "1"
# No deadline: a busy machine would fail a test that is right.
settings.register_profile("repeat", derandomize=True, database=None, deadline=None)
settings.register_profile("seek", print_blob=True, deadline=None)
WITH_SPARK = tuple(
    f"pipeline/test_{name}.py"
    for name in (
        *(
            "queries",
            "archive_state",
            "walk_through",
            "jobs",
            "live_source",
            "live_jobs",
            "analytics",
            "journal_source",
            "names",
            "holds",
            "cli",
            "access",
        ),
        *("spools", "spool_streams", "stores", "moving_files", "catalog", "many_queues", "workers", "exactly_once"),
        "where_it_runs",
    )
)
"""Files whose tests share a Spark. `make test` gives all of them to one process, at its start: a second Spark would
need memory, ten seconds to start, and its first queries as long again. The last one closes it.
"""
SLOWEST_FIRST = (
    *("bench/test_soak.py", "pipeline/test_where_it_runs.py", "pipeline/test_kills.py", "sim/test_mutants.py"),
    *("conformance/test_protocol.py", "pipeline/test_walk_through.py", "fuzz/test_fuzz.py", "crash/test_kill_loop.py"),
    *("cluster/test_servers.py", "cluster/test_kill_loop.py", "pipeline/test_shipping.py"),
    *("server/page/test_page.py", "pipeline/test_queries.py", "sim/test_seeds.py", "pipeline/test_jobs.py"),
    *("conformance/test_protocol_libkestrel.py", "pipeline/test_races.py", "pipeline/test_archive_state.py"),
    *("pipeline/test_names.py", "conformance/test_memcached.py", "pipeline/test_journal_source.py"),
    *("examples/test_examples.py", "conformance/test_journal.py", "faults/test_sweep.py", "broker/test_transfers.py"),
    *("server/backup/test_refused_by_s3.py", "server/backup/test_interrupted.py", "server/test_installed.py"),
    *("client/kombu/test_killed_workers.py", "examples/test_dramatiq.py"),
)
"""Files that take more than half a minute, each test of which counts as slow. `make test` gives each file to one
process: a long one that begins last is waited for by all the others.
"""
MANY_TESTS_NEXT = (
    *("faults/test_each_kind_of_file.py", "docs/test_start.py", "conformance/test_adopt.py"),
    *("docs/test_help_examples.py", "docs/test_setup_pages.py", "docs/test_kubernetes.py"),
    *("conformance/test_journal_tools.py", "crash/test_recorded_power_cuts.py", "crash/test_workq_sigkill.py"),
    *("server/page/test_many_queues.py", "server/cli/test_live.py", "server/selftest/test_selftest.py"),
    *("broker/maintenance/test_unremoved_files.py", "server/test_users.py", "client/test_jobs.py"),
    *("journal/disk/test_errno_table.py", "client/test_every_kind.py", "server/backup/test_places.py"),
    *("pipeline/test_sidecars.py", "server/cli/test_several.py", "server/cli/test_top.py", "server/test_hub.py"),
    *("worker/test_command.py", "client/test_accidents.py", "client/kombu/test_celery.py"),
    *("packaging/test_compiled_install.py", "pipeline/test_report_page.py", "docs/test_site.py"),
)
"""Files of quick tests that together take more than twenty seconds on a busy machine. They begin after those above."""
CLOSING_LINES = pytest.StashKey[list[str]]()


@cache
def is_there(program: str) -> bool:
    """Whether a program is on the PATH, or a library, written `python:name` or `perl:name`, can be loaded,
    or whether git has `commit:hash`, or this is `user:name`, or the kernel gives networks of one's own
    (`kernel:networks`).
    """
    language, colon, name = program.partition(":")
    if not colon:
        return shutil.which(program) is not None
    if language == "python":
        return importlib.util.find_spec(name) is not None
    command = LIBRARIES[language](name)
    return shutil.which(command[0]) is not None and subprocess.run(command, capture_output=True).returncode == 0


def missing_programs(item: pytest.Item) -> list[str]:
    """The programs that this test needs and the machine does not have."""
    wanted = {str(name) for mark in item.iter_markers("programs") for name in mark.args}
    return sorted(name for name in wanted if not is_there(name))


def may_be_installed(item: pytest.Item) -> bool:
    """Whether something can be done about what is missing: the history of a shallow clone, or a part of the kernel,
    cannot be installed.
    """
    return any(not name.startswith(("commit:", "kernel:")) for name in missing_programs(item))


def check_origin(root: Path) -> None:
    """Raise UsageError if `staniel`, or a package in it, is loaded from outside the checkout at `root`.

    A folder without `src/staniel` is no checkout, and is not checked.
    """
    if not (root / "src" / "staniel" / "__init__.py").exists():
        return
    packages = [f"staniel.{path.name}" for path in (root / "src" / "staniel").iterdir() if path.is_symlink()]
    for name in ("staniel", *sorted(packages)):
        spec = importlib.util.find_spec(name)
        origin = Path(spec.origin).resolve() if spec and spec.origin else None
        if origin is None or not origin.is_relative_to(root.resolve()):
            raise pytest.UsageError(
                f"these tests are in {root}, but {name} would be loaded from {origin}: they would test the program of"
                f" another checkout. Each has its own environment: run `make .venv/.dev-installed` in {root}, then"
                f" {root}/.venv/bin/pytest"
            )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", metavar="FILE", help="options of `make quick`, which gives them: see tests/quick")


def pytest_configure(config: pytest.Config) -> None:
    check_origin(TESTS.parent)
    if quick := config.getoption("--quick"):
        from tests.quick.budget import Budget

        config.pluginmanager.register(Budget.from_file(quick, TESTS.parent))
    settings.load_profile("seek" if os.environ.get("STANIEL_SEEK") == "1" else "repeat")
    config.stash[CLOSING_LINES] = []
    wanted = os.environ.get("STANIEL_BUILD", BUILD)
    if wanted != BUILD:
        raise pytest.UsageError(f"STANIEL_BUILD asks for the build {wanted!r}, and {BUILD!r} is loaded")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--quick"):  # it has put them in order
        slowest: dict[Path, int] = {}
        for at, name in enumerate(WITH_SPARK + SLOWEST_FIRST + MANY_TESTS_NEXT):
            slowest.setdefault(TESTS / name, at)
        items.sort(key=lambda item: slowest.get(item.path, len(slowest)))
    leave_out_other_build(config, items)
    left_out = [item for item in items if missing_programs(item) and not (REQUIRED and may_be_installed(item))]
    if not left_out:
        return
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)
    names = sorted({name for item in left_out for name in missing_programs(item)})
    line = f"left out: {len(left_out)} tests marked `programs`; missing: {', '.join(names)}"
    config.stash[CLOSING_LINES].append(line)


def pytest_collection_finish() -> None:
    """Keep the collector of garbage away from what collecting the tests has made: a million objects that stay. Passes
    over them were a fifth of the CPU time of the simulator's histories.
    """
    gc.collect()
    gc.freeze()


def leave_out_other_build(config: pytest.Config, items: list[pytest.Item]) -> None:
    other = "pure" if IS_COMPILED else "compiled"
    left_out = [item for item in items if item.get_closest_marker(other)]
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)
        config.stash[CLOSING_LINES].append(f"{BUILD}: left out {len(left_out)} tests that need the other build")


def pytest_runtest_setup(item: pytest.Item) -> None:
    missing = missing_programs(item)
    if missing:
        pytest.fail(f"STANIEL_REQUIRE_PROGRAMS=1, and missing: {', '.join(missing)}", pytrace=False)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker process of pytest-xdist hands its lines to the one that talks to the terminal."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["closing_lines"] = session.config.stash[CLOSING_LINES]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """As `--dist loadfile`, but that the files of Spark are one."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "with Spark" if file.removeprefix("tests/") in WITH_SPARK else file

    return Scheduling(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """The other end of that. All workers leave out the same tests, and say so: once is enough."""
    lines = node.config.stash[CLOSING_LINES]
    lines += [line for line in getattr(node, "workeroutput", {}).get("closing_lines", []) if line not in lines]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash[CLOSING_LINES]:
        terminalreporter.write_line(line)


@pytest.fixture
def closing_line(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Adds one line to the end of the run, for a figure that the reader of a green run should see."""
    return pytestconfig.stash[CLOSING_LINES].append
