"""Effects: what a member asks of its driver, in the order in which they must happen, and why it refuses or stops."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from staniel.cluster.durable import Entries
from staniel.cluster.key import Key
from staniel.cluster.messages import Message


class Refusal(Enum):
    """The reason why an order or a request is refused. Nothing has changed."""

    NOT_LEADER = "this member does not lead"
    TOO_FEW_IN_SYNC = "the in-sync set has fewer members than min_in_sync"
    HANDING_OVER = "the lead is being handed over"
    TOO_LARGE = "a record of the stream may not be as large"
    NOT_IN_SET = "the member is not in the in-sync set"
    UNFIT = "this member's spool is not known to be whole"
    NO_KEY = "the key has not been read"
    KEY_EXISTS = "the cluster exists already"
    HAS_CLUSTER = "this spool belongs to a cluster already"
    ASKING = "a question to etcd has no answer yet"


class Reason(Enum):
    """The reason why a member stops. An operator must look."""

    NO_KEY = "the spool belongs to a cluster, and etcd has no key: never begin a second history"
    OTHER_CLUSTER = "etcd has the key of another cluster"
    KEY_WENT_BACK = "etcd has an older key than this member has seen: it was restored from a backup"
    WOULD_OVERWRITE = "the spool has items and no cluster id: joining would overwrite them"


class Closing(Enum):
    """The reason why a connection between members is closed."""

    OTHER_CLUSTER = "the peer belongs to another cluster"
    OLD_EPOCH = "the peer's epoch is older than this member has promised"
    HIGHER_EPOCH = "the peer's epoch is higher: this member reads the key first"
    NOT_LEADER = "this member does not lead"
    SUPERSEDED = "the member has a newer connection, or follows another leader"
    UNEXPECTED = "the message does not fit what was said before"
    REPAIR = "a repair begins a new connection"
    DEPOSED = "this member leads no more"
    TOO_FAR_BEHIND = "the member has not acknowledged more records than are kept for it"


class Persist(Struct, frozen=True):
    """Append the entries to the member's file, in this order."""

    entries: tuple[Entries, ...]


class Sync(Struct, frozen=True):
    """Sync all that was written before this effect, entries and files, then call `synced(number)`. One call may tell of
    several syncs.
    """

    number: int


class Send(Struct, frozen=True):
    """Send a message on a connection."""

    connection: int
    message: Message


class Connect(Struct, frozen=True):
    """Connect to the leader, then call `connected`."""

    leader_id: bytes


class Close(Struct, frozen=True):
    """Close a connection between members. `disconnected` need not be called for it."""

    connection: int
    why: Closing


class ReadKey(Struct, frozen=True):
    """Read the key in etcd, linearizably; call `key_read` or `ask_unanswered`."""

    ask: int


class Transact(Struct, frozen=True):
    """Write the key if its `mod_revision` is `revision`; call `transaction_taken`, `transaction_refused` with what the
    key is instead, or `ask_unanswered`.
    """

    ask: int
    revision: int
    key: Key


class Recover(Struct, frozen=True):
    """Apply all records to files, recover the spool as a start does, and call `recovered` with the changes that this
    makes. None of them is on the disk yet: they become records first.
    """

    upto: int


class ServeClients(Struct, frozen=True):
    """Take requests of clients from now on."""


class CloseClients(Struct, frozen=True):
    """Close the connections of all clients, drop the replies that are held, and give up Recover and ReadPiece, before
    any later effect.
    """


class Answer(Struct, frozen=True):
    """Send the replies that rest on records up to this number of this epoch, and the rounds that ask for no more."""

    epoch: int
    upto: int


class Apply(Struct, frozen=True):
    """Apply the records up to this number to files: they are answered and never cut off."""

    upto: int


class MoveTail(Struct, frozen=True):
    """Keep a copy of what files have behind this number in `.staniel/damaged/`."""

    behind: int


class SumFiles(Struct, frozen=True):
    """Sum the files, which no leader's record changes meanwhile; call `files_summed` with the next piece of what the
    leader must know of them. 0 is the first piece, and begins anew.
    """

    connection: int
    piece: int


class TakeSums(Struct, frozen=True):
    """Keep a piece of what a member says of its files, as long as its connection lasts."""

    connection: int
    data: bytes


class ReadPiece(Struct, frozen=True):
    """Read a piece of the files for a member that copies them, as far as it lacks them by what it has said on this
    connection; call `piece_read`. 0 is the first piece.
    """

    connection: int
    piece: int


class WritePiece(Struct, frozen=True):
    """Replace a piece of the files."""

    data: bytes


class Stop(Struct, frozen=True):
    """End the process, and say why."""

    reason: Reason


Effect = (
    Persist | Sync | Send | Connect | Close | ReadKey | Transact | Recover | ServeClients | CloseClients | Answer
    | Apply | MoveTail | SumFiles | TakeSums | ReadPiece | WritePiece | Stop
)  # fmt: skip
