"""PySpark imports every module called pyspark_* and registers its DefaultSource: this one is the live queue, `staniel`.

Must import quickly and must not raise: another source's first use would fail with it.
"""

from __future__ import annotations

import contextlib

with contextlib.suppress(ImportError):
    from staniel.pipeline.sources.live import LiveSource as DefaultSource  # noqa: F401
