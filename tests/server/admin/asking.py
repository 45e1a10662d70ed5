"""A client of the admin listener for tests, on http.client."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from typing import Any


class Reply:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def socket_of(spool: Path) -> str:
    """The abstract socket of a spool."""
    found = (spool / ".staniel").stat()
    return f"\0staniel-admin-{found.st_dev}-{found.st_ino}"


class SpoolConnection(http.client.HTTPConnection):
    def __init__(self, spool: Path) -> None:
        super().__init__("staniel")
        self._spool = spool

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(socket_of(self._spool))


class Operator:
    """`where`: a port of this machine, or the spool of a server, whose socket is asked."""

    def __init__(self, where: int | Path) -> None:
        self._where = where

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Reply:
        """One request on a connection of its own; a POST is JSON unless a header says otherwise."""
        if isinstance(self._where, Path):
            connection: http.client.HTTPConnection = SpoolConnection(self._where)
        else:
            connection = http.client.HTTPConnection("127.0.0.1", self._where, timeout=60)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if method not in ("GET", "HEAD"):
            sent.setdefault("content-type", "application/json")
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body)
            connection.request(method, path, data, sent)
            answer = connection.getresponse()
            return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Any:
        """The JSON of a good answer."""
        reply = self.ask("GET", path, **headers)
        assert reply.status == 200, reply.body
        return reply.json

    def post(self, path: str, body: object = None, **headers: str) -> Any:
        reply = self.ask("POST", path, body, **headers)
        assert reply.status == 200, reply.body
        return reply.json
