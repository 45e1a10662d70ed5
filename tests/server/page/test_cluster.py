"""The page of a cluster's members: a leader shows the cluster above its queues, a follower says whom it follows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.servers import MemberServer, Servers, cluster

pytestmark = [pytest.mark.programs("chromium", "python:playwright", "etcd"), pytest.mark.slow]
WAIT_MS = 30_000


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    with cluster(tmp_path, count=2) as servers:
        leader = servers.form()
        assert leader.wire().put("jobs", "a") == "STORED"
        servers.wait_until_same()
        yield servers


def opened(browser: Any, member: MemberServer) -> Any:
    page = browser.new_page()
    page.set_default_timeout(WAIT_MS)
    page.goto(f"http://127.0.0.1:{member.admin_port}/")
    page.wait_for_selector("#live:not(.wait):not(.off)")
    return page


def test_each_member_shows_the_cluster_and_a_new_leader_its_queues(servers: Servers, browser: Any) -> None:
    first, second = servers.members
    of_leader, of_follower = opened(browser, first), opened(browser, second)
    of_leader.wait_for_selector(".cluster tr:has-text('m0'):has-text('leading')")
    of_leader.wait_for_selector(".cluster tr:has-text('m1'):has-text('following'):has-text('yes')")
    of_leader.wait_for_selector("#queues tr.r:has-text('jobs')")
    of_follower.wait_for_selector("h1:has-text('m1 follows m0')")
    assert of_follower.query_selector("#queues") is None
    assert not of_follower.is_visible("nav")
    assert f"127.0.0.1:{first.port}" in of_follower.text_content("main")
    assert first.call("/cluster/handover", {"to": "m1"})[0] == 202
    of_follower.wait_for_selector("#queues tr.r:has-text('jobs')")
    of_leader.wait_for_selector("h1:has-text('m0 follows m1')")
