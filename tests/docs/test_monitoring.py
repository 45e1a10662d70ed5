"""monitoring/, docs/alerts and docs/metrics.md against what a real server says of itself."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from staniel.broker.admin.reasons import ReasonName
from staniel.cluster.status import FollowerStatus, MemberStatus, Role
from staniel.server.cluster.member_metrics import metrics_of
from tests.support.certificates import Authority
from tests.support.process import running
from tests.support.wire import Wire, stats

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "monitoring"
ALERTS = MONITORING / "prometheus-alerts.yml"
ALERT_TESTS = MONITORING / "prometheus-alerts.test.yml"
ALERT_PAGES = ROOT / "docs" / "alerts"
METRICS = ROOT / "docs" / "metrics.md"
NAME = re.compile(r"\bstaniel_\w+")
CONFIG = """
tls.certificate = "{certificate}"
tls.key = "{key}"
workq.tls_port = 0
admin.port = 0
workq.port = 0
aliases.all = ["q"]
queues.q.retry_delay = "1h"
"""

FOLLOWER = FollowerStatus("bb", "m2", "h:2", True, True, "following", 7, 900, 1500, True)
MEMBER = MemberStatus("c", "c", "aa", "m1", Role.LEADING, 4, "aa", "h:1", ["aa"], 2, 10, 3, followers=[FOLLOWER])


class Said:
    """What one server says, and a leader of a cluster of itself: `metrics` is the text of a scrape, `stats` has the
    statistics by name.
    """

    def __init__(self, metrics: str, stats: dict[str, str]) -> None:
        self.metrics = metrics
        self.stats = stats


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Said]:
    """By a server on which every kind of thing is there that has a statistic of its own."""
    folder = tmp_path_factory.mktemp("monitored")
    files = Authority(folder).issue("server")
    config = CONFIG.format(certificate=files.certificate, key=files.key)
    with running(folder, config=config) as server:
        with Wire(server.address) as wire:
            assert wire.put("q", b"1") == b"STORED"
            assert wire.ask(b"get q+child") == b"END"
            assert wire.ask(b"pause q") == b"OK"  # a reason that is about a queue
        with Wire(server.workq_address) as wire:
            wire.say(b"add 98e8ec83-3d5a-4d9e-9c0b-ab17f7f33e28 mail 60 600 1\r\nx\r\n")
            assert wire.line() == b"+OK"
        http = HTTPConnection("127.0.0.1", admin_port(server.greeting))
        told = ("POST", "/api/backup/made", '{"made_at_ms": 1, "where": "/b"}', {"content-type": "application/json"})
        http.request(*told)
        assert http.getresponse().read() == b'{"noted":true}\n'
        http.request("POST", "/api/holds", '{"name": "h"}', told[3])
        assert http.getresponse().read().startswith(b'{"name":"h"')
        http.request("GET", "/metrics")
        of_member = metrics_of(MEMBER)
        yield Said(http.getresponse().read().decode() + of_member, stats(server.address))
        http.close()


def admin_port(greeting: str) -> int:
    """Of the listeners of a start's line the last is the admin's."""
    return int(re.findall(r"127\.0\.0\.1:(\d+)", greeting)[-1])


def names_in(metrics: str) -> set[str]:
    """Of all samples, those of histograms with their suffixes."""
    return {re.split("[{ ]", line)[0] for line in metrics.splitlines() if not line.startswith("#")}


def alerts() -> list[str]:
    return re.findall(r"- alert: (\w+)", ALERTS.read_text("utf-8"))


@pytest.mark.programs("promtool")
def test_promtool_finds_nothing_wrong_with_a_scrape(said: Said) -> None:
    ran = subprocess.run(["promtool", "check", "metrics"], input=said.metrics, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout + ran.stderr) == (0, "")


@pytest.mark.programs("promtool")
@pytest.mark.parametrize("command", [("check", ALERTS), ("test", ALERT_TESTS)])
def test_promtool_accepts_the_alerts_and_their_tests_pass(command: tuple[str, Path]) -> None:
    verb, path = command
    ran = subprocess.run(["promtool", verb, "rules", str(path)], capture_output=True, text=True)
    assert ran.returncode == 0 and "SUCCESS" in ran.stdout, ran.stdout + ran.stderr


def test_each_alert_has_a_test_and_a_page_that_its_annotation_names() -> None:
    tested, rules = ALERT_TESTS.read_text("utf-8"), ALERTS.read_text("utf-8")
    assert len(alerts()) >= 15
    assert re.findall(r"runbook: docs/alerts/(\w+)\.md", rules) == alerts()
    assert [name for name in alerts() if name.removeprefix("Staniel") not in tested] == []
    pages = {path.stem: path.read_text("utf-8") for path in ALERT_PAGES.glob("Staniel*.md")}
    assert set(pages) == set(alerts()), "a page for each alert, and none without an alert"
    severity = dict(re.findall(r"- alert: (\w+)\n(?:.*\n)*?.*severity: (\w+)", rules))
    index = (ALERT_PAGES / "README.md").read_text("utf-8")
    for name, text in pages.items():
        assert text.startswith(f"# {name}\n\nSeverity: {severity[name]}.\n")
        assert "\n## Look\n" in text and "\n## Do\n" in text and len(text.split()) < 200, "one screen"
        assert f"\n- [{name}]({name}.md), {severity[name]}: " in index


@pytest.mark.parametrize("name", ["prometheus-alerts.yml", "prometheus-alerts.test.yml", "grafana-dashboard.json"])
def test_every_metric_that_is_named_is_there(said: Said, name: str) -> None:
    text = (MONITORING / name).read_text("utf-8")
    asked = set(NAME.findall(text))
    assert len(asked) >= 7
    assert asked - names_in(said.metrics) == set()


def test_every_reason_of_the_list_has_an_entry_in_the_docs_and_an_alert() -> None:
    section = (ALERT_PAGES / "README.md").read_text("utf-8").partition("\n## Reasons\n")[2].partition("\n## ")[0]
    entries = re.findall(r"^- ((?:`\w+`,? ?)+)(.*(?:\n  .*)*)", section, re.MULTILINE)
    told = {name: meaning for names, meaning in entries for name in re.findall(r"`(\w+)`", names)}
    assert set(told) == {reason.value for reason in ReasonName}
    text = ALERTS.read_text("utf-8")
    of_readiness = {"stopping", "sync_failed", "not_leader"}  # staniel_ready_for_puts is 0; the last is no failure
    assert [name for name in told if name not in of_readiness and not re.search(rf"\b{name}\b", text)] == []
    for name, meaning in told.items():
        for alert in re.findall(r"\[(Staniel\w+)\]", meaning) or ([] if name == "not_leader" else ["StanielWarnings"]):
            rule = text.partition(f"- alert: {alert}\n")[2].partition("- alert:")[0]
            assert name in rule or alert == "StanielNotReady", (name, alert)


def test_every_panel_of_the_dashboard_asks_for_something_and_none_covers_another() -> None:
    board = json.loads((MONITORING / "grafana-dashboard.json").read_text("utf-8"))
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        assert panel["title"] and all(target["expr"] for target in panel["targets"]) and panel["targets"]
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken and at["x"] + at["w"] <= 24
        taken |= cells
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids)) > 15


def told_names() -> set[str]:
    """All names at the beginning of the entries of docs/metrics.md."""
    heads = re.findall(r"^- ([^:]+):", METRICS.read_text("utf-8"), re.MULTILINE)
    return {name for head in heads for name in re.findall(r"`([\w.…]+)`", head)}


def is_metric(name: str) -> bool:
    return name.startswith(("staniel_", "process_"))


def test_the_page_has_every_statistic_and_no_other(said: Said) -> None:
    own = {re.sub(r"^queue_(q\+child|q|all)_|^jobs_mail_", "", name) for name in said.stats}
    own = {re.sub(r"^limit_\w+$", "limit_NAME", name) for name in own}
    own = {re.sub(r"^hold_h_", "hold_NAME_", name) for name in own}
    seldom = {"unreadable", "held_bytes", "held_ms"}  # of a queue that cannot be read, or whose open reads keep files
    assert {name for name in told_names() if not is_metric(name)} == own | seldom


def test_the_page_has_every_metric_and_no_other(said: Said) -> None:
    families = {line.split()[2] for line in said.metrics.splitlines() if line.startswith("# TYPE ")}
    assert {name for name in told_names() if is_metric(name)} == families
