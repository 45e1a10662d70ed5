"""What is refused, and in which words."""

from __future__ import annotations

import pytest

from staniel.broker.config.load import ConfigError, parse

QUEUE_NAME = 'expected a queue name without blanks, ".", "/" and "~", at most 200 bytes'
SIZE = 'expected a size such as 65536, "64KB" or "none"'
SYNC = 'expected "always", "os" or a duration such as "50ms"'
DURATION = 'expected a duration such as 1500, "30s" or "none"'
NO_ZOOKEEPER = "servers do not announce themselves in ZooKeeper; list their addresses in the clients"
NO_PLUG_INS = "there are no storage plug-ins; items are kept in journals in server.spool"

MISTAKES = [
    ('[queues.jobs]\nmax_items = "many"', 'queues.jobs.max_items: expected a whole number >= 0, got "many"'),
    ("[queues.jobs]\nmax_items = -1", "queues.jobs.max_items: expected a whole number >= 0, got -1"),
    ("[queues.jobs]\nmax_items = true", "queues.jobs.max_items: expected a whole number >= 0, got true"),
    ("[queues.jobs]\nmax_items = 1.5", "queues.jobs.max_items: expected a whole number >= 0, got 1.5"),
    ("[default]\nmax_items = 2147483648", "default.max_items: expected a whole number <= 2147483647, got 2147483648"),
    ('[default]\nmax_size = "1 apple"', f'default.max_size: {SIZE}, got "1 apple"'),
    ("[default]\nmax_size = -5", f"default.max_size: {SIZE}, got -5"),
    ("[default]\nmax_size = 1.5", f"default.max_size: {SIZE}, got 1.5"),
    (
        '[default]\nmax_size = "9999999999TB"',
        'default.max_size: expected a size of at most 9223372036854775807B, got "9999999999TB"',
    ),
    ('[queues.q]\nmax_item_size = "2GB"', 'queues.q.max_item_size: expected a size of at most 1GB, got "2GB"'),
    ("[server]\nmax_line_size = 0", "server.max_line_size: expected a size of at least 512B, got 0"),
    (
        '[server]\ntcp_keepalive = "1999ms"',
        'server.tcp_keepalive: expected a duration of at least 2s, or "none", got "1999ms"',
    ),
    (
        "[server]\ntcp_user_timeout = 2",
        'server.tcp_user_timeout: expected a duration of at least 1s, or "none", got 2',
    ),
    ('[default]\nmax_age = "3 weeks"', f'default.max_age: {DURATION}, got "3 weeks"'),
    ('[default]\nmax_age = "1M"', f'default.max_age: {DURATION}, got "1M"'),
    ("[default]\nmax_age = 1979-05-27", f"default.max_age: {DURATION}, got 1979-05-27"),
    (
        "[default]\nmax_age = 9223372036854775808",
        "default.max_age: expected a duration of at most 36500d, got 9223372036854775808",
    ),
    ('[default]\nsync_journal = "never"', f'default.sync_journal: {SYNC}, got "never"'),
    ("[default]\nsync_journal = -1", f"default.sync_journal: {SYNC}, got -1"),
    ('[default]\nkeep_journal = "yes"', 'default.keep_journal: expected true or false, got "yes"'),
    ("[default]\nkeep_journal = 1", "default.keep_journal: expected true or false, got 1"),
    ('[default]\nkeep_journal = "none"', 'default.keep_journal: expected true or false, got "none"'),
    (
        '[default]\njournal_dialect = "kestrel"',
        'default.journal_dialect: expected "documents" or "kestrel-2.4", got "kestrel"',
    ),
    ('[default]\nexpire_to_queue = "a/b"', f'default.expire_to_queue: {QUEUE_NAME}, got "a/b"'),
    ("[server]\nhost = 5", "server.host: expected a host name or an address without a port, got 5"),
    ('[server]\nhost = ""', 'server.host: expected a host name or an address without a port, got ""'),
    ('[server]\nhost = "h:22133"', 'server.host: expected a host name or an address without a port, got "h:22133"'),
    ('[server]\nspool = ""', 'server.spool: expected a text that is not empty, got ""'),
    ('[server]\nlog_level = "all"', 'server.log_level: expected "debug", "info", "warning" or "error", got "all"'),
    ("[server]\nmax_connections = 0", "server.max_connections: expected a whole number >= 1, got 0"),
    ('[memcache]\nport = "22133"', 'memcache.port: expected a port from 0 to 65535, got "22133"'),
    ("[memcache]\nsocket_mode = 660", 'memcache.socket_mode: expected three octal digits such as "0660", got 660'),
    ('[text]\nsocket_mode = "1660"', 'text.socket_mode: expected three octal digits such as "0660", got "1660"'),
    ('[text]\nsocket_mode = "0680"', 'text.socket_mode: expected three octal digits such as "0660", got "0680"'),
    ("[memcache]\nport = 65536", "memcache.port: expected a port from 0 to 65535, got 65536"),
    ("[memcache]\nport = -1", "memcache.port: expected a port from 0 to 65535, got -1"),
    ("[memcache]\nport = true", "memcache.port: expected a port from 0 to 65535, got true"),
    ('[memcache]\nport = 1\nlisten = ["a:1"]', "memcache.listen: expected port or listen, got both"),
    ("[memcache]\nlisten = []", "memcache.listen: expected at least one address, got none"),
    ('[memcache]\nlisten = "a:1"', 'memcache.listen: expected an array of addresses, got "a:1"'),
    (
        '[memcache]\nlisten = ["a:1", "b"]',
        'memcache.listen[1]: expected "HOST:PORT", "[::1]:PORT" or "unix:PATH", got "b"',
    ),
    ('[memcache]\nlisten = ["a:1", "a:1"]', "memcache.listen: expected an address of its own, got a:1 of [memcache]"),
    ("[text]\nport = 22133", "text.port: expected an address of its own, got 127.0.0.1:22133 of [memcache]"),
    ('[memcache]\ndialect = "redis"', 'memcache.dialect: expected "memcached" or "kestrel", got "redis"'),
    ("server = 3", "server: expected a table, got 3"),
    ("[[queues]]\nmax_items = 1", "queues: expected a table, got an array"),
    ("[queues]\nmax_items = 1", "queues.max_items: expected a table, got 1"),
    ('[queues."a.b"]', f'queues."a.b": {QUEUE_NAME}, got "a.b"'),
    ('[queues."a~b"]', f'queues."a~b": {QUEUE_NAME}, got "a~b"'),
    ('[queues."a b"]', f'queues."a b": {QUEUE_NAME}, got "a b"'),
    ('[queues.""]', f'queues."": {QUEUE_NAME}, got ""'),
    ('[queues."漢"]', f'queues."漢": {QUEUE_NAME}, got "漢"'),
    ('[queues."m+c"]\nmax_item = 1', 'queues."m+c".max_item: unknown key, did you mean "max_items"?'),
    ('[queues.q]\nexpire_to_queue = "q"', 'queues.q.expire_to_queue: expected another queue, got "q"'),
    ('[aliases]\na = "b"', 'aliases.a: expected an array of queue names, got "b"'),
    ('[aliases]\na = ["b", "c.d"]', f'aliases.a[1]: {QUEUE_NAME}, got "c.d"'),
    ('[aliases]\na = ["b"]\nb = ["c", "a"]', "aliases.a: expected destinations that do not lead back to it"),
    ("[server]\nmax_conections = 1", 'server.max_conections: unknown key, did you mean "max_connections"?'),
    ("[queues.jobs]\nmaxItems = 1", 'queues.jobs.maxItems: unknown key, did you mean "max_items"?'),
    ("[queue.jobs]", 'queue: unknown key, did you mean "queues"?'),
    ("[server]\nport = 1", "server.port: unknown key, it belongs in [memcache]"),
    ("[server]\nmax_items = 1", "server.max_items: unknown key, it belongs in [default]"),
    ("max_items = 1", "max_items: unknown key, it belongs in [default]"),
    ('[server]\nqueuePath = "/var"', "server.queuePath: unknown key, did you mean server.spool?"),
    ("[server]\nmemcacheListenPort = 1", "server.memcacheListenPort: unknown key, did you mean memcache.port?"),
    ("[server]\nblue = 1", "server.blue: unknown key"),
    ("[queues.a.b]\nmax_items = 1", "queues.a.b: unknown key"),
    (
        "[zookeeper]",
        f"zookeeper: not supported: {NO_ZOOKEEPER}",
    ),
    (
        '[server]\nbeFactoryClass = "x"',
        f"server.beFactoryClass: not supported: {NO_PLUG_INS}",
    ),
    (
        "[loggers]",
        "loggers: not supported: log lines go to standard error; choose how many with server.log_level",
    ),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES)
def test_a_mistake_is_named_with_what_was_expected(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text.encode(), "")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"[server]\nhost = \nspool = 'a'", 2),
        (b"[server]\n\n[server]\n", 3),
        (b"[server]\nhost = 'a'\nhost = 'b'\n", 3),
        (b'[server]\nhost = "127.0.0.1\n', 2),
        (b'[server]\nhost = "127.0.0.1', 2),
        (b'[server]\nhost = """a\n\n\n', 2),
        (b"[server]\n# caf\xe9\n", 2),
        (b"\xef\xbb\xbf[server]\n# caf\xe9\n", 2),
    ],
)
def test_a_syntax_error_names_the_line(text: bytes, line: int) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "")
    assert caught.value.key == f"line {line}"
    assert caught.value.why


@pytest.mark.parametrize("text", [b"a = " + b"[" * 5000, b"a = " + b"9" * 5000])
def test_absurd_toml_is_an_error_like_any_other(text: bytes) -> None:
    with pytest.raises(ConfigError):
        parse(text, "")


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(b"[default]\nmax_size = '" + b"x" * 5000 + b"'", "")
    assert len(str(caught.value)) < 200
