"""The live source and sink at servers on TLS that have users."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from staniel.pipeline import sessions
from staniel.pipeline.cli import pipeline
from staniel.pipeline.sources.access import PLAIN, Access, AccessError
from staniel.pipeline.sources.connection import BlockingConnection, ServerLost, ServerRefused
from staniel.pipeline.sources.drain import BatchLimits, Drain, UnknownQueue
from staniel.pipeline.sources.drain_spool import DrainSpool
from staniel.pipeline.sources.live_options import DrainOptions, SinkOptions
from staniel.protocol.client.replies import Answer
from staniel.protocol.memcache import requests as memcache
from tests.support.certificates import Authority
from tests.support.guarded import Guarded, guarded
from tests.support.process import running


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Guarded]:
    with guarded(tmp_path) as made:
        yield made


def options_of(place: Guarded, *, by_certificate: bool = False) -> dict[str, str]:
    given = {"servers": place.tls_address, "caFile": str(place.ca)}
    if by_certificate:
        return given | {"certificateFile": str(place.client.certificate), "keyFile": str(place.client.key)}
    return given | {"user": "analyst", "tokenFile": str(place.token_file)}


@pytest.mark.parametrize("by_certificate", [True, False])
def test_a_query_fills_and_drains_queues_over_tls(
    place: Guarded, by_certificate: bool, spark: SparkSession, tmp_path: Path
) -> None:
    options = options_of(place, by_certificate=by_certificate)
    rows = spark.range(200).selectExpr("cast(id as string) as value")
    rows.write.format("staniel").mode("append").options(**options, queue="jobs").save()
    source = spark.readStream.format("staniel").options(**options, queue="jobs", spoolPath=str(tmp_path / "spool"))
    writing = source.load().writeStream.format("parquet").trigger(availableNow=True)
    writing.option("path", str(tmp_path / "out")).option(
        "checkpointLocation", str(tmp_path / "ck")
    ).start().awaitTermination()
    found = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(int(row.value) for row in found) == list(range(200))


def test_the_command_line_drains_and_replays_as_a_user(
    place: Guarded, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "build", lambda *_: spark)
    monkeypatch.setattr(sessions, "close", lambda _: None)
    connection = BlockingConnection(place.tls_address, 10, SinkOptions(options_of(place)).access)
    assert set(connection.ask(*[memcache.Set("jobs", b"%d" % number) for number in range(30)])) == {Answer.STORED}
    connection.close()
    access = ["-s", place.tls_address, "--ca", str(place.ca), "--user", "analyst"]

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(pipeline, [*arguments, *access])
        return f"{result.exit_code} {result.output}"

    with_token, out = ("--token-file", str(place.token_file)), str(tmp_path / "out")
    assert f"30 items drained to {out}\n" in run("drain", out, "-q", "jobs", *with_token)
    assert "30 items put\n" in run("replay", out, "--to", "jobs2", "--token-file", str(place.password_file))
    refused = run("replay", out, "--to", "other", *with_token)
    assert refused.startswith("1 ") and "user analyst may not write to other" in refused
    assert "1 Error: user and tokenFile belong together" in run("drain", out, "-q", "jobs")
    assert place.token_file.read_text().strip() not in refused


def test_a_user_of_one_queue_drains_it_without_the_statistics_of_all(place: Guarded, tmp_path: Path) -> None:
    access = DrainOptions(options_of(place) | {"queue": "jobs", "spoolPath": "s"}).access
    connection = BlockingConnection(place.tls_address, 10, access)
    connection.ask(memcache.Set("jobs", b"a"), memcache.Set("jobs", b"b"), memcache.Set("jobs%", b"c"))
    assert connection.queue_items(["jobs", "jobs%", "jobs2"]) == {"jobs": 2, "jobs%": 1}
    connection.close()
    with DrainSpool(str(tmp_path / "spool")) as spool:
        drain = Drain([place.tls_address], ["jobs"], spool, access=access)
        assert drain.fill(1, BatchLimits(10, 1000), 0) == 2
        drain.close()
        with pytest.raises(UnknownQueue):
            Drain([place.tls_address], ["jobs2"], spool, access=access).waiting()
        with pytest.raises(ServerRefused, match="user analyst may not read other"):
            Drain([place.tls_address], ["other"], spool, access=access).waiting()


def test_who_is_not_let_in_is_told_why_at_once(place: Guarded, tmp_path: Path) -> None:
    plain = f"127.0.0.1:{place.server.port}"
    wrong = tmp_path / "wrong"
    wrong.write_text("not-the-token-of-the-analyst")
    right = SinkOptions(options_of(place)).access
    for server, access, why in (
        (plain, PLAIN, "asks who its clients are: give user and tokenFile"),
        (plain, Access("analyst", str(wrong)), "does not let analyst in: CLIENT_ERROR authentication failure"),
        (place.tls_address, Access(has_tls=True), "its certificate is not accepted: .*; caFile names its authority"),
        (plain, right, "hung up amid the TLS handshake; is that its tls_port"),
    ):
        with pytest.raises((ServerRefused, ServerLost), match=why):
            BlockingConnection(server, 10, access)
    with pytest.raises(ServerLost, match="hung up"):
        BlockingConnection(place.tls_address, 10)


def test_a_certificate_that_is_missing_is_told_at_once(tmp_path: Path) -> None:
    """A client of TLS 1.3 hears of it after the handshake."""
    authority = Authority(tmp_path)
    own = authority.issue("server")
    tls = f'[tls]\ncertificate = "{own.certificate}"\nkey = "{own.key}"\nclient_ca = "{authority.path}"\n'
    config = f'{tls}client_certificates = "required"\n[memcache]\ntls_port = 0\n'
    with running(tmp_path / "server", config=config) as server:
        address = f"localhost:{server.second_port}"
        given = {"servers": address, "caFile": str(authority.path), "queue": "jobs", "spoolPath": "s"}
        with DrainSpool(str(tmp_path / "spool")) as spool, pytest.raises(ServerRefused, match="give certificateFile"):
            Drain([address], ["jobs"], spool, access=DrainOptions(given).access).waiting()


def test_names_that_kestrels_dialect_prints_as_they_are(tmp_path: Path) -> None:
    with guarded(tmp_path, "kestrel") as place:
        access = SinkOptions(options_of(place)).access
        connection = BlockingConnection(place.tls_address, 10, access)
        assert set(connection.ask(memcache.Set("jobs%", b"a"), memcache.Set("jobs", b"b"))) == {Answer.STORED}
        assert connection.queue_items(["jobs%", "jobs", "jobs2"]) == {"jobs%": 1, "jobs": 1}
        connection.close()


@pytest.mark.parametrize(
    ("access", "why"),
    [
        (Access("a", "{folder}/none"), "none: No such file"),
        (Access("a", "{folder}"), "Is a directory"),
        (Access("a", "{folder}/words"), "expected a password or token"),
        (Access(has_tls=True, ca_file="{folder}/none"), "none: No such file"),
        (Access(has_tls=True, ca_file="{folder}/words"), "words: expected PEM"),
        (Access(has_tls=True, certificate_file="{folder}/words"), "words: expected PEM"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(access: Access, why: str, place: Guarded, tmp_path: Path) -> None:
    (tmp_path / "words").write_text("two words\n")
    files = [text.format(folder=tmp_path) for text in (access.token_file, access.ca_file, access.certificate_file)]
    given = Access(access.user, files[0], access.has_tls, files[1], files[2])
    with pytest.raises(AccessError, match=why):
        BlockingConnection(f"127.0.0.1:{place.server.port}", 10, given)


def test_a_server_without_users_is_told_no_secret(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a-token-of-the-analyst")
    with running(tmp_path / "server") as server:
        connection = BlockingConnection(f"127.0.0.1:{server.port}", 10, Access("analyst", str(tmp_path / "token")))
        assert connection.queue_items(["login"]) == {}
        connection.close()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"user": "a"}, "belong together"),
        ({"tokenFile": "a"}, "belong together"),
        ({"caFile": "a", "tls": "false"}, "tls is false"),
        ({"keyFile": "a"}, "certificateFile, which is not given"),
        ({"password": "a"}, "staniel has no option password"),
    ],
)
def test_options_that_do_not_fit_are_refused(given: dict[str, str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        SinkOptions(given)
    assert SinkOptions({"tls": "true"}).access == Access(has_tls=True)
