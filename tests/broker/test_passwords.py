"""Hashes of passwords: which are taken, and that a refusal does not tell which names there are."""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from hashlib import sha256

import pytest

from staniel.broker.passwords import NOBODYS, SAMPLE_MAX, PasswordCheck, PasswordHash, parse_hash, sample, stand_in
from tests.support.world import World

CHEAP, DEAR = 3, 5
GUESSED = [f"guess{number}" for number in range(400)]


def spelled(salt: bytes, key: bytes, ln: int = CHEAP) -> str:
    return f"scrypt${ln}$1$1${b64encode(salt).decode()}${b64encode(key).decode()}"


def hashes(*costs: int) -> list[PasswordHash]:
    return [parse_hash(spelled(bytes(16), bytes([number]) * 32, ln)) for number, ln in enumerate(costs)]


@pytest.mark.parametrize("count", [0, 16, 31, 33, 64])
def test_a_key_of_another_length_is_refused_as_that(count: int) -> None:
    with pytest.raises(ValueError, match=f"a key of {count} bytes, it must have 32"):
        parse_hash(spelled(bytes(16), bytes(count)))


def test_a_short_salt_is_refused_as_that() -> None:
    with pytest.raises(ValueError, match="a salt of 15 bytes"):
        parse_hash(spelled(bytes(15), bytes(32)))
    assert parse_hash(spelled(bytes(16), bytes(32))).salt == bytes(16)


def test_the_refusal_of_a_name_that_is_none_costs_as_much_as_that_of_some_user() -> None:
    users = hashes(CHEAP, CHEAP, CHEAP, DEAR)
    costs = Counter(stand_in(name, users).ln for name in GUESSED)
    assert set(costs) == {CHEAP, DEAR}
    assert 50 < costs[DEAR] < 150  # one of four
    assert {stand_in(name, hashes(DEAR, DEAR)).ln for name in GUESSED} == {DEAR}
    assert stand_in("guess", []) == NOBODYS


def test_a_name_costs_the_same_each_time_whoever_else_is_there() -> None:
    few, many = hashes(CHEAP, DEAR), hashes(CHEAP, DEAR, CHEAP)
    assert all(stand_in(name, few) == stand_in(name, few[::-1]) for name in GUESSED)
    changed = [name for name in GUESSED if stand_in(name, few) != stand_in(name, many)]
    assert all(stand_in(name, many).ln == CHEAP for name in changed) and len(changed) < len(GUESSED) / 3


def test_among_thousands_of_users_a_few_stand_for_all_and_every_cost_is_there() -> None:
    """To look at each would take tens of milliseconds, which all clients wait, and which tell that a name is none."""

    def many(*costs: int) -> list[PasswordHash]:
        keys = [sha256(bytes([number % 256, number // 256])).digest() for number in range(3000)]
        return [parse_hash(spelled(bytes(16), key, costs[at % len(costs)])) for at, key in enumerate(keys)]

    assert len(sample(many(CHEAP))) == 1
    mixed = sample(many(CHEAP, CHEAP, CHEAP, DEAR))
    assert len(mixed) == SAMPLE_MAX and mixed == sample(many(CHEAP, CHEAP, CHEAP, DEAR)[::-1])
    assert {stand_in(name, mixed).ln for name in GUESSED} == {CHEAP, DEAR}
    rare = sample([*many(CHEAP, DEAR), parse_hash(spelled(bytes(16), b"\xff" * 32, 7))])
    assert len(rare) == SAMPLE_MAX + 1 and {each.ln for each in rare} == {CHEAP, DEAR, 7}
    assert sample([]) == []


@pytest.mark.parametrize("name", ["stranger", "nameless"])
def test_a_login_under_a_name_without_a_password_is_compared_at_the_cost_of_a_user(name: str) -> None:
    users = f'[users.boss]\nroles = ["admin"]\npassword_hash = "{spelled(bytes(16), bytes(32), DEAR)}"\n'
    world = World(f'{users}[users.nameless]\nroles = ["admin"]\ncertificates = ["nameless.example"]\n')
    compared: list[int] = []
    running = world.run_task

    def run(task: object) -> None:
        if isinstance(task, PasswordCheck):
            compared.append(task._wanted.ln)
        running(task)

    world.run_task = run  # type: ignore[method-assign]
    client = world.client().says("set auth 0 0 14", f"{name} guess")
    for _ in range(3):
        world.turn(600)
    assert client.hears().startswith("CLIENT_ERROR authentication failure") and compared == [DEAR]
