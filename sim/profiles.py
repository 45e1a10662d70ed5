"""Named mixes of accidents and settings: the frequency of each in the histories of a profile."""

from __future__ import annotations

import errno

from msgspec import Struct, structs

from staniel.sim.queues.promises import Accident


class Profile(Struct, frozen=True, kw_only=True):
    """A mix of accidents and settings. Chances are in a thousand, a step. `accidents`: the ways in which a life may
    end. `policies`: values of sync_journal.
    """

    name: str
    accidents: tuple[Accident, ...] = (Accident.POWER, Accident.KILL, Accident.STOP)
    policies: tuple[str, ...] = ("always", "always", "50ms", "os")
    full_disk: int = 0
    short_write: int = 0
    eio: int = 0
    stuck_temps: int = 0
    stuck_files: int = 0
    """Mishaps of 60 that let the system refuse to remove files that a pack has replaced, or to rename the pack.
    `stuck_temps`: how many let a pack find no room, and its temporary file be unremovable.
    """
    refused_files: int = 0
    """Mishaps of 60 that let the system refuse to make, open or rename files, as it does without descriptors, memory or
    permission.
    """
    half_packs: bool = False
    """True if a failing disk stops packs half way into their places, while clients ask to delete their queues.
    """
    harmed_copies: int = 0
    """Accidents of a thousand that are followed by a check of a copy of the disk that has lost its newest files."""
    sync_errnos: tuple[int, ...] = (errno.EIO,)  # with which a sync may fail
    placed_syncs: int = 0  # how many of 60 mishaps are a failing sync of one kind
    names_only: bool = False  # syncs of names fail, those of files never
    crash_in_renewal: bool = False
    """True if starts that rewrite files after a failed sync may meet a power loss or another failed sync."""
    ranges: bool = False  # values at the ends of the allowed ranges, and settings beyond
    aliased: bool = False  # an alias of an alias; queues that become aliases, and queues again
    turnabout: int = 0
    """Requests of a thousand that are a reload between two puts to one queue, in one packet."""
    reload: int = 0  # of a thousand requests, in addition to the operator's others
    cuts: int = 0
    """Turns of a thousand before which the server cuts off what has been read of the oldest segments, as it does each
    second on a full disk; however little that is.
    """
    mixed: bool = False  # some queues of a family keep no journal
    clock_jump: int = 0
    wall_steps: int = 0
    """Mishaps of 60 that are a step of the wall clock, while server time passes as usual. Other steps happen
    between lives.
    """
    operator: int = 40
    transfers: bool = True
    deliveries: bool = False
    """True for reads only, from queues with max_deliveries whose journals are never rewritten, so that each delivery
    counts, in every life.
    """
    fanout: bool = True
    redo_logs: tuple[str, ...] = ()  # sizes of the redo log, one for each seed; small ones fill often
    few_files: tuple[int, ...] = ()  # how many journals may be open at once, one for each life
    streams: int = 0  # how many of a thousand queues are in libkestrel's format
    jobs: bool = False  # workq's, instead of queues
    forged: int = 0
    """Payloads and results of a thousand that contain whole records of a command log. The log is one that another
    writer began, with changes before their additions.
    """
    hub: bool = False  # with sockets and threads, and fewer commands
    secure: int = 0  # of a hub: how many of a hundred new clients use TLS
    operators: int = 0  # of a hub: how many of a hundred new clients use HTTP on the admin listener
    limits: bool = False  # of a hub: few clients may connect, open and wait
    users: bool = False  # of a hub: clients must authenticate
    by_id: bool = False  # of a hub: clients open several items and end their reads by id
    keyed: bool = False  # of a hub: clients put items with idempotency keys, and put them again
    several: bool = False  # of a hub: clients read from several queues with one request, and end their reads by id
    delayed: bool = False  # of a hub: clients put items with delays
    metered: bool = False  # of a hub: its clock counts its work, and there are many queues
    stands_still: bool = False
    """True if a hub's machine sometimes pauses between checking the sockets and reading the clock, for longer than
    clients may be silent.
    """
    equal: bool = False  # of a hub: all items are alike, and operations are requested two at a time
    bounded: bool = False  # of a hub of equal items: queues have few places, so operations meet full targets
    redrives: bool = False  # of a hub: items die in two queues, and return from the dead letters
    undo: bool = False  # operators purge queues, for good or not, and undo that
    chosen: int = 0  # how many of a hundred purges and moves are about items that meet terms
    deletions: bool = False  # operators delete queues during purges, undos and puts
    full_queues: bool = False  # most queues have limits, and many items expire behind others
    slices: bool = False  # little is done in one step, and pipelines are long
    holds: int = 0  # of a thousand requests: how many are about retention holds
    families: tuple[str, ...] = ()  # more fan-out, with limits of its own
    large_items: int = 60
    flagged: int = 0  # how many of a thousand items have flags, some like the numbers of transactions
    counters: tuple[int, ...] = ()
    """Numbers of transactions near their end. The journals of some queues begin with one of them."""
    began_ms: tuple[int, ...] = ()
    """Moments. The first life starts a little before one of them."""
    file_numbers: tuple[int, ...] = ()
    """Numbers of files. Before the first life, the newest file of some queues, or of the command log, has one
    of them.
    """
    redo_files: int = 0  # how many files a redo log can number, if not 2**32
    redo_numbers: bool = False  # the first batch and file of a redo log have numbers near their end, or near a sign bit
    torn_groups: int = 0
    """Power losses of a thousand that keep all except the end of one journal, which is cut off within a change of
    several records.
    """
    crc_collisions: int = 0  # how many of a thousand pipelines are puts of items that no short key distinguishes
    busy: int = 500  # how many of a thousand servers seal and rewrite small journals all the time
    clients: int = 5
    crash_in_recovery: int = 300
    cut_starts: int = 0  # how many of a thousand kills are followed by power losses at steps of the next start
    cut_removals: int = 0  # permille of accidents that happen after a sidecar was removed, before that is synced
    memory_queue: bool = True
    cache_lies: bool = False
    """True if the process starts again after a failed sync, on caches that differ from the disk; otherwise the machine
    starts again.
    """


SYNCS = Profile(
    name="syncs",
    accidents=(Accident.POWER, Accident.KILL),
    policies=("always", "always", "always", "os"),
    eio=60,
    sync_errnos=(errno.ENOSPC, errno.EDQUOT, errno.EIO),
    reload=60,
    streams=400,
    mixed=True,
    busy=1000,
    large_items=250,
    families=("f", "f+x", "f+y", "g", "g+x"),
    cache_lies=True,
)
PACKING = Profile(
    name="packing",
    accidents=(Accident.POWER, Accident.KILL),
    policies=("always", "1s", "os", "os"),
    busy=1000,
    large_items=350,
    operator=15,
    transfers=False,
    fanout=False,
    clients=7,
)
REDO_LOGS = ("32KB", "32KB", "64KB")
ENDING_NUMBERS = (2**31 - 1, 2**31 - 3, 2**31 - 12, -(2**31) + 2, -1, -3, -12)
BORDERS_MS = (2**31 * 1000, 2**32 * 1000, 396 * 2**32, 396 * 2**32 + 2**31)
"""Moments when seconds exceed 31 and 32 bits (2038 and 2106), and when the lower half of a time in ms overflows."""
LAST_FILES = (2**31 - 2, 2**32 - 2, 10**18 - 2, 2**63 - 2, 2**64 - 2)
"""Numbers of files after which the next ones exceed 31, 32, 63 and 64 bits, or have more than 18 digits."""
READERS = ("f", "f+x", "f+y", "f+z", "g", "g+x", "g+y")

PROFILES = {
    profile.name: profile
    for profile in (
        Profile(name="calm", accidents=(Accident.STOP,), crash_in_recovery=0),
        Profile(name="power", accidents=(Accident.POWER,), policies=("always",)),
        Profile(name="kill", accidents=(Accident.KILL,), policies=("always", "50ms", "os")),
        Profile(name="lax", accidents=(Accident.POWER, Accident.KILL), policies=("50ms", "1s", "os")),
        Profile(name="full-disk", full_disk=60, short_write=10, large_items=150),
        Profile(name="eio", eio=12, accidents=(Accident.POWER, Accident.KILL)),
        Profile(name="lying-cache", eio=12, accidents=(Accident.POWER, Accident.KILL), cache_lies=True),
        SYNCS,
        structs.replace(
            SYNCS,
            name="new-queues",
            streams=700,
            families=("f", "f+x", "f+y", "g", "g+x", "h", "h+x", "i", "j", "k"),
            operator=120,
        ),
        Profile(
            name="kinds-of-syncs",
            accidents=(Accident.POWER, Accident.KILL),
            policies=("always", "always", "always", "os"),
            sync_errnos=(errno.ENOSPC, errno.EDQUOT, errno.EIO),
            placed_syncs=45,
            streams=300,
            busy=1000,
            large_items=250,
            operator=120,
            mixed=True,
            families=("f", "f+x", "f+y", "g", "g+x"),
            cache_lies=True,
        ),
        structs.replace(
            PACKING,
            name="names-in-doubt",
            policies=("always",),
            placed_syncs=45,
            names_only=True,
            crash_in_recovery=700,
            crash_in_renewal=True,
            cache_lies=True,
        ),
        Profile(name="ranges", ranges=True, reload=30, transfers=False, fanout=False),
        Profile(name="aliases", aliased=True, operator=30, transfers=False, reload=60, policies=("always", "os")),
        Profile(
            name="reloads",
            accidents=(Accident.POWER,),
            policies=("always", "os"),
            turnabout=200,
            transfers=False,
            fanout=False,
            operator=10,
            streams=200,
        ),
        Profile(name="clock", clock_jump=60),
        Profile(
            name="wall",
            wall_steps=40,
            clock_jump=15,
            policies=("always", "os"),
            transfers=False,
            fanout=False,
            operator=0,
            streams=200,
            crash_in_recovery=0,
        ),
        Profile(name="transfers", policies=("always", "50ms", "os"), operator=90),
        Profile(
            name="crc-collisions",
            accidents=(Accident.POWER, Accident.KILL),
            policies=("always", "os"),
            crc_collisions=250,
            operator=200,
            busy=200,
            fanout=False,
        ),
        Profile(
            name="deliveries",
            accidents=(Accident.KILL, Accident.KILL, Accident.POWER, Accident.STOP),
            policies=("always", "always", "os"),
            deliveries=True,
            operator=0,
            fanout=False,
            memory_queue=False,
            large_items=0,
            clients=3,
        ),
        Profile(name="pressure", large_items=400, clients=9, operator=10),
        PACKING,
        Profile(name="libkestrel", streams=1000, full_disk=10, short_write=4, eio=2, clock_jump=10),
        Profile(name="readers", streams=1000, operator=30, transfers=False, families=READERS, clients=8),
        Profile(
            name="cut-segments",
            streams=1000,
            cuts=600,
            busy=400,
            operator=200,
            policies=("always", "always", "1s"),
        ),
        Profile(name="formats", streams=500, operator=70, full_disk=10, eio=2, families=READERS),
        Profile(
            name="refused-files",
            streams=600,
            refused_files=12,
            few_files=(2, 3, 5, 9),
            busy=800,
            operator=150,
            policies=("always", "always", "50ms", "os"),
            accidents=(Accident.KILL, Accident.KILL, Accident.POWER, Accident.STOP),
        ),
        Profile(name="jobs", jobs=True, clients=6, large_items=150),
        Profile(name="jobs-faults", jobs=True, full_disk=20, short_write=8, eio=5, clock_jump=10, large_items=150),
        structs.replace(
            PACKING,
            name="packs",
            policies=("always", "os"),
            accidents=(Accident.KILL,),
            stuck_temps=12,
            harmed_copies=1000,
        ),
        structs.replace(
            PACKING, name="unremoved", accidents=(Accident.POWER, Accident.KILL, Accident.STOP), stuck_files=12
        ),
        structs.replace(
            PACKING,
            name="half-packs",
            accidents=(Accident.POWER, Accident.KILL, Accident.STOP),
            half_packs=True,
            crash_in_recovery=0,
        ),
        Profile(name="jobs-forged", jobs=True, forged=700, accidents=(Accident.POWER, Accident.KILL), clients=6),
        Profile(
            name="hub",
            hub=True,
            accidents=(Accident.STOP, Accident.KILL),
            policies=("always", "50ms", "os"),
            crash_in_recovery=0,
            clients=6,
        ),
        Profile(name="hub-durable", hub=True, policies=("always",), clients=4),
        Profile(name="hub-admin", hub=True, operators=50, policies=("always",), clients=5),
        Profile(name="hub-limits", hub=True, limits=True, operators=40, policies=("always",), clients=8),
        Profile(
            name="hub-shares",
            hub=True,
            metered=True,
            operators=40,
            policies=("always", "os"),
            accidents=(Accident.STOP,),
            crash_in_recovery=0,
            clients=24,
        ),
        Profile(name="hub-users", hub=True, users=True, policies=("always",), clients=6),
        Profile(name="hub-ids", hub=True, by_id=True, policies=("always",), clients=4),
        Profile(name="hub-keys", hub=True, keyed=True, policies=("always",), streams=300, clients=4),
        Profile(name="hub-several", hub=True, several=True, policies=("always",), clients=5),
        Profile(name="hub-delays", hub=True, delayed=True, policies=("always",), clients=4),
        Profile(name="hub-tls", hub=True, secure=70, policies=("always",), clients=5),
        Profile(
            name="hub-undo",
            hub=True,
            operators=80,
            undo=True,
            policies=("always",),
            clients=5,
        ),
        Profile(
            name="hub-deletions",
            hub=True,
            operators=80,
            undo=True,
            deletions=True,
            policies=("always",),
            clients=5,
        ),
        Profile(
            name="hub-chosen",
            hub=True,
            operators=80,
            undo=True,
            chosen=70,
            policies=("always",),
            streams=300,
            clients=5,
        ),
        Profile(
            name="redo",
            redo_logs=REDO_LOGS,
            accidents=(Accident.POWER, Accident.POWER, Accident.KILL, Accident.STOP),
            policies=("always", "always", "always", "50ms", "os"),
            operator=70,
            streams=250,
            large_items=150,
        ),
        structs.replace(SYNCS, name="redo-syncs", redo_logs=REDO_LOGS),
        Profile(
            name="checksums",
            redo_logs=("checksums",),
            accidents=(Accident.POWER, Accident.POWER, Accident.KILL, Accident.STOP),
            policies=("always", "50ms", "1s", "os", "os"),
            operator=70,
            reload=20,
            streams=250,
            large_items=150,
        ),
        Profile(
            name="checksums-faults",
            redo_logs=("checksums",),
            policies=("always", "50ms", "os"),
            full_disk=20,
            short_write=8,
            eio=5,
            clock_jump=10,
            operator=70,
        ),
        Profile(
            name="few-files",
            redo_logs=("checksums", "checksums", "32KB"),
            few_files=(1, 2, 3, 5),
            accidents=(Accident.POWER, Accident.POWER, Accident.KILL, Accident.STOP),
            policies=("always", "50ms", "1s", "os", "os"),
            operator=30,
            reload=80,
            streams=250,
            busy=200,
            large_items=20,
        ),
        Profile(name="jobs-checksums", jobs=True, redo_logs=("checksums",), large_items=150, clients=6),
        Profile(
            name="hub-checksums",
            hub=True,
            redo_logs=("checksums",),
            accidents=(Accident.STOP, Accident.KILL),
            policies=("always", "50ms", "os"),
            crash_in_recovery=0,
            clients=6,
        ),
        Profile(
            name="redo-faults", redo_logs=REDO_LOGS, full_disk=20, short_write=8, eio=5, clock_jump=10, operator=70
        ),
        Profile(name="jobs-redo", jobs=True, redo_logs=REDO_LOGS, large_items=150, clients=6),
        Profile(name="hub-redo", hub=True, redo_logs=REDO_LOGS, policies=("always",), clients=5),
        Profile(
            name="torn-groups",
            accidents=(Accident.POWER,),
            policies=("always",),
            flagged=700,
            torn_groups=600,
            operator=150,
            fanout=False,
            large_items=20,
        ),
        Profile(
            name="wrapped",
            accidents=(Accident.POWER, Accident.KILL),
            policies=("always",),
            counters=ENDING_NUMBERS,
            busy=900,
            operator=150,
            fanout=False,
            large_items=20,
        ),
        Profile(
            name="hub-wrapped",
            hub=True,
            counters=ENDING_NUMBERS,
            operators=80,
            undo=True,
            policies=("always",),
            clients=5,
        ),
        Profile(
            name="borders-of-time",
            began_ms=BORDERS_MS,
            streams=300,
            operator=90,
            busy=900,
            policies=("always", "os"),
        ),
        Profile(name="jobs-borders-of-time", jobs=True, began_ms=BORDERS_MS, clients=6, large_items=150),
        structs.replace(
            PACKING,
            name="last-files",
            accidents=(Accident.POWER, Accident.KILL, Accident.STOP),
            file_numbers=LAST_FILES,
            transfers=True,
            operator=60,
        ),
        Profile(
            name="last-segments",
            streams=1000,
            file_numbers=LAST_FILES,
            busy=1000,
            fanout=False,
            operator=60,
        ),
        Profile(
            name="jobs-wall",
            jobs=True,
            wall_steps=40,
            clock_jump=15,
            policies=("always", "os"),
            clients=6,
            crash_in_recovery=0,
        ),
        Profile(name="jobs-last-segments", jobs=True, file_numbers=(10**9 - 4,), clients=6, large_items=150),
        Profile(name="redo-last-files", redo_logs=REDO_LOGS, redo_files=9, operator=70, streams=250),
        Profile(name="redo-last-batches", redo_logs=REDO_LOGS, redo_numbers=True, operator=70, streams=250),
        structs.replace(
            PACKING,
            name="killed-then-cut",
            policies=("always",),
            accidents=(Accident.KILL,),
            cut_starts=1000,
            cut_removals=700,
            operator=60,
            transfers=True,
        ),
        Profile(
            name="hub-equal-items",
            hub=True,
            operators=40,
            undo=True,
            equal=True,
            streams=300,
            policies=("always",),
            clients=3,
            accidents=(Accident.POWER, Accident.POWER, Accident.KILL),
            cut_starts=150,
        ),
        Profile(
            name="hub-torn-groups",
            hub=True,
            operators=40,
            undo=True,
            equal=True,
            flagged=1000,
            torn_groups=1000,
            policies=("always",),
            clients=3,
            accidents=(Accident.POWER,),
        ),
        Profile(
            name="hub-full-targets",
            hub=True,
            operators=40,
            undo=True,
            equal=True,
            bounded=True,
            streams=300,
            policies=("always",),
            clients=3,
            accidents=(Accident.POWER, Accident.KILL),
            cut_starts=150,
        ),
        Profile(
            name="hub-redrive",
            hub=True,
            operators=40,
            undo=True,
            redrives=True,
            counters=ENDING_NUMBERS,
            streams=250,
            policies=("always",),
            clients=4,
        ),
        structs.replace(PACKING, name="holds", holds=150, streams=300, operator=60, policies=("always", "1s", "os")),
        structs.replace(
            PACKING,
            name="holds-faults",
            holds=150,
            streams=300,
            operator=60,
            accidents=(Accident.POWER, Accident.KILL, Accident.STOP),
            full_disk=10,
            short_write=4,
            eio=8,
            stuck_files=8,
            cache_lies=True,
        ),
        Profile(name="jobs-holds", jobs=True, holds=150, clients=6, large_items=150),
        Profile(name="slices", slices=True, full_disk=10, operator=70, streams=300, large_items=120),
        Profile(name="hub-slices", hub=True, slices=True, policies=("always",), clients=4),
        Profile(name="hub-stopped", hub=True, stands_still=True, policies=("always",), clients=5),
        Profile(
            name="full-queues",
            full_queues=True,
            policies=("always", "os"),
            transfers=False,
            operator=90,
            reload=20,
            streams=200,
        ),
        Profile(name="everything", full_disk=20, short_write=5, eio=3, clock_jump=20, operator=70, large_items=120),
    )
}

ALL = tuple(PROFILES)
"""Names of all profiles, in the order in which seeds take turns."""
