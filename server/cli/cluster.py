"""The commands on a cluster: on a running member, `staniel cluster`, `cluster init`, `cluster remove` and `handover`;
while all servers are stopped, `cluster place` and `cluster restore-etcd`, which read members' files
(cluster/restoring.py).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import click
import msgspec

from staniel.broker.config.load import Config, ConfigError, load
from staniel.cluster.durable import Content, read_file
from staniel.cluster.etcd.client import Etcd
from staniel.cluster.etcd.errors import EtcdError
from staniel.cluster.etcd.messages import Outcome
from staniel.cluster.key import MISSING_REVISION, Key, decode_key, encode_key, prefix_of
from staniel.cluster.restoring import Choice, MemberPlace, choose_leader, decode_place, place_of
from staniel.cluster.status import FollowerStatus, HandOver, MemberStatus, Remove, Role
from staniel.journal.disk.fs import MISSING, AlreadyLocked, Fs
from staniel.journal.disk.os_fs import OsFs
from staniel.journal.disk.refusals import refused_tool
from staniel.journal.kestrel.files import OWN_FOLDER
from staniel.journal.membership import FILE
from staniel.journal.spool import LOCK
from staniel.server.cli.admin_address import AdminError
from staniel.server.cli.live import echo_table
from staniel.server.cli.live_command import Live, LiveCommand, confirm, convert
from staniel.server.cli.parameters import YES, CommandFailed, ExistingPath
from staniel.server.cluster.member_tls import open_etcd
from staniel.server.text import human_size, printable, tolerate

STATUS = "status"
NOT_FOUND = 404
REFUSED = 409
LOOK_S = 0.2
MOVE_S_MAX = 60.0
RETURN_S_MAX = 10.0
"""The time in which a member of the set connects to the leader again, or is in etcd again, if it lives."""
PUTS_MAX = 100_000
"""Puts by which the revision of a restored etcd is raised above all that members have seen."""
HEADS = ("MEMBER", "ROLE", "IN SYNC", "LAG: RECORDS", "BYTES", "MS", "ADDRESS", "ID")
LEFT = ("MEMBER", "ROLE", "IN SYNC", "ADDRESS", "ID")
ALONE = "this server stands alone: its configuration has no [cluster]"


class ClusterGroup(click.Group):
    """A group in which `cluster OPTIONS` means `cluster status OPTIONS`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in [*self.commands, *ctx.help_option_names]:
            args = [STATUS, *args]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["[OPTIONS] | COMMAND [ARGS]..."]


@click.group(cls=ClusterGroup)
def cluster() -> None:
    """Show a cluster, make one, or restore its key in etcd.

    `staniel cluster --config FILE` shows the members of the cluster of that server; `staniel cluster status --help`
    lists its options.
    """
    tolerate()


# a running member


@cluster.command(STATUS, cls=LiveCommand, epilog="staniel cluster --config /etc/staniel/staniel.toml")
@click.pass_obj
def show_status(live: Live) -> None:
    """Show who leads, which members are in sync, and how far each is behind.

    The leader knows all of it; another member says who leads, and what itself does. LAG is what a member has not
    acknowledged of the leader's records: how many, how many bytes, and for how long the oldest has waited. IN SYNC is
    yes for members that can be given the lead; "in set": it is not connected, or not in etcd, and answers wait for it.
    Exit code 0: a member leads; 3: none is known, or the member that was asked cannot go on.
    """
    reply = _ask_status(live)
    status = convert(reply, MemberStatus)
    if not live.print_json(reply):
        for line in _describe(status):
            click.echo(printable(line))
        echo_table(HEADS, list(_rows(status)), *LEFT)
    sys.exit(0 if status.leader_address and status.role is not Role.STOPPED else 3)


def _ask_status(live: Live) -> object:
    """Return what the server says of itself. Raises AdminError."""
    with _naming_a_server_alone():
        return live.client.get("/cluster")


@contextmanager
def _naming_a_server_alone() -> Iterator[None]:
    """Say of a server that knows no cluster that it stands alone."""
    try:
        yield
    except AdminError as error:
        raise (AdminError(ALONE, error.status) if error.status == NOT_FOUND else error) from error


def _describe(status: MemberStatus) -> Iterable[str]:
    names = {status.id: status.name, **{follower.id: follower.name for follower in status.followers}}
    leader = names.get(status.leader_id) or status.leader_name or status.leader_id
    led = f"led by {leader} ({status.leader_address})" if status.leader_id else "no leader is known"
    yield f"cluster {status.cluster}: epoch {status.epoch}, {led}, {len(status.in_sync)} in sync"
    if status.in_sync and len(status.in_sync) < status.min_in_sync:
        yield f"puts are refused: min_in_sync is {status.min_in_sync}"
    if status.etcd_restored:
        yield f"etcd was restored: {status.etcd_restored}; see docs/replication.md"
    for why in (status.why, f"unfit: {status.unfit}" if status.unfit else "", status.etcd and f"etcd: {status.etcd}"):
        if why:
            yield f"{status.name}: {why}"
    if status.role is not Role.LEADING and status.leader_id:
        yield "as etcd has it; the leader knows who is connected, and how far behind"


def _rows(status: MemberStatus) -> Iterable[list[str]]:
    own_address = status.leader_address if status.leader_id == status.id else ""
    is_in_sync = "yes" if status.id in status.in_sync else "no"
    yield _row(status.name, status.role.value, is_in_sync, ("-", "-", "-"), own_address, status.id)
    for other in status.followers:
        state = other.state if other.is_connected else "gone"
        # "yes" is what `handover` asks for; answers wait for any member of the set
        is_yes = other.may_lead or (other.in_set and other.id == status.leader_id)
        is_in_sync = "yes" if is_yes else "in set" if other.in_set else "no"
        yield _row(other.name, state, is_in_sync, _lag_of(other), other.address, other.id)


def _row(name: str, role: str, is_in_sync: str, lag: tuple[str, str, str], address: str, member_id: str) -> list[str]:
    row = [name or "?", role, is_in_sync, *lag, address or "-", member_id]
    return [printable(cell) for cell in row]


def _lag_of(other: FollowerStatus) -> tuple[str, str, str]:
    if other.lag_records is None or other.lag_bytes is None or other.lag_ms is None:
        return "?", "?", "?"
    return f"{other.lag_records:,}", human_size(other.lag_bytes), f"{other.lag_ms:,}"


@cluster.command(cls=LiveCommand, epilog="staniel cluster init --config /etc/staniel/staniel.toml")
@click.pass_obj
def init(live: Live) -> None:
    """Make the cluster of a running server's [cluster] section, with this server alone in its set.

    Its queues become the cluster's; the other members join by themselves, with empty spools. It is refused if the
    cluster exists in etcd: a second history of its queues would begin.
    """
    with _naming_a_server_alone():
        live.client.begin_operation("POST", "/cluster/init", None)
    status = _wait_for(live, lambda status: status.role is Role.LEADING)
    text = f"cluster {status.cluster} is made, led by {status.name} ({status.leader_address}); start the other members"
    live.print_result(msgspec.to_builtins(status), printable(text))


@cluster.command(cls=LiveCommand, epilog="staniel cluster remove --config /etc/staniel/staniel.toml m3")
@click.argument("member", metavar="MEMBER")
@click.pass_obj
def remove(live: Live, member: str) -> None:
    """Have a stopped MEMBER, by name or id, expected no more: no alert tells of it then.

    --config, --spool or --url name the leader. A member that is started again is expected again.
    """
    removed = str(live.client.begin_operation("POST", "/cluster/remove", msgspec.to_builtins(Remove(member)))["member"])
    status = _wait_for(live, lambda status: removed not in [other.id for other in status.followers])
    live.print_result(msgspec.to_builtins(status), printable(f"{member} is removed"))


@click.command(
    "handover",
    cls=LiveCommand,
    epilog="staniel handover --config /etc/staniel/staniel.toml\nstaniel handover --url http://10.0.0.1:8080 --to m2",
)
@click.option("--to", default="", metavar="MEMBER", help="A name or an id.  [default: any member in sync]")
@click.pass_obj
def handover(live: Live, to: str) -> None:
    """Have the leader hand its lead to another member of the in-sync set, for an upgrade for example.

    The leader takes no more requests, replies to all that it has taken, closes its clients' connections, and follows
    then. --config, --spool or --url name the leader. Waits until the other member leads; before, for up to 10 s for one
    of the set that is not connected, or not in etcd.
    """
    before = convert(_ask_status(live), MemberStatus)
    heir = _order_hand_over(live, to)
    status = _wait_for(live, lambda status: status.epoch > before.epoch and status.leader_id != before.id)
    name = next((other.name for other in before.followers if other.id == status.leader_id), status.leader_id)
    said = "" if status.leader_id == heir else f", not {heir}"
    text = f"{name} leads ({status.leader_address}){said}, epoch {status.epoch}"
    live.print_result(msgspec.to_builtins(status), printable(text))


def _order_hand_over(live: Live, to: str) -> str:
    """Return the id of the member that gets the lead. Raises AdminError."""
    until = time.monotonic() + RETURN_S_MAX
    while True:
        try:
            taken = live.client.begin_operation("POST", "/cluster/handover", msgspec.to_builtins(HandOver(to)))
            return str(taken["member"])
        except AdminError as error:
            if error.status != REFUSED or not _may_return(convert(_ask_status(live), MemberStatus), to):
                raise
            if time.monotonic() > until:
                waited = f"waited {RETURN_S_MAX:g} s for one of the set that is not connected, or not in etcd"
                raise AdminError(f"{error}; {waited}", error.status) from error
        time.sleep(LOOK_S)


def _may_return(status: MemberStatus, to: str) -> bool:
    """Tell whether a leader refuses an order only until this member of the set can be given the lead."""
    named = [other for other in status.followers if to in ("", other.name, other.id)]
    return status.role is Role.LEADING and any(other.in_set for other in named)


def _wait_for(live: Live, holds: Callable[[MemberStatus], bool]) -> MemberStatus:
    """Return the first status for which something holds. The server may restart meanwhile. Raises AdminError."""
    until = time.monotonic() + MOVE_S_MAX
    why = ""
    while time.monotonic() < until:
        try:
            status = convert(_ask_status(live), MemberStatus)
        except AdminError as error:  # a leader that is deposed becomes a new program, and ends its connections
            why = str(error)
        else:
            if holds(status):
                return status
            why = (
                f"{status.name} is {status.role.value}, epoch {status.epoch}: {status.why or status.etcd or 'no news'}"
            )
        time.sleep(LOOK_S)
    raise AdminError(f"it was accepted, and has not come about within {MOVE_S_MAX:g} s: {printable(why)}")


# all servers stopped


config_option = click.option(
    "--config", "-c", "path", required=True, metavar="FILE", help="The server's file, which names its spool and etcd."
)


@cluster.command("place", epilog="staniel cluster place --config /etc/staniel/staniel.toml > a.json")
@config_option
def place_command(path: str) -> None:
    """Print the place of this machine's member, for `restore-etcd` on another machine. Its server must be stopped."""
    config = _load_config(path)
    own = _own_place(config)
    if own is None:
        raise CommandFailed(printable(f"{config.server.spool} has no member's file: it has joined no cluster"))
    click.echo(msgspec.json.encode(own).decode())


@cluster.command("restore-etcd", epilog="staniel cluster restore-etcd --config /etc/staniel/staniel.toml b.json c.json")
@click.argument("paths", metavar="[PLACES]...", nargs=-1, type=ExistingPath())
@config_option
@click.option("--without", multiple=True, metavar="ID", help="A member that is lost with its disk. May be repeated.")
@YES
def restore_etcd(paths: tuple[str, ...], path: str, without: tuple[str, ...], is_sure: bool) -> None:
    """Write the cluster's key anew, after etcd was restored from a backup or has lost it.

    All servers must be stopped. PLACES are files with what `staniel cluster place` printed on the other machines; this
    machine's member is read itself. The member with the last record leads, alone in the set and in a higher epoch; the
    others join it when they start, and what they have beyond it is kept in .staniel/damaged/. Without a place, a member
    that has more would lose what it acknowledged: the command refuses if the key names a member whose place is missing.
    """
    import trio  # 50 ms to load

    config = _load_config(path)
    own = _own_place(config)
    places = ([own] if own is not None else []) + [place for file in paths for place in _read_places(file)]
    places = list({msgspec.json.encode(place): place for place in places}.values())
    for place in places:
        if place.cluster != config.cluster.name:
            raise CommandFailed(printable(f"the place of {place.name} is of the cluster {place.cluster}"))
    try:
        trio.run(_restore, config, places, frozenset(without), is_sure)
    except EtcdError as error:
        raise CommandFailed(printable(str(error))) from error


def _open_etcd(config: Config) -> Etcd:
    """Return the client of the cluster's etcd. Raises CommandFailed."""
    try:
        return open_etcd(config.cluster)
    except ConfigError as error:
        raise CommandFailed(printable(str(error))) from error


async def _restore(config: Config, places: list[MemberPlace], without: frozenset[str], is_sure: bool) -> None:
    """Choose, ask, and write the key. Raises CommandFailed, EtcdError."""
    etcd, prefix = _open_etcd(config), prefix_of(config.cluster.name)
    alive = (await etcd.read_prefix(prefix + b"members/")).values
    if alive:
        ids = ", ".join([kv.key.rpartition(b"/")[2].decode("ascii", "replace") for kv in alive])
        raise CommandFailed(
            printable(f"etcd says that members are alive: {ids}. Stop all servers, and wait for a lease")
        )
    reading = await etcd.read_key(prefix + b"leader")
    revision, current = MISSING_REVISION, None
    if reading.values:
        decoded = decode_key(reading.values[0].value)
        if isinstance(decoded, str):
            raise CommandFailed(f"the key in etcd: {printable(decoded)}")
        revision, current = reading.values[0].mod_revision, decoded
    choice = choose_leader(places, current, without)
    if isinstance(choice, str):
        raise CommandFailed(printable(choice))
    _show_choice(places, choice, current)
    if choice.above - reading.revision > PUTS_MAX:
        raise CommandFailed(
            f"members have seen revision {choice.above:,}, this etcd is at {reading.revision:,}: restore it again with"
            " `etcdutl snapshot restore --bump-revision`"
        )
    confirm(f"write the key anew, with {printable(choice.leader.name)} as the leader", is_sure)
    written = await _write_above(etcd, prefix + b"leader", revision, choice)
    click.echo(
        f"the key is written, revision {written:,}: start {printable(choice.leader.name)} first, then the others"
    )


async def _write_above(etcd: Etcd, key: bytes, revision: int, choice: Choice) -> int:
    """Write the key until its revision is above all that members have seen. Return it. Raises CommandFailed,
    EtcdError.
    """
    value = encode_key(choice.key)
    while True:
        result = await etcd.put_if_unchanged(key, revision, value)
        if result.outcome is not Outcome.WRITTEN:
            why = result.why or "another program has written the key"
            raise CommandFailed(
                printable(f"{why}; nothing is lost: see that all servers are stopped, then run it again")
            )
        revision = result.revision
        if revision > choice.above:
            return revision


def _show_choice(places: list[MemberPlace], choice: Choice, current: Key | None) -> None:
    heads = ("MEMBER", "LAST RECORD", "PROMISED", "UNFIT", "ID")
    rows = [[place.name, str(place.place), str(place.promised), place.unfit or "-", place.id] for place in places]
    echo_table(heads, [[printable(cell) for cell in row] for row in rows], "MEMBER", "UNFIT", "ID")
    had = f"epoch {current.epoch}, {len(current.members)} in sync" if current is not None else "nothing"
    click.echo(printable(f"etcd has {had}; new: epoch {choice.key.epoch}, led by {choice.leader.name}, alone in sync"))


def _load_config(path: str) -> Config:
    """Load a member's configuration. Raises CommandFailed."""
    try:
        config = load(path).absolute()
    except ConfigError as error:
        raise CommandFailed(printable(str(error))) from error
    if not config.cluster.name:
        raise CommandFailed(f"{printable(path)} has no [cluster]")
    return config


def _own_place(config: Config) -> MemberPlace | None:
    """Return the place of this machine's member; None if its spool has no member's file. Raises CommandFailed."""
    fs, folder = OsFs(), config.server.spool
    try:
        content = _read_locked(fs, f"{folder}/{OWN_FOLDER}")
    except AlreadyLocked as locked:
        raise CommandFailed(printable(f"{locked.holder or 'a server'} has {folder} open: stop it first")) from None
    except OSError as error:
        raise CommandFailed(printable(refused_tool(error, folder))) from error
    finally:
        fs.close()
    if content is None:
        return None
    own, why = config.cluster, content
    if isinstance(content, Content):
        place = place_of(content.kept, own.name, own.member, own.advertise)
        if isinstance(place, MemberPlace):
            return place
        why = place
    raise CommandFailed(printable(f"{folder}/{OWN_FOLDER}/{FILE}: {why}"))


def _read_locked(fs: Fs, own: str) -> Content | str | None:
    """Return the content of a stopped member's file; None if there is none. Raises AlreadyLocked, OSError."""
    path = f"{own}/{FILE}"
    try:
        size = fs.size(path)
    except MISSING:
        return None
    fs.lock(f"{own}/{LOCK}")
    return read_file(fs.read(path, 0, size))


def _read_places(path: str) -> list[MemberPlace]:
    """Return the places in a file, one a line. Raises CommandFailed."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file if line.strip()]
    except OSError as error:
        raise CommandFailed(printable(refused_tool(error, path))) from error
    places = []
    for line in lines:
        place = decode_place(line)
        if isinstance(place, str):
            raise CommandFailed(printable(f"{path}: {place}"))
        places.append(place)
    return places
