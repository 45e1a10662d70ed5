"""Spark over journals and live queues: the data sources `staniel-journal` and `staniel`, and the jobs of `staniel
pipeline`.

formats/ reads journal files, sources/ are the data sources, lake/ writes Parquet, report/ draws, tasks/ are the jobs.
This file has the functions for notebooks; each loads what it needs when it is called. The server never imports this
package, and nothing but its command line (cli.py) does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["register", "session", "state", "summaries"]


def register(spark: SparkSession) -> None:
    """Register both sources with `spark`, and send this package to its executors if it came as a wheel with --py-files.
    Only needed where PySpark cannot find the installed wheel by itself.
    """
    from staniel.pipeline.sessions import send_wheels
    from staniel.pipeline.sources.journal import JournalSource
    from staniel.pipeline.sources.live import LiveSource

    send_wheels(spark)
    spark.dataSource.register(JournalSource)
    spark.dataSource.register(LiveSource)


def session(master: str = "local[*]", **settings: Any) -> SparkSession:
    """A quiet session that is set up for these sources; see `staniel.pipeline.sessions.build`."""
    from staniel.pipeline.sessions import build

    return build(master, **settings)


def summaries(spark: SparkSession, path: str, **options: str) -> DataFrame:
    """One row a segment of every queue under `path`: counts, times, its tail."""
    found: DataFrame = spark.read.format("staniel-journal").options(view="summaries", **options).load(path)
    return found


def state(spark: SparkSession, path: str, **options: str) -> DataFrame:
    """What every queue under `path` holds, in delivery order: the view `state`, with one queue's segments summarised on
    all executors and merged as a tree."""
    from staniel.pipeline.tasks.summarise import state_of

    found: DataFrame = state_of(spark, path, options)
    return found
