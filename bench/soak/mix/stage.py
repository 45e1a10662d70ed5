"""A server of a soak: its settings, its disk, its process, and its figures as seen from outside."""

from __future__ import annotations

import os
import shutil
import signal
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import trio
from msgspec import Struct

from staniel.bench.harness.process import free_port
from staniel.bench.harness.small_disk import EXT4, CannotMount, SmallDisk, small_disk
from staniel.bench.soak.mix.wires import Address
from staniel.bench.soak.victim import Victim

DISK_BYTES = 192 << 20
FILL_LEAVES_BYTES = 200 << 10
SLOW_DISK = Path(__file__).with_name("slow_disk.c")
CERTIFICATE = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 -subj /CN=localhost "
    "-addext subjectAltName=DNS:localhost,IP:127.0.0.1"
)
PROTOCOLS = ("memcache", "text", "thrift", "workq")

KESTREL = {
    "work": 'sync_journal = "always"\nmax_deliveries = 4\ndead_letter_queue = "dead"',
    "dead": 'sync_journal = "always"',
    "soon": 'sync_journal = "50ms"',
    "whenever": 'sync_journal = "os"',
    "brief": 'sync_journal = "50ms"\nmax_age = "300ms"\nexpire_to_queue = "late"',
    "late": 'sync_journal = "always"',
    "events": 'sync_journal = "os"',
}
LIBKESTREL = {
    "stream": 'sync_journal = "always"',
    "stream-soon": 'sync_journal = "50ms"',
    "readers": 'sync_journal = "os"',
}
FAMILIES = (
    ("work", "dead"),
    ("soon",),
    ("whenever",),
    ("brief", "late"),
    ("events",),
    ("events+audit",),
    ("stream",),
    ("stream-soon",),
    ("readers",),
    ("readers+log",),
    ("readers+audit",),
)
"""The families of queues: the queues that an item may be in, first the one that it was put into. Their names select the
journal's format.
"""

CONFIG = """
[server]
spool = "{spool}"
max_open_transactions = 100000
expiration_timer_frequency = "50ms"
redo_log = {redo_log}

[memcache]
tls_port = {tls[memcache]}

[text]
port = {plain[text]}
tls_port = {tls[text]}

[thrift]
port = {plain[thrift]}
tls_port = {tls[thrift]}

[workq]
port = {plain[workq]}
tls_port = {tls[workq]}
cmdlog_sync = "always"
cmdlog_seg_size = "256KB"
cmdlog_clean_int = "2s"

[tls]
certificate = "{certificate}"
key = "{key}"
handshake_timeout = "2s"

[default]
default_journal_size = "{small}KB"
max_memory_size = "128KB"
max_journal_size = "1MB"
min_journal_compact_delay = "100ms"
"""


class Figures(Struct, frozen=True):
    """The figures of the server's process and its disk, at `at_s` of the run."""

    at_s: float
    rss_kb: int
    files: int
    disk_kb: int


class Stage:
    """A stage. `redo_log` is its setting as TOML. `left_out` lists what the machine cannot do."""

    def __init__(self, name: str, folder: Path, redo_log: str, seed: int) -> None:
        self.name = name
        self.redo_log = redo_log
        self.random = Random(f"{seed} {name}")
        self.folder = folder
        self.left_out: list[str] = []
        self.began_s = time.monotonic()
        self.plain = {protocol: free_port() for protocol in PROTOCOLS}
        self.tls = {protocol: free_port() for protocol in PROTOCOLS}
        self.disk: SmallDisk | None = None
        self._slow = folder / "slow"
        self.victim: Victim

    @contextmanager
    def open(self, environment: Mapping[str, str] | None = None) -> Iterator[None]:
        """Open a disk and a certificate; at the end remove every process."""
        self.folder.mkdir(parents=True)
        wrapper: tuple[str, ...] = ()
        with ExitStack() as stack:
            try:
                self.disk = stack.enter_context(small_disk(self.folder / "disk", DISK_BYTES, EXT4))
                wrapper = self.disk.wrapper
            except (CannotMount, OSError) as error:
                self.left_out.append(f"a full disk: {error}")
            subprocess.run(
                [*CERTIFICATE.split(), "-keyout", str(self.folder / "key.pem"), "-out", str(self.folder / "cert.pem")],
                check=True, capture_output=True,
            )  # fmt: skip
            self.trust = ssl.create_default_context(cafile=str(self.folder / "cert.pem"))
            self.victim = stack.enter_context(Victim(self.folder, self.config(), wrapper))
            self.victim.environment = dict(environment or {}) | self._slow_disk()
            yield

    def _slow_disk(self) -> dict[str, str]:
        library = self.folder / "slow_disk.so"
        command = ["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(SLOW_DISK), "-ldl"]
        if shutil.which("cc") is None or subprocess.run(command, capture_output=True).returncode:
            self.left_out.append("a slow disk: it needs a C compiler, cc")
            return {}
        return {"LD_PRELOAD": str(library), "SLOW_DISK": str(self._slow)}

    @property
    def is_slowable(self) -> bool:
        return "LD_PRELOAD" in self.victim.environment

    def slow_down(self, sync_ms: int) -> None:
        """Slow every sync down by `sync_ms` from now on; 0 ends that."""
        if sync_ms:
            self._slow.write_text(str(sync_ms))
        else:
            self._slow.unlink(missing_ok=True)

    @property
    def spool(self) -> str:
        return str((self.disk.folder if self.disk else self.folder) / "spool")

    def config(self) -> str:
        """Return the configuration. Its journals are so small that each minute rotates, rewrites and packs; the size
        changes with each reload.
        """
        small = self.random.choice((8, 16, 32))
        settings = CONFIG.format(
            spool=self.spool, redo_log=self.redo_log, plain=self.plain, tls=self.tls, small=small,
            certificate=self.folder / "cert.pem", key=self.folder / "key.pem",
        )  # fmt: skip
        for name, keys in KESTREL.items():
            settings += f"\n[queues.{name}]\n{keys}\n"
        for name, keys in LIBKESTREL.items():
            settings += f'\n[queues.{name}]\njournal_format = "libkestrel"\n{keys}\n'
        return settings

    def address(self, protocol: str, *, is_secure: bool) -> Address:
        if is_secure:
            return "127.0.0.1", self.tls[protocol]
        return "127.0.0.1", self.victim.port if protocol == "memcache" else self.plain[protocol]

    # the process

    async def start(self) -> None:
        """Start the server in this thread, because the kernel ends a child when the thread that made it ends. Raises
        StartFailed.
        """
        began_s = time.monotonic()
        self.victim.spawn()
        await trio.to_thread.run_sync(self.victim.await_greeting, began_s)

    async def wait(self) -> int:
        """Wait until the server has ended. Return its exit code."""
        return await trio.to_thread.run_sync(self.victim.wait)

    def reload(self) -> None:
        self.victim.configure(self.config())
        self.victim.send_signal(signal.SIGHUP)

    # figures

    @property
    def now_s(self) -> float:
        return time.monotonic() - self.began_s

    def figures(self) -> Figures:
        """Return the figures. Raises OSError if the process has gone."""
        process = Path("/proc") / str(self.victim.pid)
        rss_kb = int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
        return Figures(self.now_s, rss_kb, len(os.listdir(process / "fd")), self.disk_kb())

    def disk_kb(self) -> int:
        """Return the size of the blocks of the spool's files."""
        spool = Path(f"/proc/{self.victim.pid}/root{self.spool}") if self.disk else Path(self.spool)
        blocks = 0
        for folder, _, names in os.walk(spool):
            for name in names:
                try:
                    blocks += os.lstat(os.path.join(folder, name)).st_blocks
                except OSError:
                    pass  # gone meanwhile
        return blocks // 2
