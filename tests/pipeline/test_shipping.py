"""The ways to bring the pipeline to a cluster (docs/spark-cluster.md), each on a real one of this machine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from staniel.pipeline.requirements import java_home
from tests.pipeline.conftest import SHORT_LIVED
from tests.pipeline.spools import contents, history, replayed, write
from tests.pipeline.test_drain import server_address
from tests.pipeline.test_live_source import taken
from tests.pipeline.test_where_it_runs import ON_EXECUTORS, QUICK, ROOT
from tests.support.process import die_with_the_tests, running, until

INSTALLED = Path(next(path for path in sys.path if Path(path, "pyspark").is_dir()))
BIN = INSTALLED / "pyspark" / "bin"
MASTER, WORKER = (f"org.apache.spark.deploy.{name}" for name in ("master.Master", "worker.Worker"))
CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"
SETTINGS = {
    **QUICK, "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false",
    "spark.sql.python.filterPushdown.enabled": "true", "spark.executor.memory": "512m", "spark.driver.memory": "512m",
}  # fmt: skip


START_SECONDS_MAX = 400.0  # it takes two; the machine may be busy


def python_with(folder: Path, packages: tuple[str, ...]) -> Path:
    """A Python that has these packages of ours, by links, and nothing else."""
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in packages:
        if (INSTALLED / name).exists():
            (site / name).symlink_to(INSTALLED / name)
    return folder / "bin" / "python"


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    env = {**os.environ, "JAVA_HOME": java_home(), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(tmp_path)}
    env |= {"SPARK_WORKER_DIR": str(tmp_path / "work"), "SPARK_NO_DAEMONIZE": "1"}
    env.pop("PYTHONPATH", None)
    return env | more


class Daemon:
    """A Java process of Spark's, which ends with its `with` block."""

    def __init__(self, log: Path, command: list[str], env: dict[str, str]) -> None:
        self.log, self.command, self.env = log, command, env

    def __enter__(self) -> Daemon:
        with self.log.open("wb") as log:
            self.child = subprocess.Popen(
                self.command, env=self.env, stdout=log, stderr=log, preexec_fn=die_with_the_tests
            )
        return self

    def __exit__(self, *_: object) -> None:
        self.child.kill()
        self.child.wait(30)

    def said(self, pattern: str) -> str:
        """The group of `pattern`, once a line of the log has it."""
        wanted = re.compile(pattern)
        until(lambda: wanted.search(self.log.read_text()) or self.child.poll() is not None, START_SECONDS_MAX)
        line = wanted.search(self.log.read_text())
        assert line, self.log.read_text()[-3000:]
        return line[1]


class Submitted:
    """What tests/pipeline/shipped.py has found, and the items that it has put."""

    def __init__(self, tmp_path: Path, command: list[str], env: dict[str, str]) -> None:
        paths = write(tmp_path / "spool", "jobs", history(31, 600), 3)
        job = [str(ROOT / "tests" / "pipeline" / "shipped.py"), str(tmp_path / "spool")]
        with running(tmp_path / "server") as server:
            job += [server_address(server), str(tmp_path / "guard")]
            ran = subprocess.run([*command, *job], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=900)
            (told,) = [line for line in ran.stdout.splitlines() if line.startswith("told ")] or [""]
            loud = [line for line in ran.stderr.splitlines() if " INFO " not in line]
            assert told, "\n".join([ran.stdout[-1000:], *loud[-60:]])
            found: dict[str, Any] = json.loads(told.removeprefix("told "))
            self.tasks: list[dict[str, str]] = found["tasks"]
            assert found["states"] == len(contents(replayed(paths)))
            once = Counter(str(number) for number in range(400))
            for queue in ("jobs", "keyed"):
                assert Counter(item.data.decode() for item in taken(server_address(server), queue)) == once

    def values(self, name: str) -> set[str]:
        return {task[name] for task in self.tasks}


def submit(master: str, *options: str) -> list[str]:
    settings = (word for pair in SETTINGS.items() for word in ("--conf", "=".join(pair)))
    return [str(BIN / "spark-submit"), "--master", master, *settings, *options]


@pytest.mark.slow
@pytest.mark.programs("python:hatchling")
def test_two_workers_with_a_python_and_a_folder_each_need_only_the_wheel(
    no_spark: None, wheel: Path, tmp_path: Path
) -> None:
    env = environment(tmp_path, SPARK_DAEMON_MEMORY="256m", SPARK_DAEMON_JAVA_OPTS=SHORT_LIVED)
    pythons = [python_with(tmp_path / name, ON_EXECUTORS) for name in ("one", "two")]
    spark_class = str(BIN / "spark-class")
    with contextlib.ExitStack() as stack:
        master = [spark_class, MASTER, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        url = stack.enter_context(Daemon(tmp_path / "master", master, env)).said(r"Spark master at (spark://\S+)")
        workers = []
        for python in pythons:
            (python.parent / "python-of-the-cluster").symlink_to("python")
            worker = [spark_class, WORKER, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0", "--cores", "1"]
            worker += ["--memory", "1g", "--work-dir", str(python.parents[1] / "work"), url]
            own = env | {"PATH": f"{python.parent}{os.pathsep}{env['PATH']}"}
            log = tmp_path / f"worker-{python.parents[1].name}"
            workers.append(stack.enter_context(Daemon(log, worker, own)))
        for started in workers:
            started.said(r"(Successfully registered) with master")
        path = f"{pythons[0].parent}{os.pathsep}{env['PATH']}"  # the driver plans sources with PYSPARK_PYTHON, too
        driver = env | {"PYSPARK_PYTHON": "python-of-the-cluster", "PATH": path}
        found = Submitted(tmp_path, submit(url, "--py-files", str(wheel)), driver)
    assert found.values("python") == {str(python.with_name("python-of-the-cluster")) for python in pythons}
    assert {Path(place).relative_to(tmp_path).parts[:2] for place in found.values("folder")} == {
        ("one", "work"),
        ("two", "work"),
    }
    assert all(f"{wheel.stem}.zip" in place for place in found.values("package"))


@pytest.mark.slow
@pytest.mark.programs("python:hatchling")
def test_an_archive_brings_python_and_packages_to_executors_that_have_neither(
    no_spark: None, wheel: Path, tmp_path: Path
) -> None:
    packages = tuple(name for name in ON_EXECUTORS if name not in ("pyspark", "py4j"))  # these come with Spark
    python = python_with(tmp_path / "packed", packages)
    (site,) = (tmp_path / "packed").glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as zipped:
        zipped.extractall(site)
    # Spark keeps the modes of files of a .tar.gz, and not those of a .tar.
    with tarfile.open(tmp_path / "environment.tar.gz", "w:gz", compresslevel=1) as archive:
        for name in ("pyvenv.cfg", "bin"):
            archive.add(tmp_path / "packed" / name, name)
        archive.dereference = True
        archive.add(site, site.relative_to(python.parents[1]))
    driver = python_with(tmp_path / "driver", ON_EXECUTORS)
    (driver_site,) = (tmp_path / "driver").glob("lib/python*/site-packages")
    (driver_site / "staniel").symlink_to(site / "staniel")
    (tmp_path / "environment").symlink_to("packed")  # the driver plans sources with PYSPARK_PYTHON, too
    spark = tmp_path / "spark"  # a local cluster works in a folder of Spark's own
    spark.mkdir()
    for part in BIN.parent.iterdir():
        if part.name != "work":  # of other local clusters
            (spark / part.name).symlink_to(part)
    env = environment(
        tmp_path,
        SPARK_HOME=str(spark),
        PYSPARK_PYTHON="./environment/bin/python",
        PYSPARK_DRIVER_PYTHON=str(driver),
    )
    command = submit("local-cluster[2,1,1024]", "--archives", f"{tmp_path / 'environment.tar.gz'}#environment")
    found = Submitted(tmp_path, command, env)
    assert len(found.values("folder")) == 2, "two executors"
    assert all(place.startswith(str(spark / "work")) for place in found.values("folder"))
    assert all("/environment/lib/" in place for place in found.values("package"))


@pytest.mark.slow
@pytest.mark.programs("python:grpc")
def test_a_client_of_spark_connect_uses_a_server_that_has_the_package(no_spark: None, tmp_path: Path) -> None:
    env = environment(tmp_path, PYSPARK_PYTHON=sys.executable)
    settings = {"spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": "0"}
    command = submit("local[2]", *(word for pair in settings.items() for word in ("--conf", "=".join(pair))))
    command += ["--class", CONNECT, "spark-internal"]
    with Daemon(tmp_path / "connect", command, env) as server:
        port = server.said(r"Spark Connect server started at: \S*:(\d+)")
        env = os.environ | {"SPARK_REMOTE": f"sc://127.0.0.1:{port}"}
        found = Submitted(tmp_path, [sys.executable], env)
    assert found.values("package") == {str(ROOT / "src" / "staniel")}
