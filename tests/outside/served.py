"""What a server has written in service, read by the readers in this folder: they find what the server has in memory.

`serve(format, random, requests)` gives what differs. The server is a broker on the fake disk: journals rotate, are
packed and rewritten, segments go, command logs are cleaned; at the end it is killed and started again.
"""

from __future__ import annotations

from random import Random

from staniel.queues.item import Item, is_remnant
from staniel.queues.queue import Queue
from staniel.sim.disk.disk import Disk
from tests.outside import libkestrel, workq
from tests.outside.held import as_shown, compare, content, contents, counters, fate, fate_of, shown, terms, terms_of
from tests.outside.made import Files
from tests.support.job_world import LOG, JobWorld, job_id
from tests.support.world import World

LOOK_EVERY = 40  # requests
CLIENTS = 3
QUEUES = """
server.expiration_timer_frequency = "5ms"
default.max_memory_size = 900
default.default_journal_size = 500
default.max_journal_size = 2500
default.min_journal_compact_delay = "5ms"
queues.stream.journal_format = "libkestrel"
"""
DIALECT = 'queues.q.journal_dialect = "kestrel-2.4"\n'
JOBS = "cmdlog_seg_size = 700\ncmdlog_clean_int = 200"
JOBS_MAX = 30
LIFE_MS = 600_000  # of a job that is not to end meanwhile


def files_in(disk: Disk, folder: str) -> Files:
    return {name: disk.read(f"{folder}/{name}", 0, 1 << 30) for name, is_file in disk.list(folder) if is_file}


def settle(world: World) -> None:
    while world.sync():
        world.turn()


def serve(format: str, random: Random, requests: int) -> list[str]:
    return SERVICES[format](random, requests)


# queues


class Crew:
    """Clients with at most one open read each."""

    def __init__(self, world: World, random: Random, queues: tuple[str, ...]) -> None:
        self.world = world
        self.random = random
        self.queues = queues
        self.clients = [world.client() for _ in range(CLIENTS)]
        self.holds: dict[int, str] = {}  # by client: the queue of its open read

    def ask(self) -> None:
        random, number = self.random, self.random.randrange(CLIENTS)
        client, queue = self.clients[number], random.choice(self.queues)
        held = self.holds.pop(number, "")
        if held and random.randrange(2):
            client.says(f"get {held}/{random.choice(('close', 'close', 'abort'))}")
        elif held:
            self.holds[number] = held
            self._put(random.choice(self.queues))
        else:
            word = random.choice(("put", "put", "put", "open", "open", "", "", "close"))
            if word == "put":
                self._put(queue)
            else:
                client.says(f"get {queue}{'/' * bool(word)}{word}")
                settle(self.world)
                if word == "open" and client.hears().startswith("VALUE"):
                    self.holds[number] = queue
        if random.randrange(60) == 0:
            client.says(f"flush {queue}")
        self.world.turn(random.choice((0, 0, 1, 3)))
        settle(self.world)
        client.hears()

    def _put(self, queue: str) -> None:
        """To the parent: a child gets copies."""
        random, data = self.random, "x" * self.random.choice((0, 3, 20, 90))
        flags, life_s = random.choice((0, 0, 7, 2**32 - 1)), random.choice((0, 0, 0, 1000))
        self.clients[0].says(f"set {queue.partition('+')[0]} {flags} {life_s} {len(data)}", data)


def in_order(queue: Queue) -> list[Item]:
    return list(queue.line.walk())


def look_at_kestrel(world: World, name: str = "q") -> list[str]:
    queue, files = world.broker.queues.find(name), files_in(world.disk, "s")
    assert queue is not None
    state, allowed = counters({each: data for each, data in files.items() if each.partition(".")[0] == name})
    theirs, ours = contents(state.items), [content(item) for item in in_order(queue)]
    places = [at for at, item in enumerate(in_order(queue)) if is_remnant(item)]
    for at in places[: len(theirs)]:  # swept in memory, and not in the file
        ours[at] = theirs[at]
    opened = {xid: content(taken.item) for xid, taken in queue.open_reads.items()}
    wrong = compare("items", ours, theirs)
    wrong += compare("open reads", opened, {xid: contents([each])[0] for xid, each in state.open.items()})
    return wrong + ([] if not queue.last_xid or queue.last_xid in allowed else compare("id", queue.last_xid, allowed))


def serve_kestrel(random: Random, requests: int) -> list[str]:
    world = World(QUEUES + DIALECT * random.randrange(2))
    crew, wrong = Crew(world, random, ("q",)), list[str]()
    for number in range(requests):
        crew.ask()
        if number % LOOK_EVERY == 0 and world.broker.queues.find("q") is not None:
            wrong += look_at_kestrel(world)
    again = World(world.config, world.disk.kill(), world.now_ms)
    return wrong + (look_at_kestrel(again) if again.broker.queues.find("q") is not None else [])


def look_at_stream(world: World, names: tuple[str, ...]) -> list[str]:
    family = libkestrel.read("stream", files_in(world.disk, "s"))
    wrong: list[str] = []
    for name in names:
        queue = world.broker.queues.find(name)
        reader = name.partition("+")[2] or "stream"
        reader = reader if reader in family.readers else ""
        if queue is None or reader not in family.readers:
            continue
        items = {taken.item.id: taken.item for taken in queue.open_reads.values()}
        items |= {item.id: item for item in in_order(queue)}
        theirs = {at: as_shown(family.items[at]) for at in family.readers[reader]}
        wrong += compare(name, {at: shown(item) for at, item in sorted(items.items())}, theirs)
    return wrong + compare("damage", {}, family.damaged)


def serve_stream(random: Random, requests: int) -> list[str]:
    world, names = World(QUEUES), ("stream", "stream+a", "stream+b.c")[: random.randrange(1, 4)]
    crew, wrong = Crew(world, random, names), list[str]()
    for number in range(requests):
        crew.ask()
        if number % LOOK_EVERY == 0:
            wrong += look_at_stream(world, names)
    return wrong + look_at_stream(World(world.config, world.disk.kill(), world.now_ms), names)


# jobs


def serve_jobs(random: Random, requests: int) -> list[str]:
    world, wrong = JobWorld(JOBS), list[str]()
    worker = world.worker()
    for number in range(requests):
        ask_for_jobs(world, random)
        worker.hears_raw()
        if number % LOOK_EVERY == 0:
            wrong += look_at_jobs(world)
    world.stop()
    return wrong + look_at_jobs(world.again())


def ask_for_jobs(world: JobWorld, random: Random) -> None:
    worker = world.clients[0]
    id, size = job_id(random.randrange(1, JOBS_MAX)), random.choice((0, 5, 200))
    match random.randrange(10):
        case 0 | 1 | 2 | 3:
            life_ms = random.choice((LIFE_MS, LIFE_MS, 300))
            flags = random.choice(("", "-priority=-7", "-max-attempts=1 -max-fails=2"))
            name, ttr_ms = random.choice(("q", "r")), random.choice((40, 60_000))
            worker.says(f"add {id} {name} {ttr_ms} {life_ms} {size} {flags}", "p" * size)
        case 4:
            worker.says(f"schedule {id} q 60000 {LIFE_MS} 2200-01-01T00:00:00.25Z 2", "xy")
        case 5 | 6:
            worker.says("lease q r 0")
        case 7:
            worker.says(f"{random.choice(('complete', 'fail'))} {id} {size}", "r" * size)
        case 8:
            worker.says(f"delete {id}")
        case _:
            world.pass_time(random.choice((20, 60, 210)))
    world.turn()


def look_at_jobs(world: JobWorld) -> list[str]:
    """Jobs with a long life, as those with a short one may just be going, and with a history that is not odd."""
    files = {name: data for name, data in files_in(world.disk, LOG).items() if name.endswith(".log")}
    log = workq.read(files, world.now_ms)
    jobs = world.broker.workq.jobs.by_id
    ours = {
        id: (terms(job), fate(job)) for id, job in jobs.items() if job.terms.ttl_ms == LIFE_MS and id not in log.odd
    }
    found = {id: job for id, job in log.jobs.items() if job.added.ttl_ms == LIFE_MS and id not in log.odd}
    theirs = {id: (terms_of(job.added), fate_of(job)) for id, job in found.items()}
    return compare("jobs", ours, theirs)


SERVICES = {"kestrel": serve_kestrel, "libkestrel": serve_stream, "workq": serve_jobs}
