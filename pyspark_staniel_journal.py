"""The hook by which PySpark finds `staniel-journal`: it imports every module called pyspark_* and registers its
DefaultSource.

It must import quickly and must not raise: another source's first use would fail with it.
"""

from __future__ import annotations

import contextlib

with contextlib.suppress(ImportError):
    from staniel.pipeline.sources.journal import JournalSource as DefaultSource  # noqa: F401
