"""The configuration of a member, which a reload replaces although it does not lead: what it serves with once it leads,
and who may ask it until then.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from staniel.broker.broker import admin_access
from staniel.broker.config.load import Config
from staniel.broker.config.toml import ConfigError
from staniel.broker.events import Level
from staniel.broker.users import Users
from staniel.cluster.core import Policy
from staniel.queues.config import SYNC_ALWAYS
from staniel.server.cluster.admin import Guard
from staniel.server.spool_socket import allowed_clients
from staniel.server.start import Start, check_again


def policy_of(config: Config) -> Policy:
    """Return whether replies wait for the leader's own disk: they all do, or some need not."""
    syncs = {queue.sync_ms == SYNC_ALWAYS for queue in config.resolved.values()}
    if config.all_addresses("workq"):
        syncs.add(config.workq.cmdlog_sync == "always")
    return Policy.ALWAYS if syncs == {True} else Policy.LAZY


class MemberConfiguration:
    """The configuration in force. `start` makes brokers with it; `guard` is that of the admin listener. `check` and
    `taken` are further parts of a reload: the first may raise ConfigError, the second applies what was checked.
    """

    def __init__(self, start: Start) -> None:
        """Read the secrets. Raises ConfigError."""
        self.start = start
        self._started_with = start.config
        self.guard = self._read_guard(start.config)
        self._next = start.config, self.guard
        self.check: Callable[[Config], None] = lambda config: None
        self.taken: Callable[[], None] = lambda: None

    def reload(self) -> tuple[str, str]:
        """Read the file again. Return why it is refused, "" if it is taken over, and the keys that only a restart
        applies.
        """
        report, started = self.start.report, self._started_with
        try:
            given = self.start.load()
            check_again(self.start.flaws, given.listening_as(started))
            self.prepare(given)
        except ConfigError as error:
            report(Level.ERROR, "config.refused", why=str(error), hint="nothing has changed")
            return str(error), ""
        self.take_over()
        later = ", ".join(given.later_keys(started))
        report(Level.INFO, "config.reloaded", queues=len(given.queues), aliases=len(given.aliases))
        if later:
            report(Level.WARNING, "config.later", keys=later, hint="only a restart takes these over")
        return "", later

    def prepare(self, given: Config) -> None:
        """Read what a changed configuration names. Raises ConfigError."""
        config = given.taken_over_by(self._started_with)
        guard = self._read_guard(config)
        self.check(config)
        self._next = config, guard

    def take_over(self) -> None:
        """Take what was prepared."""
        config, self.guard = self._next
        self.start = structs.replace(self.start, config=config)
        self.taken()

    def _read_guard(self, config: Config) -> Guard:
        return Guard(admin_access(config, self.start.fs), Users(config, self.start.fs, allowed_clients()))
