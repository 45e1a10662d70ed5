"""Users, passwords and TLS, by kombu's own parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.client.kombu.conftest import LONG_S
from tests.support.guarded import PASSWORD, TOKEN, guarded

pytestmark = pytest.mark.programs("python:kombu")


@pytest.mark.parametrize("secret", [PASSWORD, TOKEN])
def test_a_user_of_the_url_logs_in_under_tls(kombu: Any, tmp_path: Path, secret: str) -> None:
    large = bytes(range(256)) * 4000
    with guarded(tmp_path, "memcached") as place:
        options = {"port": place.server.second_port, "userid": "analyst", "password": secret}
        with kombu.Connection("staniel://127.0.0.1", ssl={"ca_certs": str(place.ca)}, **options) as connection:
            assert secret not in connection.as_uri()
            producer = connection.Producer()
            producer.publish(large, routing_key="jobs", content_type="data", content_encoding="binary")
            got: list[Any] = []
            with kombu.Consumer(connection, [kombu.Queue("jobs")], on_message=got.append):
                connection.drain_events(timeout=LONG_S)
            assert got[0].body == large
            got[0].ack()
            with pytest.raises(connection.channel_errors, match="may not write to other"):
                producer.publish("x", routing_key="other")


def test_a_wrong_secret_is_an_error_that_is_not_retried(kombu: Any, tmp_path: Path) -> None:
    with guarded(tmp_path, "memcached") as place:
        options = {"port": place.server.port, "userid": "analyst", "password": "wrong"}
        connection = kombu.Connection("staniel://127.0.0.1", **options)
        with pytest.raises(connection.channel_errors, match="refuses the login of analyst"):
            connection.connect()
        connection.release()
