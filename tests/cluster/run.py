"""One seed: a history of accidents, then a calm in which no member may be stuck.

python -m tests.cluster.run --seeds 1000            the usual accidents
python -m tests.cluster.run --seed 7 --verbose      one history, to read
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from staniel.cluster.core import Policy
from staniel.cluster.durable import Fitness
from staniel.cluster.follower import FollowerState
from staniel.cluster.stream import RecordKind
from tests.cluster.judge import ViolationFound
from tests.cluster.node import Node
from tests.cluster.world import CLUSTER, Profile, World

PROFILES = {
    "usual": Profile(),
    "calm": Profile(kills=0, power_cuts=0, disks=0, drops=1, partitions=1),
    "etcd": Profile(kills=1, power_cuts=1, disks=0, stands=14, take_outs=20, drops=8),
    "power": Profile(kills=4, power_cuts=10, disks=0),
    "lazy": Profile(lazy=100, power_cuts=8, take_outs=10, rewrites=2, min_in_sync=1),
    "repairs": Profile(stands=16, writes=50, take_outs=10, trims=10, partitions=8),
    "late": Profile(kills=1, power_cuts=1, disks=0, partitions=8, heals=3, watches=2, lazy=0, steps=500),
    "joins": Profile(kills=1, power_cuts=1, disks=0, stands=2, drops=10, take_outs=15, writes=60, lazy=0),
    "elections": Profile(
        kills=0, power_cuts=0, disks=0, stands=25, drops=2, partitions=3, writes=20, lazy=0, steps=500
    ),
    "old tail": Profile(kills=0, power_cuts=0, disks=0, lazy=0, set_up=100, prelude="old tail"),
    "late word": Profile(kills=0, power_cuts=0, disks=0, lazy=0, set_up=100, prelude="late word"),
    "lost end": Profile(lazy=0, disks=0, set_up=100, prelude="lost end", min_in_sync=1),
    "foreign": Profile(foreign=True, disks=0),
    "copies": Profile(copies=4, disks=0, lazy=0),
    "restore-1": Profile(restores=4, disks=0, lazy=0, min_in_sync=1),
    "restore-2": Profile(restores=4, disks=0, lazy=0, min_in_sync=2),
    "rewrites": Profile(rewrites=5, power_cuts=6, disks=0),
    "rot": Profile(rots=20, rewrites=4, kills=6, disks=0, lazy=0, set_up=100),
    "trims": Profile(
        kills=2, power_cuts=0, disks=4, take_outs=2, trims=60, writes=80, lazy=0, steps=500, min_in_sync=1
    ),
    "full disks": Profile(fulls=6, kills=1, power_cuts=2, disks=0, take_outs=3),
    "failed syncs": Profile(failed_syncs=8, kills=1, power_cuts=2, disks=0, lazy=50),
    "etcd restarts": Profile(etcd_restarts=8, kills=1, power_cuts=1, disks=0, stands=12, take_outs=12),
    "leases": Profile(
        ticks=40,
        hangs=4,
        stands=0,
        take_outs=0,
        kills=2,
        power_cuts=1,
        disks=0,
        lazy=0,
        steps=600,
        set_up=100,
        min_in_sync=1,
    ),
    "lost-key": Profile(lost_keys=2, disks=0),
}
UNJUDGED = ("copies", "restore-1", "restore-2", "lost-key")
"""Profiles with accidents that no server can prevent, or after which all of them must stop."""
ROUNDS_MAX = 400
"""Rounds of the calm in which a put must be answered and every member be in the set."""


class Outcome(NamedTuple):
    """End of a history: what was broken, if anything, and figures."""

    seed: int
    kind: str
    why: str
    puts: int
    epochs: int
    counts: Counter[str]
    log: list[str]


def run(seed: int, profile: str = "usual") -> Outcome:
    """Run one history."""
    world = World(seed, PROFILES[profile])
    kind = why = ""
    try:
        if world.random.randrange(100) < world.profile.set_up:
            heal(world, "set up")
        if world.profile.prelude:
            PRELUDES[world.profile.prelude](world)
        for _ in range(world.profile.steps):
            step(world)
        heal(world, "calm")
        if world.profile.hangs:
            hang_a_disk(world)
    except ViolationFound as violation:
        kind, why = violation.kind, str(violation)
    key = world.etcd.key
    return Outcome(seed, kind, why, world.judge.puts_answered, key.epoch if key else 0, world.counts, world.log)


def step(world: World) -> None:
    """Let one of the things happen that can happen."""
    choices = actions(world)
    words, _, action = world.random.choices(choices, [weight for _, weight, _ in choices])[0]
    world.log.append(words)
    action()
    world.judge.check()


Action = tuple[str, int, Callable[[], object]]


def actions(world: World) -> list[Action]:
    """Return what can happen next: words for it, its weight, and what to call."""
    choices: list[Action] = []
    for number, link in world.connections.items():
        for side in (side for side in (0, 1) if world.is_deliverable(number, side)):
            words = f"deliver {number} from {link.nodes[side]}"
            choices.append((words, 30, lambda number=number, side=side: world.deliver(number, side)))  # type: ignore[misc]
    etcd = world.etcd
    for at, request in enumerate(etcd.requests):
        if request.node not in world.etcd_blocked:
            choices.append(
                (f"etcd takes from {request.node} {request.effect}", 15, lambda at=at: world.handle_request(at))
            )
    for at, reply in enumerate(etcd.replies):
        if reply.node not in world.etcd_blocked:
            choices.append((f"etcd answers {reply.node}", 25, lambda at=at: world.deliver_reply(at)))
    for at, connect in enumerate(world.connects):
        choices.append((f"connect {connect[0]}", 15, lambda at=at: world.open_connection(at)))
    for node in world.nodes:
        choices += actions_of(world, node)
    return choices + accidents(world)


def actions_of(world: World, node: Node) -> list[Action]:
    """Return what a machine may do next."""
    name, random = node.name, world.random
    if node.member is None:
        return [(f"start {name}", 6, lambda: world.start(node))] if world.may_start(node) else []
    if node.is_stopped:
        return []
    choices: list[Action] = [(f"retry {name}", 3, lambda: (node.member and node.member.retry(), node.carry_out()))]
    if node.syncs and name not in world.hung_disks:
        choices.append((f"sync {name}", 30, lambda: node.end_sync(random.randrange(len(node.syncs)))))
    if node.can_work:
        choices.append((f"work {name}", 20, lambda: node.do_work(random)))
    if world.etcd.watches.get(name) and name not in world.etcd_blocked:
        choices.append((f"watch {name}", world.profile.watches, lambda: world.deliver_watch(node)))
    if node.member.core.asking is not None:
        choices.append((f"no answer {name}", 4, lambda: world.give_up_ask(node)))
    if node.member.is_serving:
        writes = world.profile.writes
        choices.append((f"put {name}", writes, lambda: node.put(RecordKind.PUT)))
        choices.append((f"change {name}", writes // 3, lambda: node.put(RecordKind.CHANGE)))
        choices.append((f"look {name}", writes // 3, node.look))
    if node.member.leader is None:
        if world.etcd.key is None and name == 0:
            choices.append(("init", 20, lambda: (node.member and node.member.init(CLUSTER), node.carry_out())))
        choices.append((f"stand {name}", world.profile.stands, lambda: world.stand(node)))
    else:
        other = random.choice([node for node in world.nodes if node.name != name])
        choices.append((f"take out {other.name}", world.profile.take_outs, lambda: take_out(node, other.id)))
        choices.append((f"hand over to {other.name}", world.profile.handovers, lambda: hand_over(node, other)))
    choices.append((f"trim {name}", world.profile.trims, lambda: trim(node, random)))
    return choices


def take_out(node: Node, member_id: bytes) -> None:
    assert node.member is not None
    node.member.take_out(member_id)
    node.carry_out()


def hand_over(node: Node, other: Node) -> None:
    assert node.member is not None
    node.member.hand_over(other.id, other.config.address)
    node.carry_out()


def trim(node: Node, random: Random) -> None:
    """Trim up to what files have durably."""
    assert node.member is not None
    upto = node.kept.stream.base.number
    while upto + 1 in node.files_disk and node.files_disk[upto + 1].place.epoch == node.kept.stream.epoch_of(upto + 1):
        upto += 1
    number = random.randint(0, upto)
    node.member.trim(number, random.choice([0, 0, 0, number]))
    node.carry_out()


def accidents(world: World) -> list[Action]:
    """Return the accidents that may happen next."""
    random, profile = world.random, world.profile
    node = random.choice(world.nodes)
    pair = tuple(random.sample(range(len(world.nodes)), 2))
    choices: list[Action] = [
        (f"partition {pair}", profile.partitions, lambda: world.blocked.add((pair[0], pair[1]))),
        ("no partition", profile.heals, world.blocked.clear),
        (f"no etcd for {node.name}", profile.partitions, lambda: world.etcd_blocked.add(node.name)),
        ("etcd for all", profile.heals, world.etcd_blocked.clear),
    ]
    if world.connections:
        number = random.choice(list(world.connections))
        choices.append((f"drop {number}", profile.drops, lambda: drop(world, number)))
    if node.member is not None:
        choices.append((f"kill {node.name}", profile.kills, node.kill))
        choices.append(
            (f"kill {node.name} soon", profile.kills, lambda: setattr(node, "die_after", random.randrange(6)))
        )
        choices.append((f"power cut {node.name}", profile.power_cuts, lambda: node.cut_power(random)))
    elif not node.is_stopped:
        choices.append((f"power cut {node.name}", profile.power_cuts, lambda: node.cut_power(random)))
        if node.name not in world.foreign and not world.is_last_copy(node) and world.etcd.key is not None:
            choices.append((f"new disk {node.name}", profile.disks, lambda: world.replace_disk(node)))
    if world.etcd.past and profile.restores:
        value, revision = random.choice(world.etcd.past)
        choices.append(("etcd is restored", profile.restores, lambda: restore(world, value, revision)))
    if world.etcd.requests:
        choices.append(("a request is lost", profile.lost_requests, lambda: world.etcd.requests.pop(0)))
    if world.etcd.key is not None and profile.lost_keys:
        choices.append(("the key is lost", profile.lost_keys, world.etcd.lose_key))
    choices += disk_accidents(world, node)
    if profile.ticks:
        choices.append(("time passes", profile.ticks, world.tick))
    if etcd_restarts := profile.etcd_restarts:
        choices.append(("etcd restarts", etcd_restarts, world.restart_etcd))
    if profile.rewrites and node.member is not None and not node.is_full:
        choices.append((f"rewrite {node.name}", profile.rewrites, lambda: node.rewrite(random)))
    if profile.rots and node.member is None and node.kept.cluster_id and not world.is_last_copy(node):
        choices.append((f"rot {node.name}", profile.rots, lambda: rot(world, node)))
    if profile.copies:
        choices.append((f"snapshot {node.name}", profile.copies, lambda: snapshot(world, node)))
        if node.member is None and any(
            old[0] == node.name and old[1].startswith(bytes(node.disk[:40])) for old in world.old_disks
        ):
            choices.append((f"old copy {node.name}", profile.copies, lambda: start_copy(world, node)))
    return choices


def disk_accidents(world: World, node: Node) -> list[Action]:
    """Return what may happen to a machine's disk, which the machine notices at once."""
    profile, choices = world.profile, list[Action]()
    if profile.fulls:
        words, weight = ("room on", 3 * profile.fulls) if node.is_full else ("full disk", profile.fulls)
        choices.append((f"{words} {node.name}", weight, lambda: setattr(node, "is_full", not node.is_full)))
    if profile.hangs:
        hung = world.hung_disks
        words, weight = ("goes on", 3 * profile.hangs) if node.name in hung else ("hangs", profile.hangs)
        choices.append((f"disk {words} {node.name}", weight, lambda: hung.symmetric_difference_update({node.name})))
    if profile.failed_syncs and node.member is not None and node.syncs:
        choices.append((f"sync fails {node.name}", profile.failed_syncs, lambda: node.fail_sync(world.random)))
    return choices


def drop(world: World, number: int) -> None:
    """Break a connection: what is on its way is lost."""
    link = world.connections.get(number)
    if link is not None:
        for side in (0, 1):
            link.queues[side].clear()
            link.closed[side] = True
        del world.connections[number]
        for side in (0, 1):
            node = world.nodes[link.nodes[side]]
            if node.member is not None and node.life == link.lives[side]:
                node.member.disconnected(number)
                node.carry_out()


def restore(world: World, value: bytes, revision: int) -> None:
    """Restore etcd from a backup."""
    world.etcd.value, world.etcd.mod_revision = value, revision
    world.etcd.revision = revision
    world.etcd.requests.clear()


def rot(world: World, node: Node) -> None:
    """Have a machine's disk give back something else than what was written."""
    node.rot(world.random)
    world.has_lost_copies |= node.has_rotted


def snapshot(world: World, node: Node) -> None:
    """Take a snapshot of a machine."""
    world.old_disks.append((node.name, bytes(node.disk[: node.synced_bytes]), dict(node.files_disk)))


def start_copy(world: World, node: Node) -> None:
    """Put an old snapshot of the machine in its place."""
    _, disk, files = next(old for old in world.old_disks if old[0] == node.name)
    node.disk, node.files, node.files_disk = bytearray(disk), dict(files), dict(files)
    node.set_synced(len(disk))
    node.kept = node.read(bytes(node.disk))
    node.sent_epoch = 0


# --- stories that seeds alone would tell too rarely ---


def wait(world: World, rounds: int = 12) -> None:
    """Let everything come about that is on its way, and members try again."""
    for at in range(rounds):
        calm_round(world, 0)
        world.judge.check()
        for node in world.nodes if at % 4 == 3 else ():
            if node.member is not None and node.name not in world.etcd_blocked:
                node.member.retry()
                node.carry_out()


def have_lead(world: World, node: Node) -> None:
    """Have a member of the set lead."""
    for _ in range(9):
        if node.member is not None and node.member.is_serving:
            return
        world.stand(node)
        wait(world)


def tell_old_tail(world: World) -> None:
    """Have 0 lead again, behind 2, which did not have what 1 once acknowledged to 0; 1 hears nothing of it."""
    first, second, third = world.nodes
    have_lead(world, first)
    world.blocked.add((0, 2))
    for _ in range(15):
        if first.member is not None and first.member.is_serving:
            first.put(RecordKind.PUT)
        wait(world, 2)
    have_lead(world, third)
    world.blocked.clear()
    wait(world, 40)
    world.blocked.update({(0, 1), (1, 0)})
    have_lead(world, first)
    wait(world)
    assert second.member is not None


def tell_late_word(world: World) -> None:
    """Have 2 lead with 1, and 0 not hear of it; then 1 hears of what the key was before."""
    first, second, third = world.nodes
    have_lead(world, first)
    world.etcd.watches[1], late = [], world.etcd.watches.setdefault(99, [])
    world.etcd_blocked.add(1)
    take_out(first, third.id)
    wait(world, 30)
    world.etcd_blocked.add(0)
    have_lead(world, third)
    take_out(third, first.id)
    wait(world)
    world.etcd_blocked.discard(1)
    world.etcd.watches[1].clear()
    for number in list(world.connections):
        drop(world, number)
    wait(world, 20)
    world.blocked.add((2, 1))
    if third.member is not None and third.member.is_serving:
        third.put(RecordKind.PUT)
    world.blocked.clear()
    for _ in range(3):
        calm_round(world, 0)
    if late and second.member is not None:
        world.etcd.watches[1].insert(0, late[0])
        world.deliver_watch(second)
        world.etcd_blocked.add(1)
        wait(world, 20)
    del world.etcd.watches[99]


def tell_lost_end(world: World) -> None:
    """Have a damaged file tell 1 that it must be copied anew, after it has acknowledged all that is answered."""
    first, second, _ = world.nodes
    have_lead(world, first)
    wait(world, 20)
    second.kill()
    for _ in range(99):
        if not second.has_rotted:
            rot(world, second)
    wait(world, 40)


PRELUDES = {"old tail": tell_old_tail, "late word": tell_late_word, "lost end": tell_lost_end}


# --- the calm ---


def heal(world: World, name: str) -> None:
    """Let nothing fail any more, until a put is answered and every member is in the set."""
    world.log.append(f"{name} begins")
    world.blocked.clear()
    world.etcd_blocked.clear()
    world.hung_disks.clear()
    go_on(world, name)


def hang_a_disk(world: World) -> None:
    """Have the disk of a machine hang, in the middle of a sync: the others go on without it, the leader's too. Then it
    goes on.
    """
    leading = [node for node in world.nodes if node.member is not None and node.member.leader is not None]
    node = world.random.choice(leading or world.nodes)
    world.hung_disks.add(node.name)
    if node.member is not None and node.member.is_serving:
        node.put(RecordKind.PUT)
    go_on(world, f"calm without {node.name}")
    heal(world, "last calm")


def go_on(world: World, name: str) -> None:
    """Let time pass until a put is answered and every member is in the set whose disk does not hang."""
    goal = world.judge.puts_answered + 1
    for node in world.nodes:
        node.die_after, node.is_full = None, False
    for round_ in range(ROUNDS_MAX):
        calm_round(world, round_)
        world.judge.check()
        if world.judge.puts_answered >= goal and is_whole(world):
            world.log.append(f"{name} ends after {round_} rounds")
            return
    states = [describe(node) for node in world.nodes]
    raise ViolationFound("STUCK", f"key {world.etcd.key}; {'; '.join(states)}")


def describe(node: Node) -> str:
    """Return words for the state of a machine."""
    if node.member is None:
        return f"{node.name} is down"
    part = node.member.leader or node.member.follower
    state = part.state.value if part is not None else "-"
    return f"{node.name} {node.member.role.value} {state} at {node.kept.stream.last} {node.kept.fitness.name}"


def is_whole(world: World) -> bool:
    """Tell whether all members whose disks do not hang are in the set, fit, and have the same records."""
    key = world.etcd.key
    ours = [node for node in world.nodes if node.name not in world.foreign and node.name not in world.hung_disks]
    lasts = {node.kept.stream.last for node in ours}
    fit = all(node.kept.fitness is Fitness.WHOLE for node in ours)
    return key is not None and set(key.members) == {node.id for node in ours} and fit and len(lasts) == 1


def calm_round(world: World, round_: int) -> None:
    """Let each machine do what it can, in order."""
    for node in world.nodes:
        if world.may_start(node):
            world.log.append(f"start {node.name}")
            world.start(node)
    while ready := [at for at, request in enumerate(world.etcd.requests) if request.node not in world.etcd_blocked]:
        world.handle_request(ready[0])
    while ready := [at for at, reply in enumerate(world.etcd.replies) if reply.node not in world.etcd_blocked]:
        world.deliver_reply(ready[0])
    while world.connects:
        world.open_connection(0)
    for node in world.nodes:
        if node.name not in world.etcd_blocked:
            while node.member is not None and world.etcd.watches.get(node.name):
                world.deliver_watch(node)
        if node.syncs and node.name not in world.hung_disks:
            node.end_sync(len(node.syncs) - 1)
        if node.can_work:
            node.do_work(world.random)
    for number in list(world.connections):
        for side in (0, 1):
            while number in world.connections and world.is_deliverable(number, side):
                world.deliver(number, side)
    if world.leases is not None:
        world.tick()
    if round_ % 5 == 4:
        operate(world, round_)


def operate(world: World, round_: int) -> None:
    """Do what timers and operators do: try again, stand, take out, write."""
    live = [node for node in world.nodes if node.member is not None and not node.is_stopped]
    if world.etcd.key is None:
        node = world.nodes[0]
        if node.member is not None:
            node.member.init(CLUSTER)
            node.carry_out()
    has_timers = world.leases is not None
    serving = [node for node in live if node.member is not None and node.member.leader is not None]
    on_the_way = {request.node for request in (*world.etcd.requests, *world.etcd.replies)}
    for node in live:
        if node.member is not None and node.name not in on_the_way:
            world.give_up_ask(node)
    for node in serving:
        lead(world, node, 0 if has_timers else round_)
    if not serving and not has_timers:
        elect(world, live, round_)
    for node in live:
        if node.member is not None:
            node.member.retry()
            node.carry_out()


def elect(world: World, live: list[Node], round_: int) -> None:
    """Have the members of the set stand. If all lack something, an operator says which one leads."""
    key = world.etcd.key
    for node in live:
        if key is not None and node.id in key.members:
            world.stand(node)
    in_set = [node for node in live if key is not None and node.id in key.members]
    if round_ > 60 and in_set and all(node.kept.fitness is Fitness.SHORT for node in in_set):
        best = max(in_set, key=lambda node: node.kept.stream.last)
        best.may_lose = best.config.policy is Policy.LAZY
        assert best.member is not None
        best.member.stand(although_unfit=True)
        best.carry_out()


def lead(world: World, node: Node, round_: int) -> None:
    """Write, and take out of the set who does not come."""
    assert node.member is not None and node.member.core.key is not None
    node.put(RecordKind.PUT)
    if node.member is None or node.member.leader is None or round_ < 30:
        return
    for member_id in node.member.core.key.members:
        other = world.node_of(member_id)
        follower = other.member.follower if other is not None and other.member is not None else None
        if other is not node and (follower is None or follower.state is not FollowerState.FOLLOWING):
            take_out(node, member_id)
            if node.member is None or node.member.leader is None:
                return


def main() -> int:
    """Run seeds, and say which failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--profile", choices=PROFILES, default="usual")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    failed = puts = epochs = 0
    counts: Counter[str] = Counter()
    for seed in range(args.seed, args.seed + args.seeds):
        outcome = run(seed, args.profile)
        puts, epochs = puts + outcome.puts, epochs + outcome.epochs
        counts += outcome.counts
        if args.verbose:
            print("\n".join(outcome.log))
        if outcome.kind:
            failed += 1
            print(f"seed {seed} of {args.profile}: {outcome.why}", flush=True)
    print(f"{args.seeds} seeds of {args.profile}, {failed} failed; {puts} puts answered, {epochs} epochs")
    print(", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
