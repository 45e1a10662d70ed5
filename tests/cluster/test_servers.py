"""Real servers of a cluster and a real etcd: put, kill, take over, return, join, hand over."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from staniel.client import ClusterJobs, ClusterPool
from staniel.client.blocking.multi import MultiClient
from staniel.cluster.durable import ALL_FIXED
from tests.cluster.servers import MemberServer, Servers, cluster
from tests.support.transcripts import free_port

QUEUES = 2000  # are recovered in some tenths of a second

pytestmark = [pytest.mark.programs("etcd"), pytest.mark.slow]


def others(servers: Servers, leader: MemberServer) -> list[MemberServer]:
    return [member for member in servers.members if member is not leader]


def take_over(servers: Servers, old: MemberServer) -> MemberServer:
    """Wait until another member than `old` leads, and return it."""
    servers.wait_for(lambda: servers.leader not in (None, old), "a take-over")
    new = servers.leader
    assert new is not None
    return new


def assert_same_files(servers: Servers) -> None:
    """All spools have the same journals, byte for byte."""
    servers.wait_until_same()
    leader = servers.leader
    assert leader is not None
    servers.end_all()
    expected = leader.files
    for member in servers.members:
        files = member.files
        assert sorted(files) == sorted(expected), member.name
        assert [name for name in files if files[name] != expected[name]] == [], member.name


def test_followers_have_the_items_of_the_leader_byte_for_byte(tmp_path: Path) -> None:
    with cluster(
        tmp_path, settings="[queues.small]\nmax_journal_size = 4096\ndefault_journal_size = 4096\n"
    ) as servers:
        leader = servers.form()
        wire = leader.wire()
        for number in range(100):
            assert wire.put("jobs", f"item {number}") == "STORED"
            assert wire.put("small", "x" * 200) == "STORED"  # its journal is packed meanwhile
            assert wire.get("small") == "x" * 200
        assert wire.get("jobs") == "item 0"
        assert wire.get("nothing") is None
        assert_same_files(servers)


def test_a_follower_says_who_leads_in_the_words_of_each_protocol(tmp_path: Path) -> None:
    with cluster(tmp_path) as servers:
        leader = servers.form()
        follower = others(servers, leader)[0]
        assert follower.wire().put("jobs", "a") == f"SERVER_ERROR not the leader: 127.0.0.1:{leader.port}"
        status, said = follower.call("/api/queues")
        assert (status, said) == (503, {"error": f"not the leader: 127.0.0.1:{leader.port}"})
        assert follower.call("/health/live")[0] == 200


def test_no_item_is_lost_when_the_leader_is_killed_and_clients_follow(tmp_path: Path) -> None:
    with cluster(tmp_path) as servers:
        old = servers.form()
        addresses = [("127.0.0.1", member.port) for member in servers.members]
        client = MultiClient(addresses, cluster=True, leader_wait_s=30)
        for number in range(30):
            client.put("jobs", b"%d" % number)
        old.kill()
        client.put("jobs", b"30")
        take_over(servers, old)
        got = []
        while (item := client.get("jobs")) is not None:
            got.append(int(item.data))
        assert got == list(range(31))
        client.close()


def test_items_larger_than_a_record_of_the_stream_are_on_each_member(tmp_path: Path) -> None:
    items = [letter * size for letter, size in (("a", 1 << 20), ("b", 10_000_000), ("c", 40_000_000), ("d", 1))]
    with cluster(tmp_path, count=2, min_in_sync=1) as servers:
        for member in servers.members:
            member.config.write_text(member.config.read_text() + '[default]\nmax_item_size = "64MB"\n')
        leader = servers.form()
        wire = leader.wire()
        assert [wire.put("jobs", item) for item in items] == ["STORED"] * len(items)
        leader.kill()
        other = others(servers, leader)[0]
        servers.wait_for(lambda: servers.leader is other, "the other one leads")
        assert other.wire().drain("jobs") == items


def test_jobs_and_shared_clients_follow_the_leader_that_takes_over(tmp_path: Path) -> None:
    with cluster(tmp_path) as servers:
        ports = [free_port() for _ in servers.members]
        for member, port in zip(servers.members, ports, strict=True):
            member.config.write_text(member.config.read_text() + f"[workq]\nport = {port}\n")
        old = servers.form()
        addresses = [("127.0.0.1", member.port) for member in servers.members]
        with (
            ClusterJobs([("127.0.0.1", port) for port in ports], leader_wait_s=60) as jobs,
            ClusterPool(addresses, leader_wait_s=60) as pool,
        ):
            first, second = jobs.add("mail", b"a"), jobs.add("mail", b"b")
            job = jobs.lease("mail")
            assert job is not None and job.id == first
            with pool.client() as client, pool.client() as other:
                client.put("jobs", b"1")
                other.put("jobs", b"2")
            old.kill()
            jobs.complete(job, b"sent")
            result = jobs.result(first)
            assert result is not None and result.data == b"sent"
            job = jobs.lease("mail", wait_s=60)
            assert job is not None and job.id == second
            with pool.client() as client:
                assert [item.data for item in client.next_items("jobs", 9, wait_s=60).items] == [b"1", b"2"]


def test_a_leader_that_was_killed_returns_and_is_repaired(tmp_path: Path) -> None:
    with cluster(tmp_path) as servers:
        old = servers.form()
        wire = old.wire()
        assert [wire.put("jobs", f"{number}") for number in range(20)] == ["STORED"] * 20
        old.kill()
        new = take_over(servers, old)
        wire = new.wire()
        servers.wait_for(lambda: new.wire().put("jobs", "more") == "STORED", "a put at the new leader")
        assert wire.get("jobs") == "0"
        old.start()
        servers.wait_until_whole()
        assert old.status["unfit"] == ""
        assert_same_files(servers)


def test_a_deposed_leader_that_does_not_know_answers_nothing(tmp_path: Path) -> None:
    with cluster(tmp_path) as servers:
        old = servers.form()
        wire = old.wire()
        assert wire.get("jobs") is None
        old.signal(signal.SIGSTOP)
        new = take_over(servers, old)
        servers.wait_for(lambda: new.wire().put("jobs", "answered") == "STORED", "a put at the new leader")
        wire.say("get jobs\n")  # it waits in the old leader's socket: `END` would be about a queue of the past
        old.signal(signal.SIGCONT)
        assert wire.last_line() == ""
        servers.wait_until_whole()
        assert new.wire().get("jobs") == "answered"


def test_a_put_is_held_while_the_members_in_sync_are_silent(tmp_path: Path) -> None:
    with cluster(tmp_path, count=2) as servers:
        leader = servers.form()
        follower = others(servers, leader)[0]
        wire, looks = leader.wire(), leader.wire()
        assert wire.put("jobs", "a") == "STORED"
        last = leader.status["last"]
        follower.signal(signal.SIGSTOP)
        wire.say("set jobs 0 0 1\nb\n")
        looks.say("get nothing\n")
        servers.wait_for(lambda: leader.status["last"] > last, "the put is written")
        servers.wait_for(lambda: len(leader.status["in_sync"]) == 1, "the silent follower is taken out")
        assert not wire.has_bytes()
        assert not looks.has_bytes()  # what is behind a held put is held
        follower.signal(signal.SIGCONT)
        assert wire.line() == "STORED"
        assert looks.line() == "END"
        servers.wait_until_whole()
        servers.wait_for(lambda: leader.wire().put("jobs", "c") == "STORED", "puts are taken again")


def test_puts_are_refused_with_a_reason_until_enough_members_are_in_sync(tmp_path: Path) -> None:
    with cluster(tmp_path, count=2) as servers:
        first, second = servers.members
        first.start()
        servers.wait_for(lambda: first.call("/cluster/init", {})[0] == 202, "the cluster is made")
        servers.wait_for(lambda: first.role == "leading", "it leads")
        wire = first.wire()
        assert wire.put("jobs", "a") == "SERVER_ERROR 1 of 2 members are in sync (min_in_sync), writes are refused"
        assert wire.get("jobs") is None
        second.start()
        servers.wait_until_whole()
        assert wire.put("jobs", "a") == "STORED"


def test_a_member_joins_with_a_copy_while_the_leader_serves(tmp_path: Path) -> None:
    with cluster(tmp_path, min_in_sync=1) as servers:
        first = servers[0]
        first.start()
        servers.wait_for(lambda: first.call("/cluster/init", {})[0] == 202, "the cluster is made")
        servers.wait_for(lambda: first.role == "leading", "it leads")
        wire = first.wire()
        for number in range(20):
            assert wire.put(f"queue{number}", "x" * 100_000) == "STORED"
        servers[1].start()
        while first.status["in_sync"] != sorted(member.member_id for member in servers.members[:2]):
            assert wire.put("jobs", "meanwhile") == "STORED"
            assert wire.get("jobs") == "meanwhile"
        servers[2].start()
        servers.wait_until_whole()
        assert wire.put("jobs", "after") == "STORED"
        assert_same_files(servers)


def test_an_order_hands_the_lead_over_without_a_copy(tmp_path: Path) -> None:
    with cluster(tmp_path) as servers:
        old = servers.form()
        wire = old.wire()
        assert [wire.put("jobs", f"{number}") for number in range(10)] == ["STORED"] * 10
        heir = others(servers, old)[1]
        assert heir.call("/cluster/handover", {})[0] == 409
        assert old.call("/cluster/handover", {"to": "nobody"})[0] == 409
        assert old.call("/cluster/handover", {"to": heir.name}) == (202, {"member": heir.member_id})
        assert take_over(servers, old) is heir
        servers.wait_until_whole()
        assert ".staniel/damaged" not in [str(path) for path in old.spool.glob(".staniel/damaged")]
        assert heir.wire().drain("jobs") == [str(number) for number in range(10)]
        assert_same_files(servers)


def program_of(member: MemberServer) -> str:
    """Where the stack of a process begins: another place for each program that it runs."""
    return Path(f"/proc/{member.pid}/stat").read_text().rpartition(")")[2].split()[25]


def own_descriptors(member: MemberServer) -> int:
    """The number of its poll descriptors and of the descriptors by which threads wake it."""
    folder, targets = Path(f"/proc/{member.pid}/fd"), list[str]()
    for fd in os.listdir(folder):
        with suppress(FileNotFoundError):  # a connection that has ended meanwhile
            targets.append(os.readlink(folder / fd))
    return len([target for target in targets if target.startswith("anon_inode")])


def test_hand_overs_where_puts_need_every_member_load_no_program_and_leave_nothing_open(tmp_path: Path) -> None:
    with cluster(tmp_path, count=2, min_in_sync=2) as servers:
        leader = servers.form()
        programs = [program_of(member) for member in servers.members]
        assert len(set(programs)) == 2 and "0" not in programs
        stored: list[str] = []
        descriptors: dict[str, list[int]] = {member.name: [] for member in servers.members}
        for turn in range(6):
            wire = leader.wire()
            stored += [f"{turn} {number}" for number in range(5)]
            assert [wire.put("jobs", data) for data in stored[-5:]] == ["STORED"] * 5
            descriptors[leader.name].append(own_descriptors(leader))
            heir = others(servers, leader)[0]
            assert leader.call("/cluster/handover", {"to": heir.name})[0] == 202
            assert take_over(servers, leader) is heir
            servers.wait_until_whole()
            leader = heir
        assert [program_of(member) for member in servers.members] == programs
        assert [len(set(counts)) for counts in descriptors.values()] == [1, 1], descriptors
        assert leader.wire().drain("jobs") == stored
        assert_same_files(servers)


def test_a_stop_hands_the_lead_over(tmp_path: Path) -> None:
    with cluster(tmp_path) as servers:
        old = servers.form()
        assert old.wire().put("jobs", "a") == "STORED"
        old.stop()
        new = take_over(servers, old)
        assert new.wire().get("jobs") == "a"
        old.start()
        servers.wait_until_whole()
        assert_same_files(servers)


def test_a_cluster_whose_machines_all_stop_at_once_goes_on(tmp_path: Path) -> None:
    with cluster(tmp_path) as servers:
        leader = servers.form()
        wire = leader.wire()
        assert [wire.put("jobs", f"{number}") for number in range(10)] == ["STORED"] * 10
        for member in servers.members:
            member.kill()
        for member in servers.members:
            member.start()
        servers.wait_until_whole()
        new = servers.leader
        assert new is not None
        assert new.wire().drain("jobs") == [str(number) for number in range(10)]
        assert_same_files(servers)


def test_a_leader_alone_in_its_set_returns_after_a_kill(tmp_path: Path) -> None:
    with cluster(tmp_path, count=2, min_in_sync=1) as servers:
        leader = servers.form()
        follower = others(servers, leader)[0]
        follower.kill()
        servers.wait_for(lambda: len(leader.status["in_sync"]) == 1, "the follower is taken out")
        assert leader.wire().put("jobs", "a") == "STORED"
        leader.kill()
        leader.start()
        servers.wait_for(lambda: leader.role == "leading", "it leads again")
        follower.start()  # what it has of the stream may differ from the leader's files: it copies them
        servers.wait_until_whole()
        assert leader.wire().put("jobs", "b") == "STORED"
        assert_same_files(servers)


def test_a_leader_that_did_not_wait_for_its_disk_does_not_lead_after_a_power_cut(tmp_path: Path) -> None:
    with cluster(tmp_path, settings='[default]\nsync_journal = "1h"\n') as servers:
        old = servers.form()
        wire = old.wire()
        assert [wire.put("jobs", f"{number}") for number in range(20)] == ["STORED"] * 20
        for member in servers.members:
            member.kill()
        old.cut_power("jobs")
        for member in servers.members:
            member.start()
        servers.wait_until_whole()
        new = servers.leader
        assert new not in (None, old)
        assert new is not None and new.wire().drain("jobs") == [str(number) for number in range(20)]
        assert_same_files(servers)


def test_a_leader_alone_loses_in_a_power_cut_what_its_policy_allows_and_goes_on(tmp_path: Path) -> None:
    with cluster(tmp_path, count=2, min_in_sync=1, settings='[default]\nsync_journal = "1h"\n') as servers:
        leader = servers.form()
        follower = others(servers, leader)[0]
        assert leader.wire().put("jobs", "0") == "STORED"
        follower.kill()
        servers.wait_for(lambda: len(leader.status["in_sync"]) == 1, "the follower is taken out")
        wire = leader.wire()
        assert [wire.put("jobs", f"{number}") for number in range(1, 9)] == ["STORED"] * 8
        leader.kill()
        leader.cut_power("jobs")
        leader.start()
        servers.wait_for(lambda: leader.role == "leading", "it leads again")
        assert "the power was cut" in leader.lines
        follower.start()
        servers.wait_until_whole()
        left = leader.wire().drain("jobs")
        assert 0 < len(left) < 9 and left == [str(number) for number in range(len(left))]
        assert_same_files(servers)


def test_a_stop_leaves_nothing_that_a_reboot_loses_and_a_reload_is_noted(tmp_path: Path) -> None:
    with cluster(tmp_path, count=1, min_in_sync=1) as servers:
        leader = servers.form()
        assert leader.wire().put("jobs", "a") == "STORED"
        assert leader.kept.fixed == ALL_FIXED and not leader.kept.unsynced
        leader.config.write_text(leader.config.read_text() + '[default]\nsync_journal = "1h"\n')
        leader.signal(signal.SIGHUP)
        servers.wait_for(lambda: "config.reloaded" in leader.lines, "the configuration is read again")
        assert leader.wire().put("jobs", "b") == "STORED"
        assert leader.kept.unsynced
        leader.stop()
        assert not leader.kept.unsynced and leader.kept.fixed == leader.kept.stream.last.number
        leader.start()
        servers.wait_for(lambda: leader.role == "leading", "it leads again")
        assert leader.kept.unsynced
        assert leader.wire().drain("jobs") == ["a", "b"]


def test_a_spool_with_items_is_not_overwritten_by_joining(tmp_path: Path) -> None:
    with cluster(tmp_path, count=2, min_in_sync=1) as servers:
        first, second = servers.members
        first.start()
        servers.wait_for(lambda: first.call("/cluster/init", {})[0] == 202, "the cluster is made")
        second.spool.mkdir()
        (second.spool / "jobs").write_bytes(b"")
        second.start()
        assert second.wait() == 1
        assert "joining would overwrite them" in second.lines


def test_a_server_that_stood_alone_makes_a_cluster_with_its_items(tmp_path: Path) -> None:
    with cluster(tmp_path, count=2) as servers:
        first = servers[0]
        text = first.config.read_text()
        first.config.write_text(text.partition("[cluster]")[0])
        first.start()
        servers.wait_for(lambda: first.call("/health/live")[0], "it serves alone")
        assert first.wire().put("jobs", "before") == "STORED"
        first.stop()
        first.config.write_text(text)
        leader = servers.form()
        assert leader.wire().get("jobs") == "before"
        assert_same_files(servers)


def test_a_leader_serves_on_without_etcd(tmp_path: Path) -> None:
    with cluster(tmp_path) as servers:
        leader = servers.form()
        wire = leader.wire()
        servers.etcd.kill()
        assert wire.put("jobs", "a") == "STORED"
        servers.wait_for(lambda: leader.status["etcd"], "the leader knows that etcd is gone")
        assert wire.put("jobs", "b") == "STORED"
        assert wire.drain("jobs") == ["a", "b"]


def assert_has_all(servers: Servers, member: MemberServer, items: list[str]) -> None:
    """The member leads, is given the lead otherwise, and has these items and no others."""
    leader = servers.leader
    assert leader is not None
    if leader is not member:
        servers.wait_for(lambda: leader.call("/cluster/handover", {"to": member.name})[0] == 202, "the order is taken")
        assert take_over(servers, leader) is member
    servers.wait_for(lambda: member.wire().put("jobs", "last") == "STORED", "a put at the new leader")
    assert member.wire().drain("jobs") == [*items, "last"]


def test_a_leader_that_is_deposed_while_it_promises_applies_as_a_follower_what_was_acknowledged(tmp_path: Path) -> None:
    """Both elections come at once, when it is woken: it begins to lead an epoch, and the next one is another's."""
    with cluster(tmp_path) as servers:
        old = servers.form()
        deposed, heir = others(servers, old)
        assert deposed.member_id and heir.member_id
        wire = old.wire()
        assert [wire.put("jobs", f"{number}") for number in range(20)] == ["STORED"] * 20
        servers.wait_until_same()
        deposed.signal(signal.SIGSTOP)
        servers.elect(deposed)
        servers.elect(heir)
        deposed.signal(signal.SIGCONT)
        servers.wait_for(lambda: servers.leader is heir, "the second election")
        servers.wait_until_whole()
        items = [f"{number}" for number in range(20)]
        new = heir.wire()
        servers.wait_for(lambda: heir.wire().put("jobs", "20") == "STORED", "a put at the new leader")
        assert new.get("jobs") == "0"
        assert_has_all(servers, deposed, [*items[1:], "20"])
        servers.wait_until_whole()
        assert_same_files(servers)


def test_a_leader_that_is_still_in_recovery_is_deposed_by_an_election_and_nothing_is_lost(tmp_path: Path) -> None:
    with cluster(tmp_path) as servers:
        old = servers.form()
        slow, heir = others(servers, old)
        assert slow.member_id and heir.member_id
        wire = old.wire()
        items = [f"{number}" for number in range(20)]
        assert [wire.put("jobs", item) for item in items] == ["STORED"] * 20
        wire.say("".join([f"set queue{number} 0 0 1\nx\n" for number in range(QUEUES)]))
        assert [wire.line() for _ in range(QUEUES)] == ["STORED"] * QUEUES
        servers.wait_until_same()
        servers.elect(slow)
        servers.wait_for(lambda: slow.role == "taking over", "it recovers its spool")
        slow.signal(signal.SIGSTOP)  # its lease ends, and the other one stands
        servers.wait_for(lambda: servers.key.leader_id.hex() == heir.member_id, "an election")
        slow.signal(signal.SIGCONT)
        servers.wait_for(lambda: servers.leader is heir, "a take-over")
        assert "cluster.leads" not in slow.lines
        servers.wait_until_whole()
        assert_has_all(servers, slow, items)
        servers.wait_until_whole()
        assert_same_files(servers)
