"""`staniel handover` waits for a member of the set that cannot take the lead at this moment, and for no other one."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest

from staniel.cluster.status import FollowerStatus, MemberStatus, Role
from staniel.server.cli import cluster
from staniel.server.cli.admin_address import AdminError
from staniel.server.cli.cluster import LOOK_S, REFUSED, RETURN_S_MAX, _order_hand_over
from staniel.server.cli.live_command import Live

WHY = "no other member in sync is 'a'"


class Leader:
    """A leader that refuses orders for this many seconds of the test's clock."""

    def __init__(self, refuses_s: float, follower: FollowerStatus, role: Role = Role.LEADING) -> None:
        self.now = 0.0
        self._refuses_s = refuses_s
        self._status = MemberStatus("c", "", "b", "b", role, 2, "b", "x:1", ["a", "b"], 1, 5, 5, followers=[follower])

    def begin_operation(self, method: str, path: str, body: object) -> dict[str, str]:
        if self.now < self._refuses_s:
            raise AdminError(WHY, REFUSED)
        return {"member": "a" * 32}

    def get(self, path: str) -> object:
        return msgspec.to_builtins(self._status)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def follower(*, in_set: bool) -> FollowerStatus:
    return FollowerStatus("a" * 32, "a", "x:2", in_set, True, "following")


def order(leader: Leader, to: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(cluster, "time", SimpleNamespace(monotonic=leader.monotonic, sleep=leader.sleep))
    return _order_hand_over(Live(leader, as_json=False), to)  # type: ignore[arg-type]


@pytest.mark.parametrize("to", ["a", "a" * 32, ""])
def test_a_member_of_the_set_that_comes_back_is_waited_for(to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader(3.0, follower(in_set=True))
    assert order(leader, to, monkeypatch) == "a" * 32
    assert 3.0 <= leader.now < 3.0 + 2 * LOOK_S


def test_a_member_that_does_not_come_back_is_waited_for_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader(60.0, follower(in_set=True))
    with pytest.raises(AdminError, match=f"{WHY}; waited 10 s"):
        order(leader, "a", monkeypatch)
    assert leader.now < RETURN_S_MAX + 2 * LOOK_S


@pytest.mark.parametrize(
    ("leader", "to"),
    [
        (Leader(60.0, follower(in_set=False)), "a"),
        (Leader(60.0, follower(in_set=True)), "c"),
        (Leader(60.0, follower(in_set=True), Role.HANDING_OVER), "a"),
    ],
)
def test_an_order_that_will_not_be_taken_is_refused_at_once(
    leader: Leader, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AdminError, match=WHY):
        order(leader, to, monkeypatch)
    assert leader.now == 0
