"""Nothing is defined that nobody uses, and no public class stands twice; the exceptions, each with its reason."""

from __future__ import annotations

from functools import cache

import pytest

from tests.tidy import definitions
from tests.tidy.findings import expect_none, line_of
from tests.tidy.test_tidy import PACKAGES, ROOT, python_files, short

EXCEPTIONS = {
    "Tracing": "a program makes it and gives it to its clients: staniel.client.otel",
    "NOT_COPIED": "a table of reasons, which a test holds against what servers write",
    "QueueCounters": "all of its fields are read by name, for `stats`",
    "ServerCounters": "likewise",
    "Client.hangs_up": "the simulator's world is also the one in which tests tell their stories",
    "Client.is_cut_off": "likewise",
    "Report.client_cpu": "a figure that the generator in C reports; the decoder reads all of them",
    "Report.server_rss_kb": "likewise",
    "Latency.p90": "likewise",
    "QueueSnapshot": "all of its fields are shown as JSON",
    "ServerView": "likewise",
    "MemberStatus": "likewise",
    "FollowerStatus": "likewise",
    "OpenReadView": "likewise",
    "ItemView": "likewise",
    "Page": "likewise",
    "Taken": "likewise",
    "JournalFile": "likewise",
    "JournalFiles": "likewise",
    "QueueSums": "likewise",
    "DiskView": "likewise",
    "QueueRow": "likewise, as an array",
    "JobsView": "likewise",
    "ClientView": "likewise",
    "HeldView": "likewise",
    "HoldView": "likewise",
    "read_holds": "programs that read a spool's files call it",
    "files_to_read": "likewise",
    "open_to_read": "likewise",
    "DeadLetter": "all of its fields are put as JSON",
    "Etcd": "servers of a cluster will call it; there are none yet",
    "Watch.next_news": "likewise",
}
"""What looks unused, and why it stays: `Class.member`, a name at the top of a module, or a whole class."""

HERE = "tests/tidy/test_definitions.py"
CLIENT = "protocol/client/"  # programs import these: Item, Stats, … are what a client calls them


@cache
def texts(*folders: str) -> dict[str, str]:
    return {short(path): path.read_text("utf-8") for path in python_files(folders)}


def users() -> dict[str, str]:
    at_the_top = {path.name: path.read_text("utf-8") for path in ROOT.glob("*.py")}
    return {**texts(*PACKAGES), **texts("src/staniel", "examples"), **at_the_top}


def unused() -> list[str]:
    """In all packages what nothing uses; and what simulator and benchmarks alone use of the others."""
    everybody = users()
    product = {path: text for path, text in everybody.items() if not path.startswith(("sim/", "bench/"))}
    served = {path: text for path, text in texts(*PACKAGES).items() if path in product}
    driver = {path: text for path, text in texts("tests/cluster").items() if "/test_" not in path}
    everybody, product = {**everybody, **driver}, {**product, **driver}  # no server drives cluster/ yet
    found: set[str] = set()
    for rule in (definitions.top_level_unused, definitions.members_unused):
        found |= {*rule(texts(*PACKAGES), everybody), *rule(served, product)}
    return sorted(each for each in found if not {key(each), key(each).partition(".")[0]} & EXCEPTIONS.keys())


def key(finding: str) -> str:
    return finding.rpartition(": ")[2]


@pytest.mark.slow
def test_everything_that_is_defined_is_used_by_more_than_tests() -> None:
    expect_none(
        unused(),
        "Remove the definition, or use it outside tests. What a foreign program or JSON uses goes into EXCEPTIONS of"
        " tests/tidy/test_definitions.py, with the reason.",
    )


def test_no_public_class_of_the_server_has_the_name_of_another() -> None:
    files = {path: text for path, text in texts(*definitions.RUNTIME).items() if not path.startswith(CLIENT)}
    doubled = definitions.doubled_classes(files).items()
    expect_none(
        [f"{places[0]}: class {name}, also at {', '.join(places[1:])}" for name, places in doubled],
        "Rename one of them after what tells them apart.",
    )


def test_every_exception_is_needed() -> None:
    everything = "\n".join(texts(*PACKAGES).values())
    gone = [name for name in EXCEPTIONS if name.rpartition(".")[2] not in everything]
    expect_none(
        [line_of(HERE, f'    "{name}":') + f": nothing is called {name}" for name in gone],
        "Remove it from EXCEPTIONS.",
    )


MODULE = "def used(): ...\ndef unused(): unused()\nclass A:\n    x = 1\n    def f(self): return self.f()\n"


@pytest.mark.parametrize(
    ("user", "found"),
    [
        ("from staniel.queues.a import used\nused().x.f()", ["unused", "A"]),
        ("from staniel.queues import a\na.used()\na.A\n", ["unused", "A.x", "A.f"]),
        ("from staniel.queues.b import used, A\n", ["used", "unused", "A", "A.x", "A.f"]),
        ("from staniel.queues.a import A as B\nSET = ('used', 'unused')\nmatch 1:\n    case B(x=1): B.f\n", []),
    ],
)
def test_what_no_other_module_mentions_is_unused(user: str, found: list[str]) -> None:
    files = {"queues/a.py": MODULE}
    both = {**files, "broker/b.py": user}
    said = definitions.top_level_unused(files, both) + definitions.members_unused(files, both)
    assert [key(each) for each in said] == found


@pytest.mark.parametrize(
    "text",
    [
        "@group.command('ping')\ndef ping(): ...\n",
        "import foreign\nclass A(foreign.Base):\n    def f(self): ...\nA\n",
        "class K(Enum):\n    ITEM = 1\nfor kind in K: ...\n",
        "def __getattr__(name): ...\n__all__ = ()\n",
    ],
)
def test_what_somebody_else_calls_is_used(text: str) -> None:
    files = {"queues/a.py": text}
    assert definitions.top_level_unused(files, files) + definitions.members_unused(files, files) == []


def test_only_public_classes_count_as_doubled() -> None:
    files = {"queues/a.py": "class A: ...\nclass _B: ...\n", "broker/b.py": "class A: ...\nclass _B: ...\n"}
    assert definitions.doubled_classes(files) == {"A": ["queues/a.py:1", "broker/b.py:1"]}
