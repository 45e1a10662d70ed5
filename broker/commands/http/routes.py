"""Every path of the admin listener: its method, its handler, and the text of its description."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from staniel.broker.commands.http import actions, backup, choosing, kestrel, queries, reservations
from staniel.broker.commands.http.events import CONTENT_TYPE as EVENTS
from staniel.broker.commands.http.events import PageEvent
from staniel.broker.commands.http.exchange import Exchange
from staniel.broker.figures import QueueSnapshot
from staniel.broker.operations.audit import AuditEntry
from staniel.broker.operations.backup import HeldFiles
from staniel.broker.operations.browse import Matches, Page
from staniel.broker.operations.files import JournalFiles
from staniel.broker.operations.history import HistoryView
from staniel.broker.operations.last_backup import BackupMade
from staniel.broker.operations.reasons import Health
from staniel.broker.operations.running import OperationView
from staniel.broker.operations.undo import UndoView
from staniel.broker.operations.views import ClientView, JobsView, OpenReadView, ServerView, WaiterView
from staniel.protocol.http import replies

Handler = Callable[[Exchange, int], None]
PAGING = ("offset", "limit")


class Route(Struct, frozen=True):
    """A path of the admin listener. `path` has {name} for each open part. `body`: the type that a POST takes; `reply`:
    the type of a successful reply, None where the summary is enough; `query`: names of numbers; `type`: of the reply;
    `operation`: the name under which its refusals are noted in the audit log, "": they are not. `raw`: the body may be
    bytes instead, and `query` then has the other values.
    """

    method: str
    path: str
    serve: Handler
    summary: str
    reply: object = None
    body: type[Struct] | None = None
    query: tuple[str, ...] = ()
    type: str = replies.JSON
    operation: str = ""
    raw: bool = False

    @property
    def parts(self) -> list[str]:
        return self.path.strip("/").split("/")


ROUTES = (
    Route("GET", "/health/live", queries.live, "Whether the process answers."),
    Route(
        "GET",
        "/health/ready",
        queries.ready,
        "Whether consumers are served (for=puts: whether nothing is refused); if not: why, and what mends it.",
        Health,
        query=("for",),
    ),
    Route("GET", "/metrics", queries.prometheus, "Everything countable, for Prometheus."),
    Route("GET", "/api/server", queries.server, "The server as a whole.", ServerView),
    Route("GET", "/api/queues", queries.queues, "All queues by name.", list[QueueSnapshot], query=("prefix",)),
    Route("GET", "/api/queues/{queue}", queries.queue, "One queue.", QueueSnapshot),
    Route(
        "GET",
        "/api/queues/{queue}/items",
        queries.items,
        "A page of its items, the head first; takes nothing.",
        Page,
        query=(*PAGING, "bytes"),
    ),
    Route(
        "POST",
        "/api/queues/{queue}/find",
        choosing.find_items,
        "The items that meet terms, the head first; takes nothing.",
        Matches,
        choosing.FindBody,
    ),
    Route("GET", "/api/queues/{queue}/open", queries.open_reads, "Who holds what.", list[OpenReadView], query=PAGING),
    Route("GET", "/api/queues/{queue}/waiters", queries.waiters, "Who waits.", list[WaiterView], query=PAGING),
    Route(
        "GET",
        "/api/queues/{queue}/history",
        queries.history,
        "The last ten minutes, hour or day of it.",
        HistoryView,
        query=("span",),
    ),
    Route("GET", "/api/queues/{queue}/journal", queries.journal, "The files of its journal.", JournalFiles),
    Route("GET", "/api/queues/{queue}/config", queries.queue_config, "Its settings, resolved."),
    Route("GET", "/api/clients", queries.clients, "Connections, the oldest first.", list[ClientView], query=PAGING),
    Route("GET", "/api/history", queries.history_of_all, "All queues together.", HistoryView, query=("span",)),
    Route("GET", "/api/jobs", queries.jobs, "Jobs of workq's by name.", list[JobsView], query=PAGING),
    Route(
        "GET",
        "/api/audit",
        queries.audit,
        "What was done to queues and the server, and who did it; the newest first.",
        list[AuditEntry],
        query=PAGING,
    ),
    Route("GET", "/api/events", queries.events, "What changes, as it does.", PageEvent, type=EVENTS),
    Route(
        "POST",
        "/api/queues/{queue}/put",
        actions.put,
        "Store one item; byte by byte it may be as large as max_item_size.",
        body=actions.PutBody,
        query=("expires_in_ms", "flags"),
        raw=True,
    ),
    Route("POST", "/api/queues/{queue}/take", actions.take, "Take items for good.", body=actions.TakeBody),
    Route(
        "POST",
        "/api/queues/{queue}/reserve",
        reservations.reserve,
        "Hold items for a time; by their tokens any client confirms them, hands them back, or holds them longer.",
        reservations.Reservations,
        reservations.ReserveBody,
    ),
    Route(
        "POST",
        "/api/queues/{queue}/reserved/confirm",
        reservations.confirm,
        "Remove reserved items for good.",
        reservations.EndedReservations,
        reservations.TokensBody,
    ),
    Route(
        "POST",
        "/api/queues/{queue}/reserved/abort",
        reservations.abort,
        "Hand reserved items back.",
        reservations.EndedReservations,
        reservations.TokensBody,
    ),
    Route(
        "POST",
        "/api/queues/{queue}/reserved/extend",
        reservations.extend,
        "Let reservations end later.",
        reservations.EndedReservations,
        reservations.ExtendBody,
    ),
    Route(
        "POST",
        "/api/queues/{queue}/purge",
        actions.purge,
        "Remove all that waits.",
        actions.Purged,
        actions.PurgeBody,
        operation="purge",
    ),
    Route(
        "POST",
        "/api/queues/{queue}/move",
        actions.move,
        "Move items to another queue.",
        actions.MoveResult,
        actions.MoveBody,
        operation="move",
    ),
    Route(
        "POST",
        "/api/queues/{queue}/redrive",
        actions.redrive,
        "Move dead letters back.",
        actions.MoveResult,
        actions.RedriveBody,
        operation="redrive",
    ),
    Route("POST", "/api/queues/{queue}/pause", actions.pause, "Hold back gets or puts.", body=actions.PauseBody),
    Route("POST", "/api/queues/{queue}/resume", actions.resume, "Let them go on.", body=actions.PauseBody),
    Route(
        "POST", "/api/queues/{queue}/open/abort", actions.abort_all, "Give back all open reads.", body=actions.AbortBody
    ),
    Route("POST", "/api/queues/{queue}/open/{xid}/abort", actions.abort, "Give one open read back."),
    Route("POST", "/api/clients/{number}/abort", actions.abort_client, "Give back every open read of a client."),
    Route(
        "DELETE",
        "/api/queues/{queue}",
        actions.delete,
        "Delete a queue and its files.",
        actions.Deleted,
        actions.DeleteBody,
        operation="delete",
    ),
    Route(
        "POST",
        "/api/backup",
        backup.hold,
        "Hold the files of a consistent copy as long as the connection lasts, and list them.",
        HeldFiles,
        type=backup.CONTENT_TYPE,
    ),
    Route(
        "POST",
        "/api/backup/made",
        backup.note_made,
        "Say that a backup is whole; its age is a metric and a reason of health.",
        body=BackupMade,
        operation="backup",
    ),
    Route(
        "POST",
        "/api/status",
        actions.status,
        "Change the server's status.",
        body=actions.StatusBody,
        operation="status",
    ),
    Route("POST", "/api/reload", actions.reload, "Read the configuration again.", operation="reload"),
    Route("POST", "/api/stop", actions.stop, "Stop the server as SIGTERM does."),
    Route("GET", "/api/undo", queries.undos, "What can be undone, the newest first.", list[UndoView]),
    Route(
        "POST",
        "/api/undo/{number}",
        actions.undo,
        "Undo an operation.",
        actions.Undone,
        operation="undo",
    ),
    Route("DELETE", "/api/undo/{number}", actions.forget_undo, "Have it be gone for good.", operation="forget"),
    Route(
        "GET",
        "/api/operations",
        queries.operations,
        "Long operations: those that run, the oldest first, then those that ended lately, the newest first.",
        list[OperationView],
    ),
    Route("GET", "/api/operations/{number}", queries.operation, "One operation.", OperationView),
    Route(
        "POST",
        "/api/operations/{number}/cancel",
        actions.cancel,
        "End an operation early, between two items; what was done can be undone.",
        OperationView,
        operation="cancel",
    ),
    Route("GET", "/ping", kestrel.ping, "As Kestrel's: pong."),
    Route("GET", "/stats.json", kestrel.show_stats, "As Kestrel's: counters, gauges, labels."),
    Route("GET", "/stats.txt", kestrel.show_stats, "The same as text."),
    Route("GET", "/server_info.txt", kestrel.server_info, "As Kestrel's: name, version, uptime."),
    Route("GET", "/server_info.json", kestrel.server_info, "The same as JSON."),
)
_BY_LENGTH: dict[int, list[tuple[list[str], Route]]] = {}
for _route in ROUTES:
    _BY_LENGTH.setdefault(len(_route.parts), []).append((_route.parts, _route))


def find(method: str, path: str) -> tuple[Route | None, tuple[str, ...], list[str]]:
    """Return the route, and the open parts of the path. Without a route: the methods that exist for the path,
    if any.
    """
    given = path.strip("/").split("/")
    wanted = "GET" if method == "HEAD" else method
    others: list[str] = []
    for parts, route in _BY_LENGTH.get(len(given), ()):
        if all(part == each or part.startswith("{") for part, each in zip(parts, given, strict=True)):
            if route.method == wanted:
                names = tuple(each for part, each in zip(parts, given, strict=True) if part.startswith("{"))
                return route, names, []
            others.append(route.method)
    return None, (), others
