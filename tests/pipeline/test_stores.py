"""Settings of object stores: Hadoop's names in a session, and what a URL takes along of them."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import unquote

import pytest
from pyspark.sql import SparkSession

from staniel import pipeline
from staniel.pipeline.lake.folders import folder
from staniel.pipeline.lake.stores import open_store, settings_of, with_settings
from staniel.pipeline.sources.journal_options import JournalOptions
from tests.support.records import addx

KEYS = {"fs.s3a.access.key": "AKIA/1", "fs.s3a.secret.key": "s+/&=?@"}


def test_a_url_takes_the_settings_of_its_bucket_and_its_own_options_go_before() -> None:
    settings = KEYS | {
        "fs.s3a.endpoint": "http://minio:9000/",
        "fs.s3a.endpoint.region": "eu-1",
        "fs.s3a.bucket.logs.endpoint": "other:9000",
        "fs.s3a.bucket.logs.connection.ssl.enabled": "false",
    }
    keys = "AKIA%2F1:s%2B%2F%26%3D%3F%40"
    common = "endpoint_override=minio%3A9000&region=eu-1&scheme=http"
    assert with_settings("s3a://data/a/*/spool", settings) == f"s3://{keys}@data/a/*/spool?{common}"
    assert "endpoint_override=other%3A9000&region=eu-1&scheme=http" in with_settings("s3://logs/a", settings)
    assert with_settings("s3://me:secret@data/a?region=us-2", settings).startswith("s3://me:secret@data/a?region=us-2&")
    assert "scheme=http&" in with_settings("s3://data/a?scheme=http", KEYS | {"fs.s3a.endpoint": "https://x"})


def test_other_paths_stay_as_they_are() -> None:
    for path in ("/data/spool", "hdfs://a/b", "gs://a/b", "file:///a", ""):
        assert with_settings(path, KEYS) == path
    assert with_settings("s3://a/b?c=d", {}) == "s3://a/b?c=d"


def test_what_pyarrows_urls_do_not_have_is_given_to_the_file_system() -> None:
    token = with_settings("s3://data/a", KEYS | {"fs.s3a.session.token": "t+1", "fs.s3a.endpoint.region": "eu-1"})
    opened = open_store(token)
    assert opened is not None and opened[1] == "data/a" and opened[0].region == "eu-1"
    assert with_settings("s3://me:x@data/a", KEYS | {"fs.s3a.session.token": "t"}) == "s3://me:x@data/a", (
        "not its token"
    )
    provider = {"fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"}
    anonymous = with_settings("s3://data/a", KEYS | provider)
    assert anonymous == "s3://data/a?anonymous=true" and open_store(anonymous + "&region=eu-1") is not None
    role = open_store(with_settings("s3://data/a?region=eu-1", {"fs.s3a.assumed.role.arn": "arn:aws:iam::1:role/r"}))
    assert role is not None and open_store("s3://data/a?region=eu-1") is None


def test_options_put_the_settings_into_each_url_and_no_message_has_them() -> None:
    options = JournalOptions(
        {"path": "s3a://data/spool", "onCorrupt": "quarantine", "quarantinePath": "s3://q/x"}, KEYS
    )
    assert unquote(options.path) == "s3://AKIA/1:s+/&=?@@data/spool" and "AKIA" in options.reading.quarantine
    with pytest.raises(ValueError, match="cannot use none://data") as refused:
        folder("none://user:secret@data/spool?key=hidden")
    assert "secret" not in str(refused.value) and "hidden" not in str(refused.value)


@pytest.fixture
def unset(spark: SparkSession) -> Iterator[None]:
    yield
    names = list(settings_of(spark))
    for name in names:
        spark.conf.unset(name)
        spark.sparkContext._jsc.hadoopConfiguration().unset(name)  # type: ignore[union-attr]
    pipeline.register(spark)


def test_spark_reads_a_spool_with_the_settings_of_its_session(spark: SparkSession, bucket: str, unset: None) -> None:
    folder(bucket).write("jobs", addx(b"a"))
    endpoint = unquote(bucket.partition("endpoint_override=")[2].partition("&")[0])
    assert settings_of(spark) == {}
    spark.conf.set("fs.s3a.endpoint", f"http://{endpoint}")
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()  # type: ignore[union-attr]
    for name, value in {"access.key": "testing", "secret.key": "testing", "endpoint.region": "us-east-1"}.items():
        hadoop.set(f"fs.s3a.{name}", value)
    assert settings_of(spark)["fs.s3a.access.key"] == "testing"
    pipeline.register(spark)
    table = spark.read.format("staniel-journal").load("s3a://spool/*")
    assert [(row.host, bytes(row.value)) for row in table.collect()] == [("journals", b"a")]
