"""A local Spark session that logs errors only, binds the loopback address only, and uses this Python interpreter."""

from __future__ import annotations

import atexit
import locale
import os
import re
import shutil
import sys
import tempfile
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from staniel.pipeline.lake.stores import settings_of
from staniel.pipeline.requirements import check_master, check_packages, java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER_MEMORY = "1g"
KB_OF_UNITS = {"k": 1, "": 1 << 10, "m": 1 << 10, "g": 1 << 20, "t": 1 << 30}
RESULT_SHARE = 8  # of the memory of the driver
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.pyspark.udf.hideTraceback.enabled": "true",  # an error of a source is its text
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",  # a queue 007 is not a queue 7
    "spark.sql.shuffle.partitions": "8",
    "spark.log.level": "ERROR",
}
LOOPBACK = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}


def build(
    master: str = "local[*]", name: str = "staniel", memory: str = DRIVER_MEMORY, py_files: str = "", **settings: Any
) -> SparkSession:
    """Return a session, or the existing one. `settings` are Spark's, with dots written as double underscores.
    `py_files`: wheels or zips for the executors, separated by commas.

    Raises MissingRequirement, with the command that helps, if Java or PySpark is missing, or no master answers.
    """
    check_packages()
    check_master(master)
    os.environ.setdefault("JAVA_HOME", "")
    os.environ["JAVA_HOME"] = java_home()
    if "UTF-8" not in locale.setlocale(locale.LC_CTYPE).upper().replace("UTF8", "UTF-8"):
        os.environ["LC_ALL"] = "C.UTF-8"  # Java reads and writes names of files as the locale says
    # Workers must be this interpreter: the first python3 on the PATH may have neither pyarrow nor this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    local = master.startswith("local")
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    wanted = SETTINGS | (LOOPBACK if local else {}) | {"spark.driver.memory": memory}
    wanted |= {key.replace("__", "."): str(value) for key, value in settings.items()}
    wanted.setdefault("spark.driver.maxResultSize", result_bytes_max(wanted["spark.driver.memory"]))
    if log := quiet_log():
        wanted.setdefault("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={log}")
    _export_path(wanted)
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in wanted.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    for path in filter(None, py_files.split(",")):
        _send(session, path)
    send_wheels(session)
    if settings_of(session):
        register_sources(session)
    return session


def register_sources(session: SparkSession) -> None:
    """Register both sources; they use the settings of object stores that the session has now."""
    from staniel.pipeline.sources.journal import JournalSource
    from staniel.pipeline.sources.live import LiveSource

    settings = settings_of(session)
    # Classes of other names, so that they are pickled with their settings, and not by reference.
    of_session = {"stores": settings}
    session.dataSource.register(
        type("JournalSourceOfSession", (JournalSource,), of_session) if settings else JournalSource
    )
    session.dataSource.register(LiveSource)


def result_bytes_max(memory: str) -> str:
    """Return how much the driver may collect with that memory, of which Java needs five times as much. Spark's own
    limit is 1 GB whatever the memory, and beyond its memory Java ends without a message.
    """
    match = re.fullmatch(r"(\d+)([kmgt]?)b?", memory.strip().lower())
    if match is None:
        return "1g"  # Spark says what is wrong with it
    return f"{int(match[1]) * KB_OF_UNITS[match[2]] // RESULT_SHARE}k"


def send_wheels(session: SparkSession) -> None:
    """Give the executors the wheels that spark-submit got with --py-files: Spark copies them there and puts them on the
    driver's path, but not on the executors'.
    """
    for path in session.conf.get("spark.submit.pyFiles", "").split(","):  # type: ignore[union-attr]
        if path.endswith(".whl") and path not in _sent:
            _send(session, path.removeprefix("file://"))
            _sent.add(path)


_sent: set[str] = set()


def _send(session: SparkSession, path: str) -> None:
    """Give a package to the executors. Spark puts zips on their path but ignores wheels, which are zips."""
    if not path.endswith(".whl"):
        session.sparkContext.addPyFile(path)
        return
    place = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, place, True)  # executors fetch it as long as this process lives
    zipped = Path(place, Path(path).name.removesuffix(".whl") + ".zip")
    shutil.copyfile(path, zipped)
    session.sparkContext.addPyFile(str(zipped))


def quiet_log() -> str:
    """Return the URL of the log4j2 configuration that logs errors only; "" if this package is inside a wheel."""
    path = Path(str(resources.files("staniel.pipeline").joinpath("log4j2.properties"))).resolve()
    return path.as_uri() if path.is_file() else ""


def _export_path(wanted: dict[str, str]) -> None:
    """Let workers find the packages of a checkout too. Executors elsewhere get the wheel with --py-files."""
    root = str(Path(__file__).resolve().parents[1] / "src")
    if not Path(root, "staniel").exists():
        return
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if root not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, *paths]))
    wanted.setdefault("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])


def close(session: SparkSession) -> None:
    """Stop a session that `build` made, and end its Java process; the next `build` starts a new one."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    session.stop()
    if gateway is not None and (process := getattr(gateway, "proc", None)) is not None:
        gateway.shutdown()
        process.stdin.close()  # the process ends when its standard input does
        process.wait(30)
        SparkContext._gateway = SparkContext._jvm = None
