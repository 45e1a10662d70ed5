"""The event loop of a worker in the mode ASYNC. Background tasks of a function cannot end it."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

import anyio
from anyio.from_thread import BlockingPortal


class LastingLoop(asyncio.SelectorEventLoop):
    """A loop that continues after SystemExit and KeyboardInterrupt. asyncio lets them through, so a task or a callback
    of one function would end the functions of all lanes. `tell` gets the traceback.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._tell = tell

    def run_forever(self) -> None:
        """Run until `stop`. What was due beside the callback that raised is still due."""
        while True:
            try:
                super().run_forever()
            except (SystemExit, KeyboardInterrupt):
                self._tell(traceback.format_exc())
            else:
                return


class LoopThread:
    """A `LastingLoop` in a daemon thread; other threads call functions on it through `portal`.

    If functions do not end, `end` is not called, and the thread stays until the program exits. anyio's
    start_blocking_portal is a generator: Python closes it at that exit, when the modules that it calls are gone.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        started: Future[BlockingPortal] = Future()
        self._thread = threading.Thread(target=self._run, args=[started], daemon=True, name="staniel-loop")
        self._thread.start()
        self.portal = started.result()

    def end(self) -> None:
        """Wait until the loop has ended."""
        with suppress(RuntimeError):  # it has ended by itself
            self.portal.call(self.portal.stop)
        self._thread.join()

    def _run(self, started: Future[BlockingPortal]) -> None:
        async def serve() -> None:
            async with BlockingPortal() as portal:
                started.set_result(portal)
                await portal.sleep_until_stopped()

        try:
            anyio.run(serve, backend_options={"loop_factory": lambda: LastingLoop(self._tell)})
        except BaseException as error:
            if not started.done():
                started.set_exception(error)
