"""Rights remember the queues that they have allowed."""

from __future__ import annotations

from staniel.broker.rights import KNOWN_NAME_CHARS_MAX, Rights, Role
from staniel.protocol.memo import ENTRIES_MAX


def test_what_is_remembered_is_bounded_whatever_a_client_names() -> None:
    rights = Rights("user me", frozenset({Role.READ}), ("*",))
    for at in range(3 * ENTRIES_MAX):
        rights.remember(Role.READ, f"queue{at}")
        assert len(rights.readable) <= ENTRIES_MAX
    rights.remember(Role.READ, "q" * (KNOWN_NAME_CHARS_MAX + 1))
    assert "q" * (KNOWN_NAME_CHARS_MAX + 1) not in rights.readable
    assert not rights.writable


def test_other_rights_know_nothing_of_it() -> None:
    before, after = (Rights("user me", frozenset({Role.READ, Role.WRITE}), ("*",)) for _ in range(2))
    before.remember(Role.READ, "jobs")
    before.remember(Role.WRITE, "jobs")
    assert "jobs" in before.readable and "jobs" in before.writable
    assert not after.readable and not after.writable
