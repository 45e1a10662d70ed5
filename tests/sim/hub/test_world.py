"""The driver of a hub, judged without a history."""

from __future__ import annotations

from random import Random

import pytest

from staniel.broker.session import REQUESTS_PER_TURN
from staniel.sim.disk.disk import Disk
from staniel.sim.hub.world import HubWorld
from staniel.sim.world import START_MS

PLACES = 1
PIPELINE = b"get a\r\n" * (2 * REQUESTS_PER_TURN) + b"quit\r\n"


@pytest.mark.parametrize("seed", range(5))
def test_no_time_passes_while_a_client_outside_can_have_a_place_that_has_become_free(seed: int) -> None:
    disk = Disk()
    disk.make_folder("s")
    disk.sync_folder("")
    world = HubWorld("", disk, START_MS, Random(seed), PLACES)
    inside = world.connect()
    inside.to_server += PIPELINE
    inside.client_ended = True
    world.turn()
    world.turn()
    outside = world.connect()
    outside.to_server += b"get b/t=50\r\n"
    assert inside.server is not None and not world.hub.is_idle, "the rest of the pipeline takes turns of its own"
    world.turn_until_idle(START_MS + 1000)
    assert inside.server_ended and outside.to_client == b"END\r\n"
