"""The metrics and the health of a member, as its status says them."""

from __future__ import annotations

import subprocess

import pytest
from msgspec import structs

from staniel.broker.admin.health import DAY_MS
from staniel.broker.admin.reasons import ReasonName, Severity
from staniel.broker.config.schema import ClusterSettings
from staniel.broker.version import VERSION
from staniel.cluster.status import FollowerStatus, MemberStatus, Role
from staniel.compiled import BUILD
from staniel.server.clock import wall_ms
from staniel.server.cluster.app import member_greeting
from staniel.server.cluster.member_metrics import health_of, metrics_of, metrics_of_follower, reasons_of

A, B = "aa", "bb"
FOLLOWER = FollowerStatus(B, "m2", "h:2", True, True, "following", 7, 900, 1500, True)
LEADING = MemberStatus("orders", "c", A, "m1", Role.LEADING, 4, A, "h:1", [A, B], 2, 10, 3, followers=[FOLLOWER])
FOLLOWING = structs.replace(LEADING, id=B, name="m2", role=Role.FOLLOWING, followers=[])


def sample(text: str, name: str, labels: str = "") -> float:
    start = f'staniel_cluster_{name}{{cluster="orders"{labels}}} '
    (value,) = [line.removeprefix(start) for line in text.splitlines() if line.startswith(start)]
    return float(value)


def names_of(status: MemberStatus) -> list[ReasonName]:
    return [reason.name for reason in reasons_of(status)]


def test_a_leader_tells_the_lag_of_each_member() -> None:
    text = metrics_of(structs.replace(LEADING, held_replies=5, copies=1))
    assert sample(text, "role", ',role="leading"') == 1
    assert sample(text, "role", ',role="following"') == 0
    of_member = ',member="m2"'
    lag = [sample(text, f"member_lag_{unit}", of_member) for unit in ("records", "bytes", "seconds")]
    assert lag == [7, 900, 1.5]
    assert sample(text, "member_in_sync", of_member) == 1
    assert (sample(text, "held_replies"), sample(text, "copies"), sample(text, "epoch")) == (5, 1, 4)


def test_a_member_without_a_name_or_a_connection_has_no_lag() -> None:
    gone = FollowerStatus("dd", "", "", False, False, "gone")
    text = metrics_of(structs.replace(LEADING, followers=[gone]))
    assert sample(text, "member_connected", ',member="dd"') == 0
    assert "member_lag_records{" not in text


@pytest.mark.programs("promtool")
@pytest.mark.parametrize("status", [LEADING, FOLLOWING], ids=["leading", "following"])
def test_promtool_finds_nothing_wrong(status: MemberStatus) -> None:
    strange = structs.replace(status, cluster='a"b', name="\n\\")
    text = metrics_of(strange) if status is LEADING else metrics_of_follower(strange, 5, None)
    ran = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout + ran.stderr) == (0, "")


def test_a_leader_whose_set_is_too_small_refuses() -> None:
    assert names_of(LEADING) == []
    assert names_of(structs.replace(LEADING, in_sync=[A])) == [ReasonName.SET_TOO_SMALL]


def test_a_leader_names_the_members_that_are_not_in_sync() -> None:
    gone = FollowerStatus("dd", "m3", "h:3", False, False, "gone")
    (reason,) = reasons_of(structs.replace(LEADING, followers=[FOLLOWER, gone]))
    assert reason.name is ReasonName.MEMBERS_MISSING and reason.severity is Severity.WARNING
    assert reason.text == "m3: not in sync; 2 of 3 members are"


def test_a_member_says_what_is_wrong_with_it_and_with_etcd() -> None:
    assert names_of(FOLLOWING) == [ReasonName.NOT_LEADER]
    assert names_of(structs.replace(FOLLOWING, unfit="half", etcd="no")) == [
        ReasonName.ETCD_UNREACHABLE,
        ReasonName.UNFIT,
        ReasonName.NOT_LEADER,
    ]
    assert names_of(structs.replace(LEADING, etcd="no", etcd_restored="older")) == [ReasonName.ETCD_RESTORED]


def test_a_certificate_of_a_member_that_expires_is_a_reason() -> None:
    assert names_of(structs.replace(LEADING, certificate_ends_ms=wall_ms() + 15 * DAY_MS)) == []
    assert names_of(structs.replace(LEADING, certificate_ends_ms=wall_ms() + 13 * DAY_MS)) == [
        ReasonName.CERTIFICATE_EXPIRES
    ]
    assert names_of(structs.replace(LEADING, certificate_ends_ms=1)) == [ReasonName.CERTIFICATE_EXPIRES]


@pytest.mark.parametrize(
    ("change", "is_ready"),
    [({}, True), ({"unfit": "half"}, False), ({"role": Role.COPYING}, False), ({"in_sync": [A]}, False)],
)
def test_a_follower_serves_no_client_and_is_a_ready_member_if_it_is_whole(
    change: dict[str, object], *, is_ready: bool
) -> None:
    status = structs.replace(FOLLOWING, **change)
    assert not health_of(status, is_for_member=False).ready
    assert health_of(status, is_for_member=True).ready is is_ready


def test_a_member_names_its_version_and_its_build() -> None:
    for is_for_member in (False, True):
        assert health_of(FOLLOWING, is_for_member=is_for_member).build == BUILD
    info = f'staniel_build_info{{version="{VERSION}",build="{BUILD}"}} 1\n'
    assert metrics_of_follower(FOLLOWING, 5, None).count(info) == 1
    settings = ClusterSettings(name="orders", member="m2", listen="10.0.0.2:7000")
    assert member_greeting(settings, ["10.0.0.2:22133", "10.0.0.2:80"]) == (
        f"staniel {VERSION}, member m2 of orders, listens on 10.0.0.2:22133, 10.0.0.2:80, "
        f"for members on 10.0.0.2:7000 ({BUILD})"
    )
