"""`staniel cluster`, `handover` and `cluster restore-etcd`, as docs/replication.md shows them, on real servers."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from staniel.cluster.durable import Fitness, Joined, Kept, Marked, Promised
from staniel.cluster.key import Key
from staniel.cluster.restoring import Choice, MemberPlace, choose_leader, decode_place, place_of
from staniel.journal.membership import Standing
from tests.cluster.servers import MemberServer, Servers, cluster
from tests.cluster.test_etcd import coded
from tests.support.examples import EXAMPLES
from tests.support.process import run_staniel, running
from tests.support.wire import Wire

A, B, C, D = (letter * 16 for letter in (b"\xaa", b"\xbb", b"\xcc", b"\xdd"))
Done = subprocess.CompletedProcess[str]


def ask(member: MemberServer, *words: str) -> Done:
    done = run_staniel(*words, "--config", str(member.config))
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_the_examples_of_the_help_run_in_this_file() -> None:
    source, config = Path(__file__).read_text(), "--config /etc/staniel/staniel.toml"
    calls = {
        "cluster status": ("cluster",), "cluster init": ("cluster", "init"), "cluster place": ("cluster", "place"),
        "cluster restore-etcd": ("cluster", "restore-etcd"), "handover": ("handover",),
    }  # fmt: skip
    for words, call in calls.items():
        assert EXAMPLES[words][0].partition(f" {config}")[0] == f"staniel {' '.join(call)}"
        assert f"ask(first, {str(call)[1:-1].rstrip(',')}".replace("'", '"') in source
    assert EXAMPLES["handover"][1].endswith("--to m2")


def put(member: MemberServer, data: str) -> str:
    with closing(member.wire()) as wire:
        return wire.put("q", data)


def get(member: MemberServer) -> str | None:
    with closing(member.wire()) as wire:
        return wire.get("q")


class Machines:
    """Two members, and their etcd, which may be lost."""

    def __init__(self, folder: Path, servers: Servers) -> None:
        self.folder, self.servers, self.etcd = folder, servers, servers.etcd
        self.first, self.second = servers.members

    def stop(self) -> None:
        """Stop all servers: their leases end with them."""
        for member in self.servers.members:
            if member.is_running:
                member.signal(signal.SIGTERM)
                assert member.wait() == 0, member.lines

    def lose_etcd(self) -> None:
        """Have an etcd in its place that has nothing."""
        self.etcd.kill()
        shutil.rmtree(self.etcd.folder / self.etcd.name)
        self.etcd.spawn()
        assert self.etcd.wait()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with cluster(tmp_path, 2, min_in_sync=1) as servers:
        yield Machines(tmp_path, servers)


@pytest.mark.programs("etcd")
@pytest.mark.slow
def test_a_cluster_is_made_shown_and_handed_over(machines: Machines) -> None:
    first, second, servers = machines.first, machines.second, machines.servers
    first.start()
    servers.wait_for(lambda: first.role == "waiting" and first.status["why"].startswith("there is no"), "it waits")
    before = ask(first, "cluster")
    assert before.returncode == 3 and "no leader is known, 0 in sync" in before.stdout
    made = ask(first, "cluster", "init")
    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith("cluster test is made, led by m0 (127.0.0.1:") and "start the other" in made.stdout
    again = ask(first, "cluster", "init")
    assert again.returncode == 1 and "belongs to a cluster already" in again.stderr
    assert "no other member is in sync" in ask(first, "handover").stderr

    second.start()
    servers.wait_until_whole()
    refused = ask(second, "cluster", "init")
    assert refused.returncode == 1 and "already" in refused.stderr
    shown = ask(first, "cluster")
    assert shown.returncode == 0, shown.stderr
    head, columns, *rows = shown.stdout.splitlines()
    assert head == f"cluster test: epoch 1, led by m0 (127.0.0.1:{first.port}), 2 in sync"
    assert columns.split()[:4] == ["MEMBER", "ROLE", "IN", "SYNC"]
    assert [row.split()[:3] for row in rows] == [["m0", "leading", "yes"], ["m1", "following", "yes"]]
    reply = json.loads(ask(first, "cluster", "--json").stdout)
    assert reply["role"] == "leading" and reply["followers"][0]["lag_records"] >= 0
    servers.wait_for(lambda: second.status["leader_name"] == "m0", "etcd has told it of the other")
    head, note, _, *rows = ask(second, "cluster").stdout.splitlines()
    assert head == f"cluster test: epoch 1, led by m0 (127.0.0.1:{first.port}), 2 in sync"
    assert note == "as etcd has it; the leader knows who is connected, and how far behind"
    assert [row.split()[:3] for row in rows] == [["m1", "following", "yes"], ["m0", "leads", "yes"]]

    assert put(first, "an item") == "STORED"
    assert "is 'm7'" in ask(first, "handover", "--to", "m7").stderr
    assert "does not lead" in ask(second, "handover").stderr
    moved = ask(first, "handover", "--to", "m1")
    assert moved.returncode == 0, moved.stderr
    assert moved.stdout == f"m1 leads (127.0.0.1:{second.port}), epoch 2\n"
    servers.wait_until_whole()
    assert get(second) == "an item"
    back = ask(second, "handover", "--json")
    assert json.loads(back.stdout)["epoch"] == 3

    servers.wait_until_whole()
    assert "'m1' runs: stop it first" in ask(first, "cluster", "remove", "m1").stderr
    assert "no member is 'm7'" in ask(first, "cluster", "remove", "m7").stderr
    assert "does not lead" in ask(second, "cluster", "remove", "m0").stderr
    second.stop()
    servers.wait_for(lambda: first.status["in_sync"] == [first.member_id], "it leaves the set")
    assert [other["name"] for other in first.status["followers"]] == ["m1"]
    assert ask(first, "cluster", "remove", "m1").stdout == "m1 is removed\n"
    assert first.status["followers"] == []
    second.start()
    servers.wait_until_whole()
    assert [other["name"] for other in first.status["followers"]] == ["m1"]


@pytest.mark.programs("etcd")
@pytest.mark.slow
def test_a_lost_etcd_gets_the_key_anew_from_the_members(machines: Machines) -> None:
    first, second, servers = machines.first, machines.second, machines.servers
    assert servers.form() is first
    for number in range(5):
        assert put(first, f"item {number}") == "STORED"
    servers.wait_until_whole()
    of_running = ask(first, "cluster", "place")
    assert of_running.returncode == 2 and "stop it first" in of_running.stderr
    second.kill()
    assert put(first, "item 5") == "STORED"  # it waits until the second is out of the set
    machines.stop()
    machines.lose_etcd()

    other = machines.folder / "m1.json"
    other.write_text(ask(second, "cluster", "place").stdout)
    place = decode_place(other.read_text().strip())
    assert isinstance(place, MemberPlace) and (place.cluster, place.name, place.unfit) == ("test", "m1", "")
    asked = ask(second, "cluster", "restore-etcd", str(other))
    assert asked.returncode == 2 and "give --yes" in asked.stderr, asked
    own = machines.folder / "m0.json"
    own.write_text(ask(first, "cluster", "place").stdout)
    written = ask(second, "cluster", "restore-etcd", str(own), str(other), "--yes")
    assert written.returncode == 0, written.stderr
    assert "led by m0, alone in sync" in written.stdout and "start m0 first" in written.stdout

    first.start()
    servers.wait_for(lambda: first.role == "leading", "the one that has most leads")
    running_one = ask(first, "cluster", "restore-etcd", str(other), "--yes")
    assert running_one.returncode == 2 and "stop it first" in running_one.stderr
    second.start()
    servers.wait_until_whole()
    assert ask(first, "handover").returncode == 0
    servers.wait_until_whole()
    items = [get(second) for _ in range(7)]
    assert items == [*(f"item {number}" for number in range(6)), None]


@pytest.mark.programs("etcd")
@pytest.mark.slow
def test_restoring_is_refused_where_it_could_lose_something(machines: Machines) -> None:
    first, second, servers = machines.first, machines.second, machines.servers
    servers.form()
    machines.stop()
    entry = coded(b"/staniel/test/members/" + A.hex().encode())
    machines.etcd.call("kv/put", key=entry, value="")
    alive = ask(first, "cluster", "restore-etcd", "--yes")
    assert alive.returncode == 2 and f"members are alive: {A.hex()}" in alive.stderr
    machines.etcd.call("kv/deleterange", key=entry)
    missing = ask(first, "cluster", "restore-etcd", "--yes")
    assert missing.returncode == 2 and "places are not given" in missing.stderr
    assert missing.stderr.count(json.loads(ask(second, "cluster", "place").stdout)["id"]) == 1
    other = machines.folder / "other.json"
    other.write_text(ask(second, "cluster", "place").stdout.replace('"test"', '"prod"'))
    assert "is of the cluster prod" in ask(first, "cluster", "restore-etcd", str(other), "--yes").stderr
    other.write_text("{}")
    assert "not a place" in ask(first, "cluster", "restore-etcd", str(other), "--yes").stderr
    lost = json.loads(ask(second, "cluster", "place").stdout)["id"]
    assert ask(first, "cluster", "restore-etcd", "--without", lost, "--yes").returncode == 0


def test_a_server_that_stands_alone_says_so(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        for words in (("cluster",), ("cluster", "init"), ("handover",)):
            said = run_staniel(*words, "--spool", str(server.spool))
            assert said.returncode == 1 and "stands alone" in said.stderr, said
    (tmp_path / "plain.toml").write_text(f"[server]\nspool = '{tmp_path}/spool'\n")
    for command in ("place", "restore-etcd"):
        said = run_staniel("cluster", command, "--config", str(tmp_path / "plain.toml"))
        assert said.returncode == 2 and "has no [cluster]" in said.stderr


def place(member: bytes, last: tuple[int, int], promised: int, unfit: str = "", revision: int = 5) -> MemberPlace:
    name = member[:1].hex()
    return MemberPlace("test", C.hex(), member.hex(), name, f"{name}:1", promised, revision, *last, unfit)


def test_the_member_with_the_last_record_of_the_newest_epoch_leads() -> None:
    places = [place(A, (3, 90), 3, revision=9), place(B, (4, 40), 4), place(D, (4, 41), 7, "HALF")]
    choice = choose_leader(places, None, frozenset())
    assert choice == Choice(places[1], Key(C, 8, B, "bb:1", (B,)), 9)
    short = choose_leader([place(A, (4, 40), 4, "SHORT"), place(B, (4, 40), 4)], Key(C, 11, A, "", (A,)), frozenset())
    assert isinstance(short, Choice) and (short.leader.name, short.key.epoch) == ("bb", 12)


@pytest.mark.parametrize(
    ("places", "current", "why"),
    [
        ([], None, "no member's place"),
        ([place(A, (1, 1), 1), place(A, (1, 2), 1)], None, "twice"),
        ([place(A, (1, 1), 1)], Key(D, 1, A, "", (A,)), "different clusters"),
        ([place(A, (1, 1), 1)], Key(C, 1, A, "", (A, B)), "places are not given: bb"),
        ([place(A, (1, 1), 1, "HALF")], None, "marked HALF"),
    ],
)
def test_no_leader_is_chosen_where(places: list[MemberPlace], current: Key | None, why: str) -> None:
    said = choose_leader(places, current, frozenset())
    assert isinstance(said, str) and why in said
    if current is not None and current.members == (A, B):
        assert isinstance(choose_leader(places, current, frozenset([B.hex()])), Choice)


def test_a_place_is_what_the_members_file_says_and_is_read_back() -> None:
    kept = Kept()
    kept.member_id = A
    assert place_of(kept, "test", "m", "m:1") == "it has not joined a cluster yet"
    for entry in (Joined(C, 1), Promised(4), Marked(Fitness.SHORT)):
        assert kept.apply(entry)
    found = place_of(kept, "test", "m", "m:1")
    assert isinstance(found, MemberPlace) and (found.promised, found.place, found.unfit) == (4, (0, 1), "SHORT")
    assert decode_place(msgspec.json.encode(found).decode()) == found
    assert isinstance(decode_place("[" * 10_000), str) and isinstance(decode_place('{"id": "x"}'), str)


@pytest.mark.programs("etcd")
@pytest.mark.slow
def test_the_spools_of_members_are_backed_up_verified_and_left_alone(machines: Machines) -> None:
    first, second, servers = machines.first, machines.second, machines.servers
    servers.form()
    assert put(first, "an item") == "STORED"
    servers.wait_until_whole()
    backups, restored = str(machines.folder / "backups"), machines.folder / "restored"
    taken = ask(first, "backup", backups)
    assert taken.returncode == 0, taken.stderr
    first.kill()
    second.kill()
    for member, standing in ((first, Standing.MEMBER), (second, Standing.FOLLOWER)):
        verified = run_staniel("journal", "verify", str(member.spool))
        assert verified.returncode == 0, verified
        assert (standing.value in verified.stderr) is (standing is Standing.FOLLOWER)
        for words in (("serve", "--spool", str(member.spool), "--port", "0"),
                      ("journal", "convert", str(member.spool), "--to", "libkestrel", "--queue", "q")):  # fmt: skip
            refused = run_staniel(*words)
            assert refused.returncode and standing.value in refused.stderr, refused
    assert run_staniel("restore", backups, str(restored)).returncode == 0
    assert not (restored / ".staniel/member").exists()
    with running(restored.parent / "alone", "--spool", str(restored)) as server, Wire(server.address) as wire:
        assert wire.get("q") == b"an item"


@pytest.mark.programs("etcd")
@pytest.mark.slow
def test_a_backup_of_a_cluster_becomes_another_cluster_with_new_ids(machines: Machines) -> None:
    first, second, servers = machines.first, machines.second, machines.servers
    servers.form()
    assert put(first, "an item") == "STORED"
    backups, old = str(machines.folder / "backups"), {first.member_id, second.member_id}
    assert ask(first, "backup", backups).returncode == 0
    assert put(first, "behind the backup") == "STORED"
    machines.stop()
    for member in (first, second):
        shutil.rmtree(member.spool)
    assert run_staniel("restore", backups, str(first.spool)).returncode == 0
    first.start()  # under the name of the old cluster, whose key is there still
    assert first.wait() != 0 and "joining would overwrite" in first.lines
    for member in (first, second):
        member.config.write_text(member.config.read_text().replace('name = "test"', 'name = "test-2"'))
    first.start()
    second.start()
    servers.wait_for(lambda: first.call("/cluster/init", {})[0] == 202, "the cluster is made")
    servers.wait_until_whole()
    assert old.isdisjoint(first.status["in_sync"]) and len(first.status["in_sync"]) == 2
    assert get(first) == "an item" and get(first) is None
