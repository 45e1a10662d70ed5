"""The event loop of a worker in the mode ASYNC. Background tasks of a function cannot end it."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable


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
