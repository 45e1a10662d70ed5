"""The options of `staniel`, for reading and for writing, parsed and validated."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from staniel.pipeline.lake.folders import absolute, below
from staniel.pipeline.sources.access import Access
from staniel.pipeline.sources.connection import PORT, BlockingConnection, address
from staniel.pipeline.sources.job_connection import PORT as JOB_PORT
from staniel.pipeline.sources.job_connection import JobConnection
from staniel.pipeline.sources.options import Options, trigger_wait
from staniel.protocol.workq.fields import is_name

OF_SERVERS = {
    "protocol",
    "servers",
    "serverTimeoutMs",
    "user",
    "tokenFile",
    "tls",
    "caFile",
    "certificateFile",
    "keyFile",
}
READING = OF_SERVERS | {
    "queue",
    "queues",
    "spoolPath",
    "maxItemsPerTrigger",
    "minItemsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "minPartitions",
    "connections",
    "pollTimeoutMs",
}
WRITING = OF_SERVERS | {
    "queue",
    "onFull",
    "fullTimeoutMs",
    "windowItems",
    "guardPath",
    "appId",
    "txnAppId",
    "keyColumn",
    "keyLife",
    "onForgottenKeys",
    "maxItemsPerSecond",
    "priority",
    "ttrMs",
    "ttlMs",
    "maxAttempts",
    "maxFails",
}
OF_ITEMS = ("user", "tokenFile", "connections", "onFull", "fullTimeoutMs", "keyLife")
OF_JOBS = ("priority", "ttrMs", "ttlMs", "maxAttempts", "maxFails")
KAFKAS_NAMES = {
    "subscribe": "queues",
    "maxOffsetsPerTrigger": "maxItemsPerTrigger",
    "minOffsetsPerTrigger": "minItemsPerTrigger",
    "topic": "queue",
    "kafka.bootstrap.servers": "servers",
}
DELTAS_NAMES = {"txn.appId": "txnAppId", "txnVersion": "batchId", "txn.version": "batchId"}
GUARD_FOLDER = "staniel-sink"  # in the checkpoint of a stream
KEY_LIFE_MS = 3_600_000  # the default of the server's put_key_life
OF_STREAMS = {"checkpointLocation", "queryName"}  # Spark's own options, which it passes on
NOT_HERE = {
    **dict.fromkeys(READING - WRITING, "reading"),
    **dict.fromkeys(WRITING - READING, "writing"),
    "batchId": "batch writes, as in foreachBatch; Spark numbers the batches of a stream",
    "path": "other sources: a live queue has servers and a queue",
}


class ServerProtocol(Enum):
    """The protocol of the servers, and so what is put and taken: items or jobs."""

    MEMCACHE = "memcache"
    WORKQ = "workq"


class OnFull(Enum):
    WAIT = "wait"
    FAIL = "fail"
    DROP = "drop"


class OnForgotten(Enum):
    FAIL = "fail"
    WARN = "warn"


class LiveOptions:
    """The options of both directions. Raises ValueError."""

    KNOWN = READING | WRITING

    def __init__(self, given: Mapping[str, str]) -> None:
        elsewhere = {name: where for name, where in NOT_HERE.items() if name not in self.KNOWN}
        options = Options(given, self.KNOWN, "staniel", elsewhere, {**KAFKAS_NAMES, **DELTAS_NAMES})
        self.options = options
        self.protocol = options.choice("protocol", ServerProtocol.MEMCACHE)
        self.has_jobs = self.protocol is ServerProtocol.WORKQ
        self._check_protocol()
        port = JOB_PORT if self.has_jobs else PORT
        self.servers = options.names("servers") or [f"127.0.0.1:{port}"]
        for server in self.servers:
            address(server, port)
        self.timeout_s = options.number("serverTimeoutMs", 30_000, 1) / 1000
        self.access = _access(options)

    @staticmethod
    def protocol_of(given: Mapping[str, str]) -> ServerProtocol:
        """Return the protocol, of options that are not validated otherwise. Raises ValueError."""
        named = {name: text for name, text in given.items() if name.lower() == "protocol"}
        return Options(named, {"protocol"}, "staniel").choice("protocol", ServerProtocol.MEMCACHE)

    def _check_protocol(self) -> None:
        """Refuse options of the other protocol. Raises ValueError."""
        for name in OF_ITEMS if self.has_jobs else OF_JOBS:
            if self.options.has(name):
                other = ServerProtocol.MEMCACHE if self.has_jobs else ServerProtocol.WORKQ
                hint = "; users of jobs are known by certificateFile" if name in ("user", "tokenFile") else ""
                raise ValueError(f"option {name} is for protocol={other.value}{hint}")

    def connect(self, server: str) -> BlockingConnection | JobConnection:
        """Connect to a server. Raises ServerLost, ServerRefused, AccessError."""
        kind = JobConnection if self.has_jobs else BlockingConnection
        return kind(server, self.timeout_s, self.access)

    def reach(self) -> None:
        """Check, before anything is started, that all servers reply and accept the login. Raises what `connect`
        raises.
        """
        for server in self.servers:
            self.connect(server).close()


def _access(options: Options) -> Access:
    """Return the options for connecting. Raises ValueError."""
    user, token_file = options.text("user"), options.text("tokenFile")
    if bool(user) != bool(token_file):
        raise ValueError("user and tokenFile belong together: the file's first line is the user's token or password")
    files = [options.text(name) for name in ("caFile", "certificateFile", "keyFile")]
    has_tls = options.switch("tls", any(files))
    if any(files) and not has_tls:
        raise ValueError("caFile, certificateFile and keyFile are for TLS, and tls is false")
    if files[2] and not files[1]:
        raise ValueError("keyFile is the key of certificateFile, which is not given")
    return Access(user, token_file, has_tls, *files)


class DrainOptions(LiveOptions):
    """The options for reading."""

    KNOWN = READING

    def __init__(self, given: Mapping[str, str]) -> None:
        super().__init__(given)
        options = self.options
        self.queues = options.names("queue") + options.names("queues")
        if not self.queues:
            raise ValueError("staniel needs the option queue or queues: what to drain")
        if self.has_jobs and (bad := [name for name in self.queues if not is_name(name.encode())]):
            raise ValueError(f"{bad[0]!r} is no name of jobs: 1 to 255 of A-Z a-z 0-9 _ . -")
        self.spool_path = options.demand("spoolPath", "a folder beside the checkpoint, for this query alone")
        self.items_a_trigger = options.number("maxItemsPerTrigger", 50_000, 1)
        self.items_before_trigger, self.delay_ms = trigger_wait(options, "minItemsPerTrigger")
        self.bytes_a_trigger = max(1, options.bytes("maxBytesPerTrigger", 256 << 20))
        self.partitions = options.number("minPartitions", 2, 1)
        self.connections = options.number("connections", 8, 1)
        self.poll_ms = options.number("pollTimeoutMs", 200)


class SinkOptions(LiveOptions):
    """The options for writing a stream."""

    KNOWN = WRITING | OF_STREAMS

    def __init__(self, given: Mapping[str, str]) -> None:
        super().__init__(given)
        options = self.options
        if not given:
            raise ValueError(
                "the sink needs the option servers, or queue if the server is 127.0.0.1:22133: of a table in a catalog"
                " Spark gives a writer no options, so name them in the write: INSERT INTO jobs WITH (servers = '...')"
            )
        self.queue = options.text("queue")
        self.on_full = options.choice("onFull", OnFull.WAIT)
        self.full_timeout_s = options.number("fullTimeoutMs", 600_000) / 1000
        self.window_items = options.number("windowItems", 200, 1)
        self.guard_path = _guard_path(options)
        self.app_id = options.text("txnAppId") or options.text("appId", "default")
        self.key_column = options.text("keyColumn")
        self.has_keys = bool(self.key_column or options.has("txnAppId"))
        self.key_life_ms = options.duration_ms("keyLife", KEY_LIFE_MS)
        self.on_forgotten = options.choice("onForgottenKeys", OnForgotten.FAIL)
        if options.has("appId") and options.has("txnAppId"):
            raise ValueError("options appId and txnAppId say the same: give txnAppId alone, which also makes keys")
        if options.has("appId") and not self.guard_path:
            raise ValueError("option appId names what a guard knows: give guardPath too, or leave appId out")
        if options.has("txnAppId") and not self.guard_path:
            raise ValueError(
                "txnAppId needs guardPath, a folder that the driver and all executors share, where the sink notes since"
                " when rows are being put; of a stream it is in the option checkpointLocation, if that is given"
            )
        if not self.has_keys and (options.has("keyLife") or options.has("onForgottenKeys")):
            raise ValueError("keyLife and onForgottenKeys are for writes with keys: give txnAppId or keyColumn too")
        self.items_a_second = options.number("maxItemsPerSecond", 0)
        self.priority = options.integer("priority", 0)
        self.ttr_ms = options.number("ttrMs", 60_000, 1)
        self.ttl_ms = options.number("ttlMs", 86_400_000, 1)
        self.max_attempts = options.number("maxAttempts", 0)
        self.max_fails = options.number("maxFails", 0)


def _guard_path(options: Options) -> str:
    """Return the folder of the guard; that of a stream with keys is in its checkpoint, if no other is given."""
    path, checkpoint = options.text("guardPath"), options.text("checkpointLocation")
    if not path and checkpoint and (options.has("txnAppId") or options.has("keyColumn")):
        path = below(checkpoint, GUARD_FOLDER)
    return absolute(path) if path else ""


class BatchSinkOptions(SinkOptions):
    """The options for writing a table. `batch` is its number among those of `app_id`, if there is a guard; Spark does
    not number batch writes.
    """

    KNOWN = WRITING | {"batchId"}

    def __init__(self, given: Mapping[str, str]) -> None:
        super().__init__(given)
        options = self.options
        self.batch = options.number("batchId", 0) if options.has("batchId") else None
        has_name = options.has("appId") or options.has("txnAppId")
        if (self.batch is None) == bool(self.guard_path) or (self.guard_path and not has_name):
            raise ValueError(
                "a batch write is known again by guardPath, appId and batchId together: inside foreachBatch give a name"
                " of this write as appId (or txnAppId) and the number of the batch as batchId (or txnVersion); outside,"
                " a number that grows"
            )
