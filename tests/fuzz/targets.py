"""What is fuzzed: each target is a function of bytes that raises if a promise is broken, with seeds for it.

The promises: a parser gives the same requests however its bytes arrive, and keeps no more than its limits; no bytes
make a session raise, nor give a client what its user may not have; a server starts on any file, serves what was sound
before the damage, and says the same after another start.
"""

from __future__ import annotations

from tests.fuzz import parsers, readers, seeds, sessions
from tests.fuzz.target import Target

MEMCACHE = seeds.reads_by_id(b"\x05")
WORKQ = seeds.spoken("workq/protocol_cases", b"\x05")
TEXT = b"\x05put q:\nitem\n\nget q\nconfirm q 1\nmonitor q 1 2\npeek q\nflush q\n"
TARGETS = {
    "memcache": Target(parsers.memcache_parser, MEMCACHE, 800),
    "text": Target(parsers.text_parser, lambda: iter([TEXT]), 3000),
    "thrift": Target(parsers.thrift_parser, seeds.thrift(b"\x05"), 6000),
    "http": Target(parsers.http_parser, seeds.http(b"\x05")),
    "workq": Target(parsers.workq_parser, WORKQ, 800),
    "replies": Target(parsers.replies, seeds.answers, 1000),
    "conversation": Target(sessions.conversation, MEMCACHE),
    "jobs": Target(sessions.conversation, seeds.spoken("workq/protocol_cases", b"\x0f")),
    "thrift-calls": Target(sessions.thrift_calls, seeds.thrift(b"")),
    "admin": Target(sessions.admin, seeds.operators, 60),
    "users": Target(sessions.users, seeds.logins),
    "tls": Target(sessions.tls, seeds.handshakes, 40),
    "history": Target(sessions.history, seeds.histories, 10),
    "kestrel-journal": Target(readers.kestrel_journal, seeds.files("kestrel/journal_cases", reader_first=False)),
    "libkestrel-journal": Target(readers.libkestrel_journal, seeds.files("libkestrel/cases", reader_first=True)),
    "command-log": Target(readers.command_log, seeds.logs),
    "redo-log": Target(readers.redo_log, seeds.redo),
    "own-file": Target(readers.own_file, readers.own_files, 20),
    "tools": Target(readers.tools, seeds.every_format, 40),
    "manifest": Target(readers.manifest, seeds.manifests),
    "configuration": Target(readers.configuration, seeds.configurations),
}
