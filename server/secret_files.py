"""Secret files that every user of the machine can read: reported at the start and at each reload, and to operators."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from staniel.broker.broker import Broker
from staniel.broker.config.load import Config
from staniel.broker.events import Level


def watch_secrets(broker: Broker) -> None:
    """Report exposed secret files now and at each reload."""
    report_exposed(broker)
    reloaded = broker.reloaded

    def look_again(now_ms: int) -> None:
        report_exposed(broker)
        reloaded(now_ms)

    broker.reloaded = look_again


def report_exposed(broker: Broker) -> None:
    broker.health.server.exposed_files = exposed_files(broker.config)
    for path in broker.health.server.exposed_files:
        hint = f"every user of this machine can read it: {mend(path)}"
        broker.report(Level.WARNING, "secret.readable", path=path, hint=hint)


def mend(path: str) -> str:
    return f"chmod o-r {path}, and have a new secret in it"


def exposed_files(config: Config) -> list[str]:
    """Return the exposed files, by their own mode. A missing file is not reported."""
    users = config.users.values()
    named = [config.admin.token_file, *(user.token_file for user in users), *(user.password_file for user in users)]
    if config.tls.certificate:
        named.append(config.tls.key or config.tls.certificate)
    cluster = config.cluster
    named += [cluster.key or cluster.certificate, cluster.etcd_key or cluster.etcd_certificate]
    named.append(cluster.etcd_password_file)
    if any(user.password_hash for user in users):
        named.append(config.file)
    exposed = []
    for path in dict.fromkeys(path for path in named if path):
        with suppress(OSError):
            if os.stat(path).st_mode & stat.S_IROTH:
                exposed.append(path)
    return exposed
