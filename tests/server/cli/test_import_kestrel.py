"""`staniel config import-kestrel`: what becomes of Kestrel's settings, and what is named as left out."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staniel.broker.config.load import load, parse
from staniel.server.cli.import_kestrel import Import
from staniel.server.cli.kestrel_config import Duration, ScalaError, Size, read_config
from tests.support.process import run_staniel

HEAD = "import com.twitter.conversions.time._\nimport net.lag.kestrel.config._\n\n"
CURRENT = (
    HEAD
    + """\
new KestrelConfig {
  listenAddress = "0.0.0.0"
  memcacheListenPort = 22133
  textListenPort = 2222
  thriftListenPort = None

  queuePath = "/var/spool/kestrel"
  clientTimeout = 30.seconds   // of a silent client
  expirationTimerFrequency = 1.second
  maxOpenTransactions = 100
  statusChangeGracePeriod = 10.seconds
  connectionLimitRefuseReads = Some(5000)

  default.defaultJournalSize = 16.megabytes
  default.maxJournalSize = 1.gigabyte
  default.syncJournal = 10.milliseconds
  default.maxItems = Int.MaxValue

  admin.httpPort = 2223
  admin.statsNodes = new StatsConfig {
    reporters = new JsonStatsLoggerConfig {
      loggerName = "stats"
    } :: new TimeSeriesCollectorConfig
  }

  queues = new QueueBuilder {
    // half an hour, no more
    name = "weather"
    maxAge = 1800.seconds
    maxItems = 1500000
  } :: new QueueBuilder {
    name = "events+audit"
    keepJournal = false
    fanoutOnly = true
  } :: new QueueBuilder {
    name = "slow"
    syncJournal = 0.seconds
    maxSize = 2 * 1024 * 1024
    openTransactionTimeout = 2.minutes
    disableAggressiveRewrites = true
  }

  aliases = new AliasBuilder {
    name = "all"
    destinationQueues = List("weather", "slow")
  }

  loggers = new LoggerConfig {
    level = Level.DEBUG
    handlers = new FileHandlerConfig {
      filename = "/var/log/kestrel/kestrel.log"
      roll = Policy.Never
    }
  }
}
"""
)


def carried(path: Path, text: str, code: int) -> tuple[dict[str, Any], list[str]]:
    """The new file, which is a good one, and what was said."""
    path.write_text(text)
    said: subprocess.CompletedProcess[str] = run_staniel("config", "import-kestrel", str(path))
    assert said.returncode == code, said
    parse(said.stdout.encode(), ".")
    return tomllib.loads(said.stdout), said.stderr.splitlines()


def test_a_file_of_kestrel_2_4(tmp_path: Path) -> None:
    found, said = carried(tmp_path / "production.scala", CURRENT, 1)
    assert found == {
        "server": {
            "host": "127.0.0.1", "spool": "/var/lib/staniel", "client_timeout": "30s", "log_level": "debug",
            "expiration_timer_frequency": "1s", "max_open_transactions": 100, "status_change_grace_period": "10s",
            "connection_limit_refuse_reads": 5000,
        },
        "memcache": {"port": 22133}, "text": {"port": 2222}, "thrift": {"port": "none"},
        "admin": {"listen": ["127.0.0.1:2223"]},
        "default": {
            "default_journal_size": "16MB", "max_journal_size": "1GB", "sync_journal": "10ms", "max_items": "none"
        },
        "queues": {
            "weather": {"max_age": "30m", "max_items": 1_500_000},
            "events+audit": {"keep_journal": False, "fanout_only": True},
            "slow": {
                "sync_journal": "always", "max_size": "2MB", "open_transaction_timeout": "2m",
                "disable_aggressive_rewrites": True,
            },
        },
        "aliases": {"all": ["weather", "slow"]},
    }  # fmt: skip
    lines = CURRENT.splitlines()
    named = {lines[int(each.split(":")[1]) - 1].split()[0]: each for each in said[:-1]}
    assert set(named) == {"listenAddress", "admin.httpPort", "admin.statsNodes", "loggers"}
    assert "see --open-network" in named["listenAddress"]
    assert said[-1] == "4 things not carried over"
    config = tmp_path / "staniel.toml"
    for option in ((), ("--open-network",)):
        made = run_staniel("config", "import-kestrel", str(tmp_path / "production.scala"), *option).stdout
        config.write_text(made)
        assert run_staniel("config", "check", str(config)).returncode == 0
        server = load(str(config)).server
        assert (server.open_network, server.host) == ((True, "0.0.0.0") if option else (False, "127.0.0.1"))
        if not option:
            config.write_text(made.replace("# host = ", "host = ").replace('host = "127.0.0.1"\n', "", 1))
            assert "or allow it with" in run_staniel("config", "check", str(config)).stderr
            config.write_text(config.read_text().replace("# open_network", "open_network"))
            assert run_staniel("config", "check", str(config)).returncode == 0


def test_the_folder_of_kestrel_is_never_the_new_spool(tmp_path: Path) -> None:
    path = tmp_path / "production.scala"
    path.write_text(CURRENT.replace("/var/spool/kestrel", f"{tmp_path}/kestrel"))
    said = run_staniel("config", "import-kestrel", str(path), "--spool", f"{tmp_path}/x/../kestrel/")
    assert (said.returncode, said.stdout) == (2, "") and "is Kestrel's own queuePath" in said.stderr
    made = run_staniel("config", "import-kestrel", str(path), "--spool", f"{tmp_path}/a b").stdout
    adopt = f"staniel adopt {tmp_path}/kestrel '{tmp_path}/a b'"
    assert f'spool = "{tmp_path}/a b"  # a copy of Kestrel\'s: {adopt}\n' in made


def test_a_file_of_kestrel_2_0_whose_sizes_meant_something_else(tmp_path: Path) -> None:
    text = HEAD + (
        'new KestrelConfig {\n  queuePath = "/q"\n  default.maxJournalSize = 16.megabytes\n'
        "  default.maxJournalOverflow = 10\n  queues = new QueueBuilder {\n"
        '    name = "jobs"\n    syncJournal = true\n    multifileJournal = true\n'
        "    maxJournalSize = 1.megabyte\n  }\n}\n"
    )
    found, said = carried(tmp_path / "old.scala", text, 1)
    assert found["default"] == {"default_journal_size": "16MB", "max_journal_size": "160MB"}
    jobs = {"sync_journal": "always", "default_journal_size": "1MB", "max_journal_size": "10MB"}
    assert found["queues"]["jobs"] == jobs
    assert [each.split(": ")[0].rpartition(":")[2] for each in said[:-1]] == ["7", "11"]
    assert "maxJournalOverflow" in said[0] and "multifileJournal" in said[1]


def test_a_list_of_queues_and_names_of_values(tmp_path: Path) -> None:
    text = HEAD + (
        'new KestrelConfig {\n  val base = "/var/" + "spool"\n  val most: Int = 7\n  queuePath = base + "/kestrel"\n'
        "  default.maxItems = most * 2\n  queues = List(\n"
        '    new QueueBuilder { name = "a"; maxSize = 1.5.megabytes },\n    new QueueBuilder {\n      name = "b"\n'
        "      maxQueueAge = None\n      override val maxItemSize = 1024L\n    }\n  )\n}\n"
    )
    found, said = carried(tmp_path / "list.scala", text, 0)
    assert found["server"]["spool"] == "/var/lib/staniel" and found["default"]["max_items"] == 14
    assert found["queues"] == {"a": {"max_size": "1536KB"}, "b": {"max_queue_age": "none", "max_item_size": "1KB"}}
    assert said == []


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ('zookeeper = new ZooKeeperBuilder { host = "zk"; port = 2181 }', "ZooKeeper"),
        ("beFactoryClass = Some(classOf[Other])", "storage plug-ins"),
        ("maxOpenTransactions = readFrom(7)", "not understood"),
        ("clientTimeout = 30", "a time without a unit"),
        ('if (sys.env("A") == "b") { maxOpenTransactions = 3 }', "a program"),
        ("queues = moreQueues", "expected new QueueBuilder"),
        ("queues = new QueueBuilder { maxItems = 1 }", "without a name"),
        ("default.maxThreads = 3", "no such setting of queues"),
        ("memcacheListenPort = 70000", "expected"),
        ('aliases = new AliasBuilder { name = "x" }', "expected new AliasBuilder"),
    ],
)
def test_what_has_no_place_is_named_with_its_line(statement: str, what: str, tmp_path: Path) -> None:
    text = f"new KestrelConfig {{\n  textListenPort = 2222\n\n  {statement}\n  maxOpenTransactions = 5\n}}\n"
    found, said = carried(tmp_path / "x.scala", text, 1)
    assert len(said) == 2 and f"{tmp_path}/x.scala:4: " in said[0] and what in said[0], said
    assert found["text"]["port"] == 2222 and found["server"]["max_open_transactions"] == 5


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("queuePath = 1", "it has no `new KestrelConfig"),
        ("new KestrelConfig {\n admin.httpPort = 1\n", "a { has no matching }"),
        ("new KestrelConfig { a = " + "(" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_configuration_is_refused_in_a_line(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "x.scala"
    path.write_text(text)
    said = run_staniel("config", "import-kestrel", str(path))
    assert (said.returncode, said.stdout, said.stderr.count("\n")) == (2, "", 1)
    assert why in said.stderr
    assert run_staniel("config", "import-kestrel", str(tmp_path / "none")).returncode == 2


@given(
    st.text(
        st.sampled_from('{}()"\n;:.,= new KestrelConfig List 12seconds None queues default val // /* */'), max_size=80
    )
)
def test_any_text_is_read_or_refused(text: str) -> None:
    notes: list[object] = []
    try:
        Import(lambda *note: notes.append(note)).run(read_config("new KestrelConfig {" + text))
    except ScalaError:
        pass


@given(st.integers(1, 10_000), st.sampled_from(["second", "seconds", "hours", "megabytes", "kilobyte", "days"]))
def test_units_count_as_in_kestrel(number: int, unit: str) -> None:
    (found,) = read_config(f"new KestrelConfig {{ x = {number}.{unit} }}")
    per = {
        "second": 1000,
        "seconds": 1000,
        "hours": 3_600_000,
        "days": 86_400_000,
        "megabytes": 1 << 20,
        "kilobyte": 1024,
    }
    assert found.value == (Duration if per[unit] % 1000 == 0 else Size)(number * per[unit])
