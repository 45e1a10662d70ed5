"""Every path of the admin listener: its method, its handler, the right that it needs, and the text of its
description.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from staniel.broker.admin.browse import Matches, Page
from staniel.broker.admin.files import JournalFiles
from staniel.broker.admin.history import HistoryView
from staniel.broker.admin.http import actions, backup, choosing, holds, kestrel, queries, reservations, rights
from staniel.broker.admin.http.events import CONTENT_TYPE as EVENTS
from staniel.broker.admin.http.events import PageEvent
from staniel.broker.admin.http.exchange import Exchange
from staniel.broker.admin.last_backup import BackupMade
from staniel.broker.admin.reasons import Health
from staniel.broker.admin.views import ClientView, JobsView, OpenReadView, ServerView, WaiterView
from staniel.broker.figures import QueueSnapshot
from staniel.broker.operations.audit import AuditEntry
from staniel.broker.operations.backup import HeldFiles
from staniel.broker.operations.holds import HoldView
from staniel.broker.operations.running import OperationView
from staniel.broker.operations.undo import UndoView
from staniel.protocol.http import replies

Handler = Callable[[Exchange, int], None]
PAGING = ("offset", "limit")


class Route(Struct, frozen=True):
    """A path of the admin listener. `path` has {name} for each open part. `body`: the type that a POST takes. `reply`:
    the type of a successful reply, None where the summary is enough. `query`: names of numbers. `type`: the reply's
    media type. `operation`: the name of its refusals in the audit log; "": they are not audited. `raw`: the body may be
    bytes instead, and the query then has the other values.
    """

    method: str
    path: str
    serve: Handler
    right: rights.Right
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
    Route("GET", "/health/live", queries.live, rights.any_client, "Whether the process answers."),
    Route(
        "GET",
        "/health/ready",
        queries.ready,
        rights.any_client,
        "Whether consumers are served (for=puts: whether nothing is refused); if not: why, and what mends it.",
        Health,
        query=("for",),
    ),
    Route("GET", "/metrics", queries.prometheus, rights.look_at_all, "Everything countable, for Prometheus."),
    Route(
        "GET",
        "/api/cluster",
        queries.cluster,
        rights.look_at_all,
        "The cluster that this server is a member of: roles, who is in sync, how far each is behind.",
    ),
    Route("GET", "/cluster", queries.member, rights.look_at_all, "The same, as members tell it in every role."),
    Route("GET", "/api/server", queries.server, rights.look_at_all, "The server as a whole.", ServerView),
    Route(
        "GET",
        "/api/queues",
        queries.queues,
        rights.look_at_all,
        "All queues by name.",
        list[QueueSnapshot],
        query=("prefix",),
    ),
    Route("GET", "/api/queues/{queue}", queries.queue, rights.read, "One queue.", QueueSnapshot),
    Route(
        "GET",
        "/api/queues/{queue}/items",
        queries.items,
        rights.read,
        "A page of its items, the head first; takes nothing.",
        Page,
        query=(*PAGING, "bytes"),
    ),
    Route(
        "POST",
        "/api/queues/{queue}/find",
        choosing.find_items,
        rights.read,
        "The items that meet terms, the head first; takes nothing.",
        Matches,
        choosing.FindBody,
    ),
    Route(
        "GET",
        "/api/queues/{queue}/open",
        queries.open_reads,
        rights.read,
        "Who holds what.",
        list[OpenReadView],
        query=PAGING,
    ),
    Route(
        "GET", "/api/queues/{queue}/waiters", queries.waiters, rights.read, "Who waits.", list[WaiterView], query=PAGING
    ),
    Route(
        "GET",
        "/api/queues/{queue}/history",
        queries.history,
        rights.read,
        "The last ten minutes, hour or day of it.",
        HistoryView,
        query=("span",),
    ),
    Route(
        "GET", "/api/queues/{queue}/journal", queries.journal, rights.read, "The files of its journal.", JournalFiles
    ),
    Route("GET", "/api/queues/{queue}/config", queries.queue_config, rights.read, "Its settings, resolved."),
    Route(
        "GET",
        "/api/clients",
        queries.clients,
        rights.look_at_all,
        "Connections, the oldest first.",
        list[ClientView],
        query=PAGING,
    ),
    Route(
        "GET",
        "/api/history",
        queries.history_of_all,
        rights.look_at_all,
        "All queues together.",
        HistoryView,
        query=("span",),
    ),
    Route(
        "GET", "/api/jobs", queries.jobs, rights.look_at_all, "Jobs of workq's by name.", list[JobsView], query=PAGING
    ),
    Route(
        "GET",
        "/api/audit",
        queries.audit,
        rights.admin,
        "What was done to queues and the server, and who did it; the newest first.",
        list[AuditEntry],
        query=PAGING,
    ),
    Route(
        "GET", "/api/events", queries.events, rights.look_at_all, "What changes, as it does.", PageEvent, type=EVENTS
    ),
    Route(
        "POST",
        "/api/queues/{queue}/put",
        actions.put,
        rights.write,
        "Store one item; byte by byte it may be as large as max_item_size.",
        body=actions.PutBody,
        query=("expires_in_ms", "flags", "delay_ms"),
        raw=True,
    ),
    Route("POST", "/api/queues/{queue}/take", actions.take, rights.take, "Take items for good.", body=actions.TakeBody),
    Route(
        "POST",
        "/api/queues/{queue}/reserve",
        reservations.reserve,
        rights.take,
        "Hold items for a time; by their tokens any client confirms them, hands them back, or holds them longer.",
        reservations.Reservations,
        reservations.ReserveBody,
    ),
    Route(
        "POST",
        "/api/queues/{queue}/reserved/confirm",
        reservations.confirm,
        rights.take,
        "Remove reserved items for good.",
        reservations.EndedReservations,
        reservations.TokensBody,
    ),
    Route(
        "POST",
        "/api/queues/{queue}/reserved/abort",
        reservations.abort,
        rights.take,
        "Hand reserved items back.",
        reservations.EndedReservations,
        reservations.TokensBody,
    ),
    Route(
        "POST",
        "/api/queues/{queue}/reserved/extend",
        reservations.extend,
        rights.take,
        "Let reservations end later.",
        reservations.EndedReservations,
        reservations.ExtendBody,
    ),
    Route(
        "POST",
        "/api/queues/{queue}/purge",
        actions.purge,
        rights.operate,
        "Remove all that waits.",
        actions.Purged,
        actions.PurgeBody,
        operation="purge",
    ),
    Route(
        "POST",
        "/api/queues/{queue}/move",
        actions.move,
        rights.operate,
        "Move items to another queue.",
        actions.MoveResult,
        actions.MoveBody,
        operation="move",
    ),
    Route(
        "POST",
        "/api/queues/{queue}/redrive",
        actions.redrive,
        rights.operate,
        "Move dead letters back.",
        actions.MoveResult,
        actions.RedriveBody,
        operation="redrive",
    ),
    Route(
        "POST",
        "/api/queues/{queue}/pause",
        actions.pause,
        rights.operate,
        "Hold back gets or puts.",
        body=actions.PauseBody,
    ),
    Route(
        "POST", "/api/queues/{queue}/resume", actions.resume, rights.operate, "Let them go on.", body=actions.PauseBody
    ),
    Route(
        "POST",
        "/api/queues/{queue}/open/abort",
        actions.abort_all,
        rights.operate,
        "Give back all open reads.",
        body=actions.AbortBody,
    ),
    Route("POST", "/api/queues/{queue}/open/{xid}/abort", actions.abort, rights.operate, "Give one open read back."),
    Route(
        "POST",
        "/api/clients/{number}/abort",
        actions.abort_client,
        rights.admin,
        "Give back every open read of a client.",
    ),
    Route(
        "DELETE",
        "/api/queues/{queue}",
        actions.delete,
        rights.operate,
        "Delete a queue and its files.",
        actions.Deleted,
        actions.DeleteBody,
        operation="delete",
    ),
    Route(
        "POST",
        "/api/backup",
        backup.hold,
        rights.admin,
        "Hold the files of a consistent copy as long as the connection lasts, and list them.",
        HeldFiles,
        type=backup.CONTENT_TYPE,
    ),
    Route(
        "POST",
        "/api/backup/made",
        backup.note_made,
        rights.admin,
        "Say that a backup is whole; its age is a metric and a reason of health.",
        body=BackupMade,
        operation="backup",
    ),
    Route(
        "GET",
        "/api/holds",
        holds.holds,
        rights.look_at_all,
        "Retention holds: what each keeps, how long ago it moved, how far it has come.",
        list[HoldView],
    ),
    Route(
        "POST",
        "/api/holds",
        holds.create,
        rights.admin,
        "Keep sealed files of queues until the hold has passed them. The same again changes nothing.",
        HoldView,
        holds.HoldBody,
        operation="hold",
    ),
    Route(
        "POST",
        "/api/holds/{hold}/move",
        holds.move,
        rights.admin,
        "Let a hold pass files: forward only, by names of sealed files.",
        HoldView,
        holds.HoldMoveBody,
        operation="move_hold",
    ),
    Route(
        "DELETE",
        "/api/holds/{hold}",
        holds.drop,
        rights.admin,
        "Drop a hold, and the files that are kept for it alone.",
        holds.HoldDropped,
        operation="drop_hold",
    ),
    Route(
        "POST",
        "/api/status",
        actions.status,
        rights.admin,
        "Change the server's status.",
        body=actions.StatusBody,
        operation="status",
    ),
    Route("POST", "/api/reload", actions.reload, rights.admin, "Read the configuration again.", operation="reload"),
    Route("POST", "/api/stop", actions.stop, rights.admin, "Stop the server as SIGTERM does."),
    Route(
        "GET", "/api/undo", queries.undos, rights.look_at_all, "What can be undone, the newest first.", list[UndoView]
    ),
    Route(
        "POST",
        "/api/undo/{number}",
        actions.undo,
        rights.admin,
        "Undo an operation.",
        actions.Undone,
        operation="undo",
    ),
    Route(
        "DELETE",
        "/api/undo/{number}",
        actions.forget_undo,
        rights.admin,
        "Have it be gone for good.",
        operation="forget",
    ),
    Route(
        "GET",
        "/api/operations",
        queries.operations,
        rights.look_at_all,
        "Long operations: those that run, the oldest first, then those that ended lately, the newest first.",
        list[OperationView],
    ),
    Route("GET", "/api/operations/{number}", queries.operation, rights.of_operation, "One operation.", OperationView),
    Route(
        "POST",
        "/api/operations/{number}/cancel",
        actions.cancel,
        rights.of_operation,
        "End an operation early, between two items; what was done can be undone.",
        OperationView,
        operation="cancel",
    ),
    Route("GET", "/ping", kestrel.ping, rights.any_client, "As Kestrel's: pong."),
    Route("GET", "/stats.json", kestrel.show_stats, rights.look_at_all, "As Kestrel's: counters, gauges, labels."),
    Route("GET", "/stats.txt", kestrel.show_stats, rights.look_at_all, "The same as text."),
    Route("GET", "/server_info.txt", kestrel.server_info, rights.look_at_all, "As Kestrel's: name, version, uptime."),
    Route("GET", "/server_info.json", kestrel.server_info, rights.look_at_all, "The same as JSON."),
)
_BY_LENGTH: dict[int, list[tuple[list[str], Route]]] = {}
for _route in ROUTES:
    _BY_LENGTH.setdefault(len(_route.parts), []).append((_route.parts, _route))


def find(method: str, path: str) -> tuple[Route | None, tuple[str, ...], list[str]]:
    """Return the route, and the open parts of the path. If no route matches, return the methods that exist for the
    path.
    """
    given = path.strip("/").split("/")
    wanted = "GET" if method == "HEAD" else method
    others: list[str] = []
    for parts, route in _BY_LENGTH.get(len(given), ()):
        if all(part == given_part or part.startswith("{") for part, given_part in zip(parts, given, strict=True)):
            if route.method == wanted:
                names = tuple(given_part for part, given_part in zip(parts, given, strict=True) if part.startswith("{"))
                return route, names, []
            others.append(route.method)
    return None, (), others
