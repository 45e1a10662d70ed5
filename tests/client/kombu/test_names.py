"""kombu's names on the server: reversible, and no two alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staniel.client.kombu import names

NAMES = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12)


@given(NAMES)
def test_a_name_comes_back_from_the_server_as_it_was(name: str) -> None:
    assert names.decode(names.encode(name)) == name


@given(NAMES)
def test_the_server_accepts_every_encoded_name(name: str) -> None:
    encoded = names.encode(name)
    assert encoded.isascii()
    assert not set(encoded) & set("./~+! \x7f") and all(character > " " for character in encoded)


@given(NAMES, NAMES)
def test_two_names_are_two_queues(one: str, other: str) -> None:
    assert (names.encode(one) == names.encode(other)) == (one == other)


def test_names_of_celery_stay_readable() -> None:
    assert names.encode("celery") == "celery"
    assert names.child("celery.pidbox", "celery@host.celery.pidbox") == "!celery:pidbox+celery@host:celery:pidbox"


def test_a_name_that_the_server_would_refuse_is_refused_at_once() -> None:
    assert len(names.encode("x" * 200)) == 200
    with pytest.raises(ValueError, match="201 bytes"):
        names.encode("x" * 201)
    with pytest.raises(ValueError, match="empty"):
        names.encode("")
