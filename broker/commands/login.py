"""memcached's ASCII authentication: the first `set`, of any key, carries "USER PASSWORD", or a user's token in the
place of the password. Source: `authfile` of memcached 1.6 (proto_text.c), which has these replies. Both dialects use
them, because Kestrel has no users.
"""

from __future__ import annotations

from hmac import compare_digest

from staniel.broker.events import Level
from staniel.broker.passwords import CHECKS_MAX, PASSWORD_BYTES_MAX, PasswordCheck
from staniel.broker.session import PULSE, SUSPENDED, Session
from staniel.broker.users import Logins, User
from staniel.protocol.memcache.item_requests import Set
from staniel.protocol.memcache.replies import MEMCACHED

FAILURES_MAX = 3  # of a connection, which is then disconnected
FAILURE_MS = 500  # before the reply to the first failure, twice that before the second
# memcached's words, then a hint for a client that has reconnected without noticing.
HINT = "the first set of each connection is its login, with USER PASSWORD as the value"
BAD_FORMAT = f"bad authentication token format: {HINT}; this set is none"
FAILURE = f"authentication failure: {HINT}"


def login(session: Session, request: Set, now_ms: int) -> None:
    """Authenticate the client. The requests behind it in the pipeline wait for the result."""
    words = request.data.split()
    if len(words) != 2 or len(request.data) > PASSWORD_BYTES_MAX:
        session.out.append(MEMCACHED.client_error(BAD_FORMAT))
        return
    users, logins = session.broker.users, session.broker.logins
    name, password = words[0].decode("utf-8", "replace"), words[1]
    user = users.by_name.get(name)
    wanted = user.password if user is not None else None
    if user is not None and _is_known_at_once(logins, user, password):
        succeed(session, name)
        session.yield_turn()  # the next requests are served from another table
        return
    if logins.checks >= CHECKS_MAX:
        session.out.append(MEMCACHED.server_error("too many logins at a time, try again"))
        return
    logins.checks += 1
    known_name = name if user is not None else ""

    def then(is_right: bool, now_ms: int) -> None:
        logins.checks -= 1
        if is_right and wanted is not None:
            logins.remembered.learn(name, wanted, password)
        elif session.state is not SUSPENDED:  # a client that disconnected meanwhile has guessed too
            note_failure(session, known_name, now_ms)
        session.deliver(is_right and wanted is not None)

    def answer(is_right: bool, now_ms: int) -> None:
        current = session.broker.users.by_name.get(name)
        if is_right and current is not None and current.password == wanted:
            succeed(session, name)
        else:
            fail(session, known_name, now_ms)

    session.suspend(answer)
    # Low priority: otherwise clients that keep guessing passwords could starve packs and deletions.
    check = PasswordCheck(wanted or users.stand_in(name), password, then, lambda: session.state is SUSPENDED)
    session.broker.maintenance.tasks.submit(check)


def _is_known_at_once(logins: Logins, user: User, secret: bytes) -> bool:
    """Tell whether `secret` is right without hashing it. A token is long and random, so it needs no hash; a password
    may be one that was right before. A wrong secret takes the same path whether or not the user has a token.
    """
    if user.token and compare_digest(user.token, secret):
        return True
    return user.password is not None and logins.remembered.knows(user.name, user.password, secret)


def succeed(session: Session, name: str) -> None:
    broker = session.broker
    broker.logins.succeeded += 1
    broker.authorize(session, name, broker.users.by_name[name].rights)
    session.out.append(session.stored)


def note_failure(session: Session, name: str, now_ms: int) -> None:
    """Count and log a failed login. `name` "": no user has the name, and it is not logged because it might be a
    password in the wrong place.
    """
    broker = session.broker
    broker.logins.failed += 1
    broker.rate_limited(Level.WARNING, "login.failed", now_ms, client=session.address, user=name or "unknown")


def fail(session: Session, name: str, now_ms: int) -> None:
    """Count a failed login and reply late."""
    note_failure(session, name, now_ms)
    session.failures += 1

    def answer(_: object, now_ms: int) -> None:
        if session.failures < FAILURES_MAX:
            session.out.append(MEMCACHED.client_error(FAILURE))
        else:
            session.hang_up(MEMCACHED.client_error(FAILURE))

    until_ms = now_ms + (FAILURE_MS << (session.failures - 1))
    session.park(PULSE, until_ms, answer, opens=False, peeks=False)
