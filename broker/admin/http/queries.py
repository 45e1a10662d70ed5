"""Handlers of GET: views of the server, which change nothing."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from staniel.broker.admin import browse, metrics, payloads, views
from staniel.broker.admin.files import journal_view
from staniel.broker.admin.health import for_strangers
from staniel.broker.admin.history import SPANS
from staniel.broker.admin.history import view as history_view
from staniel.broker.admin.http.events import PageEvents
from staniel.broker.admin.http.exchange import BadBody, Exchange
from staniel.broker.commands.batches import BatchCommand, PieceCommand
from staniel.broker.figures import QueueLook, snapshot
from staniel.broker.operations.audit import KEPT
from staniel.broker.operations.running import Operation
from staniel.broker.rights import Role
from staniel.broker.wall_clock import by_the_wall
from staniel.protocol.http import replies
from staniel.queues.queue import Queue

VIEWS_PER_TURN = 50  # 1 ms
METRICS_PER_TURN = 128  # 1 ms
RANKED_PER_TURN = 2_000  # 1 ms
READS_MAX = 1000
LIMIT_DEFAULT = 20
AUDIT_DEFAULT = 100


def live(exchange: Exchange, now_ms: int) -> None:
    """Reply that the server is alive."""
    exchange.json({"status": "ok"})


def ready(exchange: Exchange, now_ms: int) -> None:
    """Reply with everything that is wrong, to clients that may look at all queues; to others with the kinds of trouble
    only. The status 503 makes a load balancer send no clients, so it is 200 while consumers can still drain the server;
    with `for=puts` it is 503 if puts are refused.
    """
    wanted = exchange.request.query.get("for", "gets")
    if wanted not in ("gets", "puts"):
        raise BadBody("for is gets or puts")
    health, rights = exchange.broker.health.check(now_ms), exchange.rights
    is_ready = health.ready_for_puts if wanted == "puts" else health.ready
    if rights is not None and rights.refusal_to_look():
        health = for_strangers(health)
    exchange.json(health, 200 if is_ready else 503)


def server(exchange: Exchange, now_ms: int) -> None:
    exchange.json(exchange.server_view(now_ms))


def queues(exchange: Exchange, now_ms: int) -> None:
    """Reply with all queues by name, as an array, in pieces. `prefix`: only names that begin with it."""
    broker = exchange.broker
    prefix = exchange.request.query.get("prefix", "")
    names = sorted(name for name in broker.queues.by_name if name.startswith(prefix))
    before = [b"["]

    def show(name: str, now_ms: int) -> bool:
        queue = broker.queues.find(name)
        if queue is not None:  # the queue may have been deleted since
            exchange.session.depend_on(queue)
            exchange.add(before[0] + replies.encode(snapshot(QueueLook(queue, now_ms, broker.spool))))
            before[0] = b",\n"
        return True

    def finish() -> None:
        exchange.add(b"[]\n" if before[0] == b"[" else b"]\n")
        exchange.end()

    exchange.begin_pieces(replies.JSON)
    BatchCommand(exchange.session, names, show, finish, VIEWS_PER_TURN, exchange.fail).visit_some(now_ms)


def queue(exchange: Exchange, now_ms: int) -> None:
    shown = find(exchange)
    if shown is not None:
        exchange.json(snapshot(QueueLook(shown, now_ms, exchange.broker.spool)))


def items(exchange: Exchange, now_ms: int) -> None:
    """Reply with a page of a queue's items, the head first; nothing is taken."""
    queue = find(exchange)
    if queue is None:
        return
    offset = exchange.number("offset", 0, 1 << 62)
    limit = exchange.number("limit", LIMIT_DEFAULT, browse.LIMIT_MAX)
    preview_bytes = exchange.number("bytes", browse.PREVIEW_BYTES, browse.BYTES_MAX)
    try:
        page = browse.browse(queue, now_ms, offset, limit, preview_bytes)
    except OSError as error:
        exchange.error(503, f"the journal of {queue.name} cannot be read: {error.strerror}")
        return
    if sum([len(item.data) for item in page.items]) <= payloads.LONG_BYTES:
        exchange.json(page)
        return
    exchange.begin_pieces(replies.JSON)
    exchange.add_each(_page_in_pieces(page))


def _page_in_pieces(page: browse.Page) -> Iterator[bytes]:
    """Yield the page as JSON in pieces: `items` is its last member, and `data` and `is_cut` are the last members of an
    item.
    """
    yield replies.encode(structs.replace(page, items=[])).removesuffix(b"]}")
    for at, item in enumerate(page.items):
        before, data, behind = replies.encode(structs.replace(item, data="")).partition(b'"data":"')
        yield b"," * (at > 0) + before + data
        yield from payloads.text_in_pieces(item.data)
        yield behind
    yield b"]}\n"


def open_reads(exchange: Exchange, now_ms: int) -> None:
    queue = find(exchange)
    if queue is not None:
        offset, limit = exchange.number("offset", 0, 1 << 62), exchange.number("limit", READS_MAX, READS_MAX)
        holders: dict[int, str] = {}

        def show(now_ms: int) -> None:
            exchange.json(views.open_reads(queue, exchange.broker.leases, now_ms, offset, limit, holders))

        search = views.find_holders(exchange.broker.sessions, queue, holders)
        PieceCommand(exchange.session, search, show, exchange.fail).make_some(now_ms)


def waiters(exchange: Exchange, now_ms: int) -> None:
    queue = find(exchange)
    if queue is not None:
        offset, limit = exchange.number("offset", 0, 1 << 62), exchange.number("limit", READS_MAX, READS_MAX)
        exchange.json(views.waiters(queue, offset, limit))


def queue_config(exchange: Exchange, now_ms: int) -> None:
    """Reply with the resolved settings of any name, under the keys of the configuration file: sizes in bytes, durations
    in ms, "none" where there is no limit.
    """
    exchange.json(dict(exchange.broker.config.worded(exchange.names[0])))


def history(exchange: Exchange, now_ms: int) -> None:
    """Reply with a queue's history of the last ten minutes, or hour, or day."""
    span = exchange.request.query.get("span", "10m")
    if span not in SPANS:
        raise BadBody(f"span is one of {', '.join(SPANS)}")
    queue = find(exchange)
    if queue is not None:
        broker = exchange.broker
        row = broker.sampler(now_ms).rows.get(queue.name)
        view = history_view(queue.name, row.ring if row is not None else None, span)
        exchange.json(by_the_wall(view, broker.calendar.ahead_ms))


def history_of_all(exchange: Exchange, now_ms: int) -> None:
    """Reply with the history of all queues together."""
    span = exchange.request.query.get("span", "10m")
    if span not in SPANS:
        raise BadBody(f"span is one of {', '.join(SPANS)}")
    broker = exchange.broker
    exchange.json(by_the_wall(history_view("", broker.sampler(now_ms).ring, span), broker.calendar.ahead_ms))


def journal(exchange: Exchange, now_ms: int) -> None:
    """Reply with the files of a queue's journal."""
    queue = find(exchange)
    if queue is not None:
        exchange.json(journal_view(exchange.broker.spool.fs, queue))


def jobs(exchange: Exchange, now_ms: int) -> None:
    limit = exchange.number("limit", READS_MAX, READS_MAX)
    offset, broker = exchange.number("offset", 0, 1 << 62), exchange.broker
    exchange.json(views.jobs_by_name(broker.workq.jobs, offset, limit) if broker.serves_jobs else [])


def events(exchange: Exchange, now_ms: int) -> None:
    """Begin the stream of events for a page."""
    PageEvents(exchange, now_ms).begin_stream(now_ms)


def clients(exchange: Exchange, now_ms: int) -> None:
    limit = exchange.number("limit", READS_MAX, READS_MAX)
    offset = exchange.number("offset", 0, 1 << 62)
    broker = exchange.broker
    shown = views.clients(broker.sessions, broker.leases, broker.active_ms_of, offset, limit, now_ms)
    exchange.json(list(shown))


def audit(exchange: Exchange, now_ms: int) -> None:
    limit = exchange.number("limit", AUDIT_DEFAULT, KEPT)
    exchange.json(exchange.broker.audit.newest(exchange.number("offset", 0, 1 << 62), limit))


def undos(exchange: Exchange, now_ms: int) -> None:
    exchange.json(exchange.broker.undos.views(now_ms))


def operations(exchange: Exchange, now_ms: int) -> None:
    exchange.json(exchange.broker.operations.views(now_ms))


def operation(exchange: Exchange, now_ms: int) -> None:
    running = find_operation(exchange)
    if running is not None:
        exchange.json(running.view(now_ms))


def prometheus(exchange: Exchange, now_ms: int) -> None:
    """Reply with metrics. The format requires that all samples of a metric stand together, so they are collected queue
    by queue first, then sent.
    """
    broker = exchange.broker
    collected, named = metrics.QueueMetrics(), metrics.NamedQueues(len(broker.queues))

    def look(queue: Queue, now_ms: int) -> bool:
        values = metrics.queue_samples(broker.spool, queue, now_ms)
        if named.takes(queue):
            collected.add(queue.name, values)
        else:
            collected.add_to_others(values)
        return True

    def send() -> None:
        exchange.begin_pieces(metrics.CONTENT_TYPE)
        exchange.add(server_metrics(exchange, now_ms))
        exchange.add_each(iter(collected.families()))

    collect = BatchCommand(exchange.session, broker.queues, look, send, METRICS_PER_TURN, exchange.fail)
    if named.are_all:
        collect.visit_some(now_ms)
        return

    def decide() -> None:
        named.decide()
        exchange.session.yield_turn(collect.visit_some)

    ranking = BatchCommand(exchange.session, broker.queues, named.count_length, decide, RANKED_PER_TURN, exchange.fail)
    ranking.visit_some(now_ms)


def server_metrics(exchange: Exchange, now_ms: int) -> bytes:
    """Return the server's own metrics."""
    broker, view = exchange.broker, exchange.server_view(now_ms)
    health = broker.health.check(now_ms)
    first = [
        *metrics.of_copies(broker.watch, now_ms),
        *metrics.of_read(broker.watch, broker.refused_removals),
        *metrics.of_service(view, health),
        *metrics.of_traffic(view, broker.counters),
        *metrics.of_disk(broker.spool),
        *metrics.of_refusals(broker.queues, broker.pauses, broker.wall, broker.logins),
    ]
    last = [
        *metrics.of_certificate(broker.health.server.certificate_ends_ms),
        *metrics.of_backup(broker.last_backup.age_ms(now_ms)),
        *metrics.of_process(broker.process()),
        *(metrics.of_jobs(view) if broker.serves_jobs else ()),
    ]
    text = [
        *metrics.lines_of(first),
        *metrics.health_reasons(health, broker.health.queues.names_by_reason()),
        *metrics.of_holds(broker.file_holds, now_ms),
        *metrics.limits_reached(broker.limits, broker.counters, broker.put_keys),
        *metrics.build_info(view),
        *metrics.lines_of(last),
        *metrics.histograms(broker.latencies),
        *([broker.health.membership.metrics()] if broker.health.membership is not None else ()),
    ]
    return "".join(text).encode()


def cluster(exchange: Exchange, now_ms: int) -> None:
    """Reply with the state of this member of a cluster. The page asks it of every server: one that stands alone has the
    role "alone".
    """
    membership = exchange.broker.health.membership
    exchange.json({"role": "alone"} if membership is None else membership.status())


def member(exchange: Exchange, now_ms: int) -> None:
    """Reply with the same, under the path that members serve in every role."""
    if exchange.broker.health.membership is None:
        exchange.error(404, "this server stands alone")
    else:
        cluster(exchange, now_ms)


def find_operation(exchange: Exchange) -> Operation | None:
    """Return the operation that the path names. If there is none, send an error and return None."""
    text = exchange.names[0]
    is_number = text.isascii() and text.isdigit() and len(text) < 19
    operation = exchange.broker.operations.find(int(text)) if is_number else None
    if operation is None:
        exchange.error(404, f"there is no operation {text}: `staniel operations` lists them")
    elif exchange.rights is not None and (why := exchange.rights.refusal(Role.OPERATE, operation.queue_name)):
        exchange.forbid(why)
        return None
    return operation


def find(exchange: Exchange) -> Queue | None:
    """Return the queue that the path names. If there is none, send an error and return None."""
    name = exchange.names[0]
    queues = exchange.broker.queues
    queue = queues.find(name)
    if queue is not None:
        exchange.session.depend_on(queue)  # wait until everything shown is durable
        return queue
    exchange.session.batch = max(exchange.session.batch, queues.erased.get(name, 0))  # or until the deletion is durable
    if why := queues.why_blocked(name):
        exchange.error(503, why)
    elif name in queues.aliases:
        exchange.error(404, f"{name} is an alias of {', '.join(queues.aliases[name].targets)}")
    else:
        exchange.error(404, f"there is no queue {name}")
    return None
