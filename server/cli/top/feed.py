"""The thread that receives `/api/events`, and reconnects when the connection ends."""

from __future__ import annotations

import http.client
import threading
from collections import deque
from collections.abc import Callable

import msgspec

from staniel.server.cli.admin_address import AdminError
from staniel.server.cli.admin_client import AdminClient
from staniel.server.cli.top.model import TopEvent

SILENT_S_MAX = 10.0  # the server sends something every 3 s
AGAIN_S = 1.0
LINE_BYTES_MAX = 64 << 20


class Feed:
    """A receiver. `news` has events, and reasons for their absence, in order. The thread calls `wake` after each."""

    def __init__(self, client: AdminClient, wake: Callable[[], None]) -> None:
        self.news: deque[TopEvent | str] = deque()
        self._client = client
        self._wake = wake
        self._decoder = msgspec.json.Decoder(TopEvent)
        self._is_over = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="events", daemon=True).start()

    def stop(self) -> None:
        self._is_over.set()

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                self._listen()
                why = "the server has ended the connection"
            except (AdminError, OSError, http.client.HTTPException, ValueError, msgspec.MsgspecError) as error:
                why = str(error) or type(error).__name__
            self.news.append(why)
            self._wake()
            self._is_over.wait(AGAIN_S)

    def _listen(self) -> None:
        with self._client.stream("/api/events", SILENT_S_MAX) as stream:
            while not self._is_over.is_set() and (line := stream.readline(LINE_BYTES_MAX)):
                if line.startswith(b"data: "):
                    self.news.append(self._decoder.decode(line[6:]))
                    self._wake()
