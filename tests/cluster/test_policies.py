"""The policy of a member: which settings make it, and when a reload changes it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from staniel.broker.config.load import parse
from staniel.cluster.core import Policy
from staniel.journal.disk.os_fs import OsFs
from staniel.server.cluster.member_config import policy_of
from staniel.server.cluster.member_file import MemberFile
from tests.cluster.driven import FOLLOWED, Process, write_member

MEMBER = """
[cluster]
name = "test"
member = "b"
listen = "127.0.0.1:1"
advertise = "127.0.0.1:2"
etcd = ["http://127.0.0.1:3"]
"""


@pytest.mark.parametrize(
    ("settings", "policy"),
    [
        ("", Policy.ALWAYS),
        ('default.sync_journal = "1s"', Policy.LAZY),
        ('default.sync_journal = "os"', Policy.LAZY),
        ('queues.brief.sync_journal = "50ms"', Policy.LAZY),
        ('default.sync_journal = "1s"\nqueues.safe.sync_journal = "always"', Policy.LAZY),
        ('workq.port = 22134\nworkq.cmdlog_sync = "always"', Policy.ALWAYS),
        ('workq.port = 22134\nworkq.cmdlog_sync = "interval"', Policy.LAZY),
    ],
)
def test_replies_wait_for_the_leaders_disk_if_those_of_every_queue_do(settings: str, policy: Policy) -> None:
    assert policy_of(parse((settings + MEMBER).encode(), "")) is policy


def test_a_reload_of_a_leader_is_noted_before_any_record_that_follows(tmp_path: Path) -> None:
    paths = write_member(tmp_path, *FOLLOWED)
    with closing(Process(paths)) as process:
        process.lead()
        driver = process.driver
        driver.use_policy(Policy.ALWAYS)
        assert not driver.kept.unsynced
        driver.use_policy(Policy.LAZY)
        assert driver.member.core.config.policy is Policy.ALWAYS, "its replies wait until this is synced, and after"
        driver.member.record([b"change"], driver.record_kind())
        driver.carry_out()
        process.end_syncs()
    kept = MemberFile(OsFs(), paths.own).kept
    assert kept.unsynced == OsFs().boot_id() and not kept.has_lost_power(OsFs().boot_id())


def test_a_reload_of_a_follower_holds_once_it_leads(tmp_path: Path) -> None:
    paths = write_member(tmp_path, *FOLLOWED)
    with closing(Process(paths)) as process:
        process.driver.use_policy(Policy.LAZY)
        assert not process.driver.kept.unsynced
        process.lead()
        process.driver.use_policy(Policy.ALWAYS)
        assert process.driver.member.core.config.policy is Policy.LAZY
    assert MemberFile(OsFs(), paths.own).kept.unsynced == OsFs().boot_id()
