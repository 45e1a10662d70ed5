"""TLS of a broker's listeners, for a server that stands alone and for the leader of a cluster."""

from __future__ import annotations

from staniel.broker.broker import Broker
from staniel.broker.config.load import Config
from staniel.server.interfaces import Security


def secure(broker: Broker) -> Security:
    """Return the Security of TLS listeners, which each reload renews. Raises ConfigError."""
    from staniel.server.certificates import Certificates  # loads OpenSSL

    certificates = Certificates(broker.config, broker.report)
    check_others = broker.check_reload

    def check(config: Config) -> None:
        check_others(config)
        certificates.prepare(config)

    broker.check_reload = check
    broker.health.server.certificate_ends_ms = certificates.ends_ms
    hub_reloaded = broker.reloaded

    def reloaded(now_ms: int) -> None:
        certificates.take_over()
        broker.health.server.certificate_ends_ms = certificates.ends_ms
        hub_reloaded(now_ms)

    broker.reloaded = reloaded
    return certificates
