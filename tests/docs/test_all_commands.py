"""Each command that a reader may paste is run by a test, or the reason why none does stands here.

Commands are the lines of indented blocks and of transcripts. Those within sentences are held against the parser by
test_commands.py.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    path
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
    if path.parent.name != "decisions"
]
PROGRAMS = (
    "celery cp curl docker git install journalctl kubectl make man openssl pip python3? rsync ssh staniel systemctl"
)
NAMES = "|".join((*PROGRAMS.split(), "spark-submit", "useradd", "for user", "umask"))
COMMAND = re.compile(rf"(?:[A-Z_]+=\S* )*(?:/\S*/)?(?:{NAMES})(?= |$)")
HOWTO, SETUP = "tests/docs/test_howto.py", "tests/docs/test_setup_pages.py"
START, HELP = "tests/docs/test_start.py", "tests/docs/test_help_examples.py"
REFERENCE = "tests/docs/test_reference_commands.py"
RUN_BY = {
    "README.md": START,
    **dict.fromkeys(
        ("docs/start/client.md", "docs/start/cluster.md", "docs/start/pymemcache.md", "docs/start/spark.md"), START
    ),
    "docs/worker-tutorial.md": "tests/docs/test_worker_page.py",
    "docs/admin.md": REFERENCE,
    "docs/commands.md": REFERENCE,
    "docs/journal-tools.md": REFERENCE,
    "docs/journal-libkestrel.md": REFERENCE,
    "docs/celery.md": "tests/docs/test_celery_page.py",
    "docs/http.md": "tests/examples/test_http_workers.py",
    "docs/replication.md": "tests/cluster/test_commands.py",
    "docs/security.md": "tests/docs/test_security_page.py",
    "docs/howto/secure.md": "tests/docs/test_security_page.py",
    "docs/howto/backup.md": "tests/docs/test_transcripts.py",
    "docs/howto/kestrel.md": "tests/docs/test_kestrel_page.py",
    "docs/howto/kubernetes.md": "tests/docs/test_kubernetes.py",
    "docs/howto/kubernetes-run.md": "tests/docs/test_kubernetes.py",
    "docs/spark-cluster.md": "tests/pipeline/test_shipping.py",
    **dict.fromkeys(
        (f"docs/howto/{name}.md" for name in ("install", "extras", "systemd", "container", "test-the-disk")), SETUP
    ),
    **dict.fromkeys((f"docs/howto/{name}.md" for name in ("start-and-stop", "more-servers", "move")), HOWTO),
}
RUNBOOKS = "tests/docs/test_runbooks.py"
NOT_RUN = {
    "docker ": "no docker in tests: test_setup_pages.py runs what the image runs, and knows docker's options",
    "kubectl rollout": "needs a cluster: test_kubernetes.py compares the name with the manifest",
    "kubectl delete": "needs a cluster: test_kubernetes.py compares the name with the manifest",
    "kubectl apply": "needs a cluster: test_kubernetes.py makes the objects and checks them by their schemas",
    "systemctl ": "needs systemd as process 1: test_setup_pages.py enables the unit in a folder and runs what it does",
    "journalctl ": "needs systemd as process 1: the log of a server is on its standard error in tests",
    "rsync -a": "needs a second machine",
    "git clone": "needs the network",
    "/opt/staniel/bin/pip install .  ": "the wheel is built and installed by test_setup_pages.py, without a network",
    "make serve": "test_build_scripts.py makes its environment, without a network; it runs `staniel serve`",
    "make quick": "starts the tests; tests/quick has tests of it",
    "make check": "starts the tests: CI runs it",
    "make test": "starts the tests: CI runs it",
    "STANIEL_PURE=1 make test": "starts the tests: CI runs it",
    "make sanitized": "compiles with a sanitizer for minutes",
    "make fuzz": "takes as many seconds as it is given; tests/fuzz has tests of the campaign",
    "make compiled bench": "needs an idle machine and other servers; tests/bench runs each measurement briefly",
    "make bench": "needs an idle machine and other servers; tests/bench runs each measurement briefly",
    "make wheel": "test_setup_pages.py builds the wheel without a network",
    "pip install 'staniel[spark]'": "needs the network; the tutorial's installation is run by test_setup_pages.py",
    "spark-submit": "needs a cluster of Spark; tests/pipeline runs with local executors",
    "staniel pipeline replay OUT": "tests/pipeline/test_cli.py runs it on archives of its own",
    "staniel serve --port": "serves until it is stopped; test_help_examples.py runs the same options",
    "staniel serve --config /etc": "serves until it is stopped; test_help_examples.py runs the same options",
    "staniel journal repair spool": "its figures are of one damaged spool; test_reference_commands.py runs the command",
    "staniel adopt /var/spool/kestrel": "its figures are of one folder; test_kestrel_page.py runs the command",
    "staniel hold ": "the files are of one spool: tests/server/cli/test_holds.py runs the commands",
    "staniel work tasks:": "test_worker_page.py runs the tutorial; tests/worker has several queues and periodic items",
}


def block_commands(path: Path) -> Iterator[str]:
    fence = ""
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("```"):
            fence = "" if fence else line[3:] or "text"
        elif fence == "console" and line.startswith("$ "):
            yield line[2:]
        elif not fence and line.startswith("    ") and COMMAND.match(line.strip().removeprefix("$ ")):
            yield line.strip().removeprefix("$ ")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_each_command_of_a_page_is_run_or_says_why_not(path: Path) -> None:
    is_run = name_of(path) in RUN_BY or path.parent.name == "alerts"
    left = [each for each in block_commands(path) if not is_run and not each.startswith(tuple(NOT_RUN))]
    assert left == [], "run them in a test that RUN_BY names, or say in NOT_RUN why no test does"


def test_each_test_that_is_said_to_run_a_page_names_it() -> None:
    told = {name: (ROOT / test).read_text("utf-8") for name, test in RUN_BY.items()}
    assert [name for name, text in told.items() if Path(name).stem not in text] == []
    assert {name for name in RUN_BY if not list(block_commands(ROOT / name))} == set()
    assert "ALERTS.glob" in (ROOT / RUNBOOKS).read_text("utf-8")


def test_each_reason_is_of_a_command_that_a_page_has() -> None:
    found = [each for path in PAGES for each in block_commands(path)]
    assert len(found) > 150
    assert [start for start in NOT_RUN if not any(each.startswith(start) for each in found)] == []
    named = re.findall(r"\btest_\w+\.py|tests/\w+(?:/\w+\.py)?", " ".join(NOT_RUN.values()))
    assert [each for each in named if not (list((ROOT / "tests").rglob(each)) or (ROOT / each).exists())] == []


def test_each_target_and_module_that_a_page_names_is_there() -> None:
    text = "\n".join(path.read_text("utf-8") for path in PAGES)
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    lines = re.findall(r"(?:^    |`|ENVIRONMENT )make ((?:[a-z]+ ?)+)", text, re.MULTILINE)
    assert {word for line in lines for word in line.split()} - targets == set()
    modules = set(re.findall(r"python -m\s+((?:tests|staniel)\.[\w.]+)", text))
    assert len(modules) > 8
    assert [each for each in sorted(modules) if importlib.util.find_spec(each.rstrip(".")) is None] == []
