"""One Spark session for all tests of this folder, with little memory, started by the first that asks.

Who needs much memory for Java processes of its own asks for `no_spark` first, and stands last in its file: the next
session takes ten seconds to start, and its first queries as long again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from staniel import pipeline
from staniel.pipeline.sessions import close, quiet_log
from staniel.pipeline.tasks import archive as archive_module
from staniel.pipeline.tasks.archive import archive
from tests.pipeline.object_store import object_store

ROOT = Path(__file__).resolve().parents[2]
# Compiling queries and Java's own code for rows by the hundred takes longer than running them.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SMALL_DATA = {
    "spark__sql__codegen__wholeStage": "false",
    "spark__sql__codegen__factoryMode": "NO_CODEGEN",
    "spark__sql__adaptive__enabled": "false",
}


class Holder:
    """The session that runs, if one does."""

    def __init__(self, warehouse: Path) -> None:
        self.warehouse = warehouse
        self.session: SparkSession | None = None

    def get(self) -> SparkSession:
        if self.session is None:
            settings = {"spark__sql__warehouse__dir": str(self.warehouse), "spark__sql__shuffle__partitions": 2}
            java = f"{SHORT_LIVED} -Dlog4j2.configurationFile={quiet_log()}"
            self.session = pipeline.session("local[2]", spark__driver__extraJavaOptions=java, **settings, **SMALL_DATA)
        return self.session

    def close(self) -> None:
        if self.session is not None:
            close(self.session)
            self.session = None


@pytest.fixture(scope="session")
def holder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Holder]:
    held = Holder(tmp_path_factory.mktemp("warehouse"))
    yield held
    held.close()


@pytest.fixture
def spark(holder: Holder) -> SparkSession:
    return holder.get()


@pytest.fixture
def no_spark(holder: Holder) -> None:
    """No Java process of ours runs."""
    holder.close()


@pytest.fixture
def archived(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[int, list[str]]]:
    """Runs the archive job with its tasks in this process; how many rows it added, and what it warned of."""
    monkeypatch.setattr(archive_module, "run", lambda spark, tasks, work, _: list(map(work, tasks)))
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))

    def job(spool: Path, out: str = "", **given: str) -> tuple[int, list[str]]:
        warned: list[str] = []
        out = out or str(tmp_path / "lake")
        return archive(spark, str(spool), out, given, lambda told: None, warned.append), warned

    return job


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An object store on loopback; the URL of a bucket in it."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with object_store() as url:
        yield url


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make wheel` builds, by the builder that is installed."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--wheel-dir", str(out), str(ROOT)]
    env = {**os.environ, "STANIEL_PURE": "1"}
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    (found,) = out.glob("*.whl")
    return found
