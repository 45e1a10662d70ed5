"""The configuration as a whole: inheritance, the command line, files."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from staniel.broker.config.addresses import TcpAddress, UnixAddress
from staniel.broker.config.load import Config, ConfigError, defaults, load, parse
from staniel.protocol.memcache.requests import Dialect
from staniel.queues.config import SYNC_ALWAYS, SYNC_OS, UNLIMITED_BYTES, UNLIMITED_ITEMS, JournalDialect, QueueConfig
from staniel.queues.queue import Queue
from tests.support.world import World

KESTREL = """
[server]
host = "127.0.0.1"
spool = "/tmp/x/q"
max_open_transactions = 1
expiration_timer_frequency = "none"
[memcache]
port = 22133
dialect = "kestrel"
[text]
port = 2222
[thrift]
port = 2229
[default]
max_age = 300
[queues."q"]
max_items = 3
discard_old_when_full = true
sync_journal = 10
[queues."m+c"]
keep_journal = false
[aliases]
"al" = ["x", "y"]
"""


def config(text: str, folder: str = "/etc") -> Config:
    return parse(text.encode(), folder)


def test_an_empty_file_and_the_defaults_are_the_same() -> None:
    assert config("") == defaults("/etc")


def test_defaults_are_what_a_new_user_wants() -> None:
    built_in = defaults("/etc")
    assert built_in.server.spool == "/etc/spool"
    assert (built_in.server.max_open_transactions, built_in.server.expiration_timer_ms) == (100, 1000)
    assert built_in.server.max_line_bytes == 16384
    assert built_in.addresses("memcache") == (TcpAddress("127.0.0.1", 22133),)
    assert [built_in.addresses(name) for name in ("text", "thrift", "workq", "admin")] == [()] * 4
    assert built_in.queue("anything") == QueueConfig()
    assert built_in.item_bytes_max == 16 << 20


def test_a_file_in_kestrels_terms_is_accepted() -> None:
    settings = config(KESTREL)
    assert (settings.server.spool, settings.server.max_open_transactions) == ("/tmp/x/q", 1)
    assert settings.server.expiration_timer_ms == 0
    assert settings.memcache.dialect is Dialect.KESTREL
    queue = settings.queue("q")
    assert (queue.max_items, queue.max_age_ms, queue.sync_ms, queue.discard_old_when_full) == (3, 300, 10, True)
    assert settings.queue("m+c") == QueueConfig(max_age_ms=300, keep_journal=False)
    assert settings.aliases == {"al": ("x", "y")}


def test_each_key_comes_from_the_nearest_section_that_gives_it() -> None:
    settings = config(
        """
        [default]
        max_items = 1
        max_age = 1
        max_size = 1
        [queues.m]
        max_age = 2
        max_size = 2
        [queues."m+c"]
        max_size = 3
        """
    )

    def seen(name: str) -> tuple[int, int, int]:
        queue = settings.queue(name)
        return queue.max_items, queue.max_age_ms, queue.max_bytes

    assert seen("other") == (1, 1, 1)
    assert seen("other+c") == (1, 1, 1)
    assert seen("m") == (1, 2, 2)
    assert seen("m+c") == (1, 2, 3)
    assert seen("m+d") == (1, 2, 2)
    assert seen("m+c+d") == (1, 2, 2), "the parent is the name before the first +"


def test_a_fan_out_queue_inherits_from_a_parent_without_a_section_what_default_says() -> None:
    settings = config('[default]\nmax_items = 1\n[queues."m+c"]\nmax_age = 5')
    assert settings.queue("m+c") == QueueConfig(max_items=1, max_age_ms=5)
    assert settings.queue("m") == QueueConfig(max_items=1)


def test_none_takes_back_what_would_be_inherited() -> None:
    settings = config(
        """
        [default]
        max_items = 1
        max_size = 1
        max_item_size = 1
        max_age = 1
        sync_journal = "1s"
        expire_to_queue = "dead"
        white_list_client_id_for_dequeue = "me"
        [queues.free]
        max_items = "none"
        max_size = "none"
        max_item_size = "none"
        max_age = "none"
        sync_journal = "none"
        expire_to_queue = "none"
        white_list_client_id_for_dequeue = "none"
        """
    )
    assert settings.queue("free") == QueueConfig(
        max_items=UNLIMITED_ITEMS, max_bytes=UNLIMITED_BYTES, max_item_bytes=1 << 30, sync_ms=SYNC_OS
    )
    assert settings.item_bytes_max == 1 << 30


def test_the_largest_item_is_that_of_any_queue() -> None:
    assert config('[default]\nmax_item_size = "1MB"\n[queues.q]\nmax_item_size = "2MB"').item_bytes_max == 2 << 20
    assert config('[default]\nmax_item_size = "3MB"\n[queues.q]\nmax_item_size = "2MB"').item_bytes_max == 3 << 20


def test_false_and_zero_override_as_any_value_does() -> None:
    settings = config(
        "[default]\nkeep_journal = false\nmax_items = 9\ndisable_aggressive_rewrites = true\n"
        "[queues.q]\nkeep_journal = true\nmax_items = 0\ndisable_aggressive_rewrites = false"
    )
    assert settings.queue("other") == QueueConfig(keep_journal=False, max_items=9, aggressive_rewrites=False)
    assert settings.queue("q") == QueueConfig(keep_journal=True, max_items=0, aggressive_rewrites=True)


def test_the_queue_for_everybodys_expired_items_keeps_its_own() -> None:
    settings = config('[default]\nexpire_to_queue = "dead"')
    assert settings.queue("jobs").expire_to_queue == "dead"
    assert settings.queue("dead").expire_to_queue == ""


def test_asking_for_a_queue_twice_builds_nothing_and_remembers_nothing() -> None:
    settings = config("[queues.q]\nmax_items = 1")
    known = len(settings.resolved)
    assert settings.queue("a") is settings.queue("b")
    assert settings.queue("q+a") is settings.queue("q")
    assert len(settings.resolved) == known


def test_a_configuration_does_not_change() -> None:
    with pytest.raises(AttributeError):
        defaults("/").server.host = "other"  # type: ignore[misc]


def test_relative_paths_count_from_the_files_folder() -> None:
    settings = config(
        '[server]\nspool = "q"\nstatus_file = "s/status"\n[memcache]\nlisten = ["unix:a.sock", "unix:/b.sock"]'
    )
    assert (settings.server.spool, settings.server.status_file) == ("/etc/q", "/etc/s/status")
    assert settings.addresses("memcache") == (UnixAddress("/etc/a.sock"), UnixAddress("/b.sock"))


def test_listen_replaces_host_and_port() -> None:
    settings = config(
        '[server]\nhost = "h"\n[memcache]\nlisten = ["a:1", "[::1]:2"]\n[admin]\nport = 0\ntoken_file = "t"'
    )
    assert settings.addresses("memcache") == (TcpAddress("a", 1), TcpAddress("::1", 2))
    assert settings.addresses("admin") == (TcpAddress("h", 0),)


def test_a_listener_without_a_port_is_off() -> None:
    assert config('[memcache]\nport = "none"').addresses("memcache") == ()


def test_words_are_understood_as_kestrel_spells_them() -> None:
    assert config('[server]\ndefault_status = "WriteAvoid"').server.default_status == "writeavoid"
    assert config('[default]\njournal_dialect = "kestrel-2.4"').queue("q").journal_dialect is JournalDialect.KESTREL_24


def test_the_command_line_overrides_the_file() -> None:
    settings = config('[memcache]\nlisten = ["a:1"]\n[default]\nmax_items = 5\n[queues.q]\nsync_journal = "1s"')
    changed = settings.overridden(host="::1", port=5, spool="here", sync="os", log_level="debug")
    assert changed.addresses("memcache") == (TcpAddress("::1", 5),)
    assert (changed.server.spool, changed.server.log_level) == ("here", "debug")
    assert changed.queue("other") == QueueConfig(max_items=5, sync_ms=SYNC_OS)
    assert changed.queue("q").sync_ms == 1000, "a queue's own word stands"


def test_overriding_nothing_changes_nothing() -> None:
    settings = config(KESTREL)
    assert settings.overridden() == settings


@pytest.mark.parametrize(("text", "sync_ms"), [("always", SYNC_ALWAYS), ("os", SYNC_OS), ("50ms", 50), ("2s", 2000)])
def test_sync_is_given_as_text(text: str, sync_ms: int) -> None:
    assert defaults("/").overridden(sync=text).queue("q").sync_ms == sync_ms


OPTIONS: list[tuple[dict[str, object], str]] = [
    ({"sync": "often"}, '--sync: expected "always", "os" or a duration such as "50ms", got "often"'),
    ({"sync": "50"}, '--sync: expected "always", "os" or a duration such as "50ms", got "50"'),
    ({"port": 65536}, "--port: expected a port from 0 to 65535, got 65536"),
    ({"host": "h:1"}, '--host: expected a host name or an address without a port, got "h:1"'),
    ({"spool": ""}, '--spool: expected a text that is not empty, got ""'),
    ({"log_level": "loud"}, '--log-level: expected "debug", "info", "warning" or "error", got "loud"'),
]


@pytest.mark.parametrize(("options", "message"), OPTIONS)
def test_a_bad_option_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        defaults("/").overridden(**options)  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_a_host_alone_cannot_replace_listen() -> None:
    with pytest.raises(ConfigError, match=r"^--host: memcache\.listen says where to listen"):
        config('[memcache]\nlisten = ["a:1"]').overridden(host="b")


def test_an_overriding_port_cannot_be_another_listeners() -> None:
    with pytest.raises(ConfigError, match=r"^text\.port: expected an address of its own"):
        config("[text]\nport = 5").overridden(port=5)


def test_a_file_is_loaded_and_its_folder_counts(tmp_path: Path) -> None:
    file = tmp_path / "staniel.toml"
    file.write_bytes(b"\xef\xbb\xbf[server]\r\nspool = 'q'\r\n")
    assert load(str(file)).server.spool == str(tmp_path / "q")


def test_an_error_in_a_file_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "staniel.toml"
    file.write_text("[queues.jobs]\nmax_items = 'many'")
    with pytest.raises(ConfigError) as caught:
        load(str(file))
    assert str(caught.value) == f'{file}: queues.jobs.max_items: expected a whole number >= 0, got "many"'
    assert (caught.value.key, caught.value.file) == ("queues.jobs.max_items", str(file))


def test_a_file_that_cannot_be_read_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(str(tmp_path / "none.toml"))
    assert str(caught.value) == f"{tmp_path}/none.toml: cannot be read: No such file or directory"


def test_a_configuration_can_be_compared_and_printed() -> None:
    assert msgspec.structs.asdict(config(KESTREL)) == msgspec.structs.asdict(config(KESTREL))
    assert "max_items=3" in repr(config(KESTREL))


def test_every_key_is_described_as_it_was_written() -> None:
    for written in ("true", "false"):
        config = parse(f"[queues.q]\ndisable_aggressive_rewrites = {written}\n".encode(), "")
        assert dict(config.describe("q"))["disable_aggressive_rewrites"] is (written == "true")
    assert dict(parse(b"", "").describe("q"))["disable_aggressive_rewrites"] is False


@pytest.mark.pure
def test_a_reload_configures_only_the_queues_whose_settings_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World("queues.slow.max_items = 5\nqueues.quick.max_items = 6")
    queues = [world.broker.queues.make(name, world.now_ms) for name in ("one", "two", "slow", "quick")]
    told: list[str] = []
    configure = Queue.configure

    def noted(queue: Queue, config: QueueConfig) -> None:
        told.append(queue.name)
        configure(queue, config)

    monkeypatch.setattr(Queue, "configure", noted)
    world.broker.reload(world.now_ms)
    assert not told
    world.config = "queues.slow.max_items = 7\nqueues.quick.max_items = 6"
    world.broker.reload(world.now_ms)
    assert told == ["slow"] and [queue.config.max_items for queue in queues[2:]] == [7, 6]
    world.config += "\ndefault.max_age = '1m'"
    told.clear()
    world.broker.reload(world.now_ms)
    assert sorted(told) == ["one", "quick", "slow", "two"]
    assert {queue.config.max_age_ms for queue in queues} == {60_000}
