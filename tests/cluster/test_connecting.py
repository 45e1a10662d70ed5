"""A member connects to its leader once etcd has its entry; a port that refuses says that the leader is gone."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest
import trio
import trio.testing

from staniel.server.cluster.member_process import is_refusal, open_link
from tests.support.transcripts import free_port


def error_of(host: str, port: int, seconds_max: float) -> BaseException:
    async def connect() -> None:
        with trio.fail_after(seconds_max):
            await (await trio.open_tcp_stream(host, port)).aclose()

    with pytest.raises((OSError, trio.TooSlowError)) as raised:
        trio.run(connect)
    return raised.value


def test_a_port_that_nothing_listens_on_is_refused() -> None:
    assert is_refusal(error_of("127.0.0.1", free_port(), 60))


def test_a_machine_that_does_not_answer_is_not_a_refusal() -> None:
    with closing(socket.socket()) as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        with closing(socket.create_connection(("127.0.0.1", port))):  # its backlog is full
            assert not is_refusal(error_of("127.0.0.1", port, 0.2))


async def test_no_leader_is_connected_to_before_etcd_has_the_entry_of_this_process(
    mock_clock: trio.testing.MockClock,
) -> None:
    entered, opened = trio.Event(), []

    async def connect(address: str) -> None:
        opened.append(await open_link(address, entered.wait))

    with closing(socket.create_server(("127.0.0.1", 0))) as leader:
        leader.setblocking(False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connect, f"127.0.0.1:{leader.getsockname()[1]}")
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(BlockingIOError):
                leader.accept()
            entered.set()
        leader.accept()[0].close()
        opened[0].close()
