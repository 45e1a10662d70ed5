"""Spark over journals and live queues: the data sources `staniel-journal` and `staniel`, and the jobs of `staniel
pipeline`.

formats/ reads journal files, sources/ has the data sources, lake/ writes Parquet, report/ draws, tasks/ has the jobs.
This file has the functions for notebooks; each loads its imports when it is called. The server never imports this
package; of the rest of Staniel, only its command line (cli.py) does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["activate", "read", "register", "session", "state", "summaries"]


def register(spark: SparkSession) -> None:
    """Register both sources with `spark`, and send this package to its executors if it came as a wheel with --py-files.
    Needed if PySpark cannot find the installed wheel by itself, and to use the session's present `fs.s3a.*` settings.
    """
    from staniel.pipeline.sessions import register_sources, send_wheels

    send_wheels(spark)
    register_sources(spark)


def session(master: str = "local[*]", **settings: Any) -> SparkSession:
    """Return a quiet session that is set up for these sources; see `staniel.pipeline.sessions.build`."""
    from staniel.pipeline.sessions import build

    return build(master, **settings)


def activate(spark: SparkSession) -> None:
    """Make `spark` the session of the calling thread, for threads of your own. Spark looks for the source of a write in
    the active session of the thread, and a new thread has none.
    """
    spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)  # type: ignore[union-attr]


def read(spark: SparkSession, path: str | list[str], **options: str) -> DataFrame:
    """Return a view over the journals under `path`, planned now: a spool, a pattern, or a list of them. Times without a
    zone are in the zone of the session.
    """
    view: DataFrame = spark.read.format("staniel-journal").options(**_in_zone(spark, options)).load(path)
    return view


def summaries(spark: SparkSession, path: str | list[str], **options: str) -> DataFrame:
    """Return a row for each segment of every queue under `path`: counts, times, its tail."""
    return read(spark, path, view="summaries", **options)


def _in_zone(spark: SparkSession, options: dict[str, str]) -> dict[str, str]:
    """Return the options, with the session's zone unless they name one."""
    if any(name.lower() == "timezone" for name in options):
        return options
    return {**options, "timeZone": str(spark.conf.get("spark.sql.session.timeZone"))}


def state(spark: SparkSession, path: str, **options: str) -> DataFrame:
    """Return the contents of every queue under `path`, in delivery order: the view `state`, with one queue's segments
    summarised on all executors and merged as a tree.
    """
    from staniel.pipeline.tasks.summarise import state_of

    view: DataFrame = state_of(spark, path, _in_zone(spark, options))
    return view
