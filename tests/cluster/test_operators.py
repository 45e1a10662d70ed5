"""What operators of real members see and change: metrics, health, reloads, on leaders and followers."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

from tests.cluster.servers import MemberServer, Servers, cluster
from tests.cluster.test_servers import others
from tests.support.process import run_staniel

pytestmark = [pytest.mark.programs("etcd"), pytest.mark.slow]


def sample(member: MemberServer, name: str, labels: str = "") -> float | None:
    """A value of a member's scrape; None if it has no such series."""
    start = f'staniel_{name}{{cluster="test"{labels}}} '
    found = [line.removeprefix(start) for line in member.text_of("/metrics").splitlines() if line.startswith(start)]
    return float(found[0]) if found else None


def reasons(member: MemberServer, path: str = "/health/ready") -> tuple[int, list[str]]:
    status, health = member.call(path)
    return status, [reason["name"] for reason in health["reasons"]]


def test_every_member_has_metrics_and_health(tmp_path: Path) -> None:
    with cluster(tmp_path) as servers:
        leader = servers.form()
        assert leader.wire().put("jobs", "a") == "STORED"
        servers.wait_until_same()
        follower, other = others(servers, leader)
        assert sample(leader, "cluster_role", ',role="leading"') == 1
        assert sample(leader, "cluster_members_in_sync") == 3
        for member in (follower, other):
            assert sample(leader, "cluster_member_in_sync", f',member="{member.name}"') == 1
            assert sample(leader, "cluster_member_lag_records", f',member="{member.name}"') is not None
            assert sample(member, "cluster_role", ',role="following"') == 1
            assert sample(member, "cluster_epoch") == sample(leader, "cluster_epoch")
            assert "process_open_fds " in member.text_of("/metrics")
        assert reasons(leader) == (200, [])
        assert reasons(follower) == (503, ["not_leader"])
        assert reasons(follower, "/health/ready?for=member") == (200, [])
        assert [member.call("/health/live")[0] for member in servers.members] == [200] * 3
        assert follower.call("/api/cluster")[1]["leader_id"] == leader.call("/api/cluster")[1]["id"]
        assert "<title>Staniel</title>" in follower.text_of("/")


def test_a_scrape_of_a_leader_works_while_replies_are_held(tmp_path: Path) -> None:
    with cluster(tmp_path, count=2) as servers:
        leader = servers.form()
        follower = others(servers, leader)[0]
        wire = leader.wire()
        follower.signal(signal.SIGSTOP)
        wire.say("set jobs 0 0 1\nb\n")
        servers.wait_for(lambda: sample(leader, "cluster_held_replies"), "the held reply is counted")
        servers.wait_for(lambda: reasons(leader) == (200, ["set_too_small"]), "health says why")
        assert leader.call("/health/ready?for=puts")[0] == 503
        assert sample(leader, "cluster_members_in_sync") == 1
        follower.signal(signal.SIGCONT)
        assert wire.line() == "STORED"


def test_a_member_that_is_shown_as_in_sync_can_be_given_the_lead(tmp_path: Path) -> None:
    with cluster(tmp_path, count=2) as servers:
        first, second = servers.members
        first.start()
        servers.wait_for(lambda: first.call("/cluster/init", {})[0] == 202, "the cluster is made")
        servers.wait_for(lambda: first.role == "leading", "it leads")
        second.start()

        def shown() -> bool:
            lines = run_staniel("cluster", "--config", str(first.config)).stdout.splitlines()
            return any(line.split()[:3] == [second.name, "following", "yes"] for line in lines)

        servers.wait_for(shown, "the second is in sync")
        assert first.call("/cluster/handover", {"to": second.name})[0] == 202
        servers.wait_for(lambda: second.role == "leading", "it leads")


def test_operators_are_served_while_the_lead_is_handed_over(tmp_path: Path) -> None:
    with cluster(tmp_path, count=2, min_in_sync=1) as servers:
        for member in servers.members:
            member.config.write_text(member.config.read_text().replace('lease = "4s"', 'lease = "60s"'))
        old = servers.form()
        heir = others(servers, old)[0]
        assert old.wire().put("jobs", "a") == "STORED"
        servers.etcd.kill()
        assert old.call("/cluster/handover", {"to": heir.name})[0] == 202
        servers.wait_for(lambda: old.role == "handing over", "it hands over, and etcd does not answer")
        servers.wait_for(lambda: old.wire().put("jobs", "b") == "SERVER_ERROR not the leader", "it refuses clients")
        assert old.call("/health/live")[0] == 200
        status, why = reasons(old)
        assert status == 503 and "not_leader" in why
        assert old.call("/cluster/handover", {})[0] == 409
        assert old.call("/api/queues") == (503, {"error": "not the leader"})
        assert sample(old, "cluster_role", ',role="handing over"') == 1
        servers.etcd.spawn()
        assert servers.etcd.wait()
        servers.wait_for(lambda: heir.role == "leading", "the other one leads")
        servers.wait_until_whole()
        assert heir.wire().get("jobs") == "a"


def config_of(servers: Servers, member: MemberServer, more: str) -> None:
    member.config.write_text(member.config.read_text() + more)


def test_a_new_leader_tells_who_is_missing_and_counts_no_records_of_before(tmp_path: Path) -> None:
    with cluster(tmp_path, min_in_sync=1) as servers:
        old = servers.form()
        wire = old.wire()
        assert [wire.put("jobs", str(number)) for number in range(100)] == ["STORED"] * 100
        wire.say("set jobs 0 0 1\nx\n" * 400)
        assert {wire.line() for _ in range(400)} == {"STORED"}
        records = old.status["last"]
        assert records > 100
        old.kill()
        seen: list[int] = []

        def is_new() -> bool:
            leader = servers.leader
            followers = leader.status.get("followers", ()) if leader is not None else ()
            seen.extend(each["lag_records"] for each in followers if each["lag_records"] is not None)
            return bool(seen) and leader is not None and len(leader.status.get("in_sync", ())) == 2

        servers.wait_for(is_new, "another one leads without it")
        assert max(seen) < 100  # those of the new epoch
        leader = servers.leader
        assert leader is not None
        servers.wait_for(lambda: reasons(leader) == (200, ["members_missing"]), "health names the killed one")
        (other,) = [member for member in servers.members if member not in (old, leader)]
        shown = {each["name"] or each["id"]: each["state"] for each in other.status["followers"]}
        assert shown[leader.name] == "leads" and len(shown) == 2
        old.start()
        servers.wait_until_whole()
        assert reasons(leader) == (200, [])


def test_a_follower_takes_a_changed_configuration_and_serves_by_it_once_it_leads(tmp_path: Path) -> None:
    with cluster(tmp_path, count=2) as servers:
        leader = servers.form()
        follower = others(servers, leader)[0]
        config_of(servers, follower, "[queues.jobs]\nmax_items = 1\n")
        follower.signal(signal.SIGHUP)
        servers.wait_for(lambda: "config.reloaded" in follower.lines, "the reload")
        config_of(servers, follower, "[queues.more]\nmax_items = 1\n[thrift]\ncreate_on_read = 5\n")
        status, said = follower.call("/api/reload", {})
        assert status == 409 and "thrift.create_on_read" in said["error"]
        text = follower.config.read_text().replace("create_on_read = 5", "port = 4").replace("min_in_sync", "#")
        follower.config.write_text(text)
        ran = run_staniel("reload", "--config", str(follower.config))
        assert "thrift.port" in ran.stdout, ran
        assert leader.call("/cluster/handover", {"to": follower.name})[0] == 202
        servers.wait_for(lambda: follower.role == "leading", "it leads")
        servers.wait_until_whole()
        wire = follower.wire()
        assert [wire.put("jobs", data) for data in "ab"] == ["STORED", "NOT_STORED"]
        config = json.loads(follower.text_of("/api/queues/more/config"))
        assert config["max_items"] == 1


def test_a_leader_refuses_puts_once_etcd_has_an_older_state(tmp_path: Path) -> None:
    with cluster(tmp_path, count=2, min_in_sync=1) as servers:
        leader = servers.form()
        follower = others(servers, leader)[0]
        etcd, data = servers.etcd, servers.etcd.folder / servers.etcd.name
        etcd.kill()
        shutil.copytree(data, tmp_path / "backup")
        etcd.spawn()
        assert etcd.wait()
        follower.kill()
        servers.wait_for(lambda: len(leader.status["in_sync"]) == 1, "the set is another one than in the backup")
        assert leader.wire().put("jobs", "a") == "STORED"
        etcd.kill()
        shutil.rmtree(data)
        shutil.copytree(tmp_path / "backup", data)
        etcd.spawn()
        assert etcd.wait()
        servers.wait_for(lambda: leader.status["etcd_restored"], "the leader notices")
        assert leader.wire().put("jobs", "b").startswith("SERVER_ERROR etcd was restored to an older state")
        assert leader.wire().get("jobs") == "a"
        assert reasons(leader) == (200, ["etcd_restored", "members_missing"])
        assert leader.call("/health/ready?for=puts")[0] == 503
        assert sample(leader, "cluster_etcd_restored") == 1
        assert "cluster.etcd_restored" in leader.lines
        assert "etcd was restored" in run_staniel("cluster", "--config", str(leader.config)).stdout
