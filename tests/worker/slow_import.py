"""A module that takes as many seconds to import as the environment says."""

from __future__ import annotations

import os
import time

SLOW_IMPORT = "STANIEL_TEST_SLOW_IMPORT"
time.sleep(float(os.environ.get(SLOW_IMPORT, 0)))


def function(data: bytes) -> None:
    pass
