"""What tests of backups share."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.request import Request, urlopen

import pytest


@pytest.fixture
def bucket() -> Iterator[dict[str, str]]:
    """An object store on loopback with a bucket `store`; the environment that leads there."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    urlopen(Request(f"http://{host}:{port}/moto-api/reset", method="POST"), timeout=30).close()
    found = {
        "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
    }  # fmt: skip
    client = boto3.client(
        "s3", endpoint_url=found["AWS_ENDPOINT_URL"], aws_access_key_id="testing", aws_secret_access_key="testing",
        region_name="us-east-1",
    )  # fmt: skip
    client.create_bucket(Bucket="store")
    client.close()
    yield found
    server.stop()
