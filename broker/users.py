"""The users of a configuration, and the identification of clients: by certificate, by the peer credentials of a Unix
socket, by a password or a token.

Without users every client may do everything, as with Kestrel and memcached. The exception is a server that listens
beyond loopback: there clients from the network may only put and take (`[server] operator_commands`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from staniel.broker.config.addresses import TcpAddress, format_address, is_loopback
from staniel.broker.config.load import Config, ConfigError
from staniel.broker.config.toml import joined
from staniel.broker.rights import PASSER_BY, STRANGER, Rights
from staniel.journal.disk.fs import Fs

if TYPE_CHECKING:
    from staniel.broker.passwords import PasswordHash, Remembered

SECRET_BYTES_MIN, SECRET_BYTES_MAX = 16, 4096
UNIX = "unix:"


class User(Struct, frozen=True):
    """A user, from [users.NAME]. `token` b"": none. A user without a password has no `password`."""

    name: str
    rights: Rights
    password: PasswordHash | None
    certificates: tuple[str, ...]
    uids: tuple[int, ...]
    token: bytes

    def replaces(self, other: User) -> bool:
        """Tell whether clients of `other` may keep their connections as this user: it has the same secrets, and no
        fewer rights.
        """
        same = (self.password, self.certificates, self.uids, self.token)
        old = (other.password, other.certificates, other.uids, other.token)
        return same == old and self.rights.covers(other.rights)


class Logins:
    """Counts of logins, and the memory of right passwords, which survive reloads. `key`: the key of the digests, secret
    and new in each process. `own_uids`: the server's own user and root, who may do everything on Unix sockets.
    """

    def __init__(self, key: bytes = b"", own_uids: frozenset[int] = frozenset()) -> None:
        self._key = key
        self.own_uids = own_uids
        self._remembered: Remembered | None = None
        self.succeeded = self.failed = 0
        self.refused = 0  # requests refused
        self.checks = 0  # password checks that wait or run

    @property
    def remembered(self) -> Remembered:
        if self._remembered is None:
            from staniel.broker.passwords import Remembered  # loads OpenSSL

            self._remembered = Remembered(self._key)
        return self._remembered


class Users:
    """The users of one configuration. `own_uids`: the server's own user and root, who may do everything on Unix
    sockets.
    """

    def __init__(self, config: Config, fs: Fs, own_uids: frozenset[int]) -> None:
        """Read the users' secrets. Raises ConfigError if a secret cannot be read, or two users could not be
        distinguished.
        """
        self.own_uids = own_uids
        self.by_name = {name: self._user(config, fs, name) for name in config.users}
        self._by_certificate: dict[str, User] = {}
        self._by_uid: dict[int, User] = {}
        for user in self.by_name.values():
            for certificate in user.certificates:
                self._add_key(self._by_certificate, certificate, user, "certificates")
            for uid in user.uids:
                self._add_key(self._by_uid, uid, user, "uids")
        self._tell_tokens_apart(config, fs)
        self._sample = _sample([user.password for user in self.by_name.values() if user.password is not None])
        operators = config.server.operator_commands
        self.strangers: Rights | None = None
        if self.by_name:
            self.strangers = STRANGER
        elif operators == "local" or (operators == "auto" and open_addresses(config)):
            self.strangers = PASSER_BY

    def _user(self, config: Config, fs: Fs, name: str) -> User:
        settings = config.users[name]
        path = joined("users", name)
        from staniel.broker.passwords import parse_hash  # loads OpenSSL

        text = settings.password_hash or _secret(fs, settings.password_file, f"{path}.password_file")
        try:
            password = parse_hash(text) if text else None
        except ValueError as error:
            why = f"expected what `staniel user hash` prints, got {error}"
            raise ConfigError(f"{path}.password_{'hash' if settings.password_hash else 'file'}", why) from None
        rights = Rights(f"user {name}", frozenset(settings.roles), settings.queues, settings.create)
        token = _secret(fs, settings.token_file, f"{path}.token_file").encode("latin-1")
        return User(name, rights, password, settings.certificates, settings.uids, token)

    @staticmethod
    def _add_key(users: dict[Any, User], key: object, user: User, spelled: str) -> None:
        if key in users:
            why = f"expected one user for {key}, got {users[key].name} too"
            raise ConfigError(joined(joined("users", user.name), spelled), why)
        users[key] = user

    def _tell_tokens_apart(self, config: Config, fs: Fs) -> None:
        """Check that each token belongs to one user only, and not to the admin listener, whose token allows everything.
        Raises ConfigError.
        """
        owners = {user.token: user.name for user in reversed(self.by_name.values()) if user.token}
        if owners and any(isinstance(address, TcpAddress) for address in config.all_addresses("admin")):
            owners[_secret(fs, config.admin.token_file, "admin.token_file").encode("latin-1")] = "[admin]"
        for user in self.by_name.values():
            if user.token and owners[user.token] != user.name:
                why = f"expected a token of its own, got that of {owners[user.token]}"
                raise ConfigError(joined(joined("users", user.name), "token_file"), why)

    def replace(self, other: Users) -> bool:
        """Tell whether each user of `other` is a user here, with the same secrets and no fewer rights."""
        mine = self.by_name
        return all(name in mine and mine[name].replaces(user) for name, user in other.by_name.items())

    def identify(self, protocol: str, address: str, certificate: tuple[str, ...]) -> tuple[str, Rights | None]:
        """Return (name, rights) of a client that has just connected. Rights None: all."""
        if address.startswith(UNIX):
            uid = int(address.rpartition("uid=")[2]) if "uid=" in address else -1
            if user := self._by_uid.get(uid):
                return user.name, user.rights
            return ("", None) if not self.by_name or uid in self.own_uids else ("", STRANGER)
        for key in certificate:
            if user := self._by_certificate.get(key):
                return user.name, user.rights
        if protocol == "admin":
            return "", None  # AdminAccess checks each request
        return "", self.strangers

    def knows_all(self, protocol: str, address: str) -> bool:
        """Tell whether such a client may do everything without authentication."""
        return self.identify(protocol, address, ())[1] is None

    def stand_in(self, name: str) -> PasswordHash:
        """Return a hash to compare with a password for `name`, which has no hash itself."""
        from staniel.broker.passwords import stand_in

        return stand_in(name, self._sample)

    def of_token(self, given: bytes) -> User | None:
        """Return the user of this token. All users' tokens are compared, even after a match."""
        import hmac  # loads OpenSSL

        matching = None
        for user in self.by_name.values():
            if user.token and hmac.compare_digest(user.token, given):
                matching = user
        return matching


def _sample(hashes: list[PasswordHash]) -> list[PasswordHash]:
    if not hashes:
        return []
    from staniel.broker.passwords import sample  # loads OpenSSL

    return sample(hashes)


def open_addresses(config: Config) -> list[TcpAddress]:
    """Return the addresses at which other machines can connect to listeners for clients."""
    addresses = list[TcpAddress]()
    for name in ("memcache", "text", "thrift", "workq"):
        tcp = [address for address in config.all_addresses(name) if isinstance(address, TcpAddress)]
        addresses += [address for address in tcp if not is_loopback(address.host)]
    return addresses


def is_unguarded(config: Config) -> bool:
    """Tell whether other machines can connect to a listener that does not authenticate its clients."""
    if config.users or not open_addresses(config):
        return False
    names = ("memcache", "text", "thrift", "workq")
    plain = [address for name in names for address in config.addresses(name) if isinstance(address, TcpAddress)]
    return any(not is_loopback(address.host) for address in plain) or config.tls.client_certificates != "required"


def network_refusal(config: Config) -> str:
    """Return why the server must not start; "" if it may. It must not if other machines would be served without
    authentication and no setting allows that.
    """
    if config.server.open_network or not is_unguarded(config):
        return ""
    where = ", ".join(format_address(address) for address in open_addresses(config))
    return (
        f"{where} can be reached by other machines, and clients need not authenticate: give [users] or "
        "[tls] client_certificates, or allow it with [server] open_network = true or --open-network"
    )


def _secret(fs: Fs, path: str, key: str) -> str:
    """Read the first line of the file, without blanks around it. Raises ConfigError."""
    if not path:
        return ""
    try:
        line = fs.read(path, 0, SECRET_BYTES_MAX).split(b"\n")[0].strip()
    except OSError as error:
        raise ConfigError(key, f"cannot be read: {error.strerror}") from error
    if len(line) < SECRET_BYTES_MIN:
        raise ConfigError(key, f"expected at least {SECRET_BYTES_MIN} bytes in {path}")
    return line.decode("latin-1")
