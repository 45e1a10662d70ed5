"""What the checker of a hub takes for the server's fault, and what for the client's."""

from __future__ import annotations

from random import Random

import pytest

from staniel.sim.history import SeedPlan
from staniel.sim.hub import operators
from staniel.sim.hub.clients import NetClient, Side
from staniel.sim.hub.net import Link
from staniel.sim.hub.operators import Operator
from staniel.sim.hub.run import HubRun
from staniel.sim.profiles import PROFILES
from staniel.sim.run import history_of
from staniel.sim.violations import Violation

HALF = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"


def hub_run() -> HubRun:
    history = history_of(SeedPlan(0, PROFILES["hub-admin"]))
    assert isinstance(history, HubRun)
    history.ends_silent = False
    return history


def asks(history: HubRun) -> Operator:
    """Return an operator that has asked twice."""
    client = Operator("o1", Link())
    client.send_requests([operators.looks("a", Random(0)) for _ in range(2)])
    client.push(Random(0), all_of_it=True)
    history.clients.append(client)
    return client


def is_ended_within_an_answer(client: NetClient) -> None:
    client.link.to_client += HALF
    client.link.server_ended = True


def test_a_client_without_a_time_out_gets_whole_answers_though_it_has_shut_its_side() -> None:
    history = hub_run()
    client = asks(history)
    client.end()
    is_ended_within_an_answer(client)
    with pytest.raises(Violation, match="o1 hears half an answer"):
        history._hear(client)


@pytest.mark.parametrize("reason", ["it has shut its side", "it has asked for that", ""])
def test_a_time_out_that_a_reload_brings_may_end_a_slow_client_whatever_it_did_before(reason: str) -> None:
    history = hub_run()
    client = asks(history)
    if reason == "it has shut its side":
        client.end()
    client.why_over = reason
    history.ends_silent = True  # as a reload says it
    client.why_over = client.why_over or "silence"
    is_ended_within_an_answer(client)
    history._hear(client)
    assert client.side is Side.GONE and history.clients == []
