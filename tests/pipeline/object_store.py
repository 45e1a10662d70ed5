"""An object store on loopback."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import Request, urlopen

from staniel.pipeline.lake.folders import RemoteFolder


@contextmanager
def object_store() -> Iterator[str]:
    """Yield the URL of a folder in a new bucket, with everything that a client needs."""
    from moto.server import ThreadedMotoServer

    os.environ.update(AWS_ACCESS_KEY_ID="testing", AWS_SECRET_ACCESS_KEY="testing")
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        # Its contents belong to the process: an earlier user may have left some.
        urlopen(Request(f"http://{host}:{port}/moto-api/reset", method="POST"), timeout=30).close()
        query = f"scheme=http&endpoint_override={host}%3A{port}&region=us-east-1&allow_bucket_creation=true"
        url = f"s3://testing:testing@spool/journals?{query}"
        RemoteFolder(url).fs.create_dir("spool")
        yield url
    finally:
        server.stop()
