"""Queues come into being when asked for, under legal names only, and are told apart from those before them."""

from __future__ import annotations

import errno

import pytest

from staniel.queues.config import QueueConfig
from staniel.queues.interfaces import Journal
from staniel.queues.names import NAME_BYTES_MAX, file_error, name_error, parent_of
from staniel.queues.registry import QueueRefused, Queues
from tests.queues.model import Recorder


def queues_of(config: QueueConfig | None = None, error: OSError | None = None) -> Queues:
    def journal(name: str, config: QueueConfig, now_ms: int) -> Journal:
        if error is not None:
            raise error
        return Recorder()

    return Queues(lambda name: config or QueueConfig(), journal)


def test_a_queue_is_made_once_and_found_afterwards() -> None:
    queues = queues_of()
    assert queues.find("q") is None
    queue = queues.make("q", 1)
    assert queues.make("q", 2) is queue is queues.find("q")
    assert (len(queues), list(queues), queues.created) == (1, [queue], 1)


def test_a_removed_queue_is_closed_and_the_next_of_its_name_is_another() -> None:
    queues = queues_of()
    queue = queues.make("q", 1)
    queues.remove(queue)
    assert queues.find("q") is None and queues.deleted == 1
    assert queues.make("q", 2) is not queue


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a.b",
        "a/b",
        "a~b",
        "a\0b",
        "x" * (NAME_BYTES_MAX + 1),
        "é" * 101,
        "a b",
        "a\rb",
        "a\n",
        "\x7f",
        "漢",
        "\udcff",
    ],
)
def test_an_illegal_name_is_the_clients_mistake(name: str) -> None:
    with pytest.raises(QueueRefused) as refused:
        queues_of().make(name, 1)
    assert refused.value.client and refused.value.why == name_error(name) != ""


@pytest.mark.parametrize("name", ["a", "A-b_c:d", "a+b", "x" * NAME_BYTES_MAX, "é", "\x85", "'", "%0A"])
def test_other_names_are_legal(name: str) -> None:
    assert name_error(name) == ""


@pytest.mark.parametrize("name", ["a b", "a\rb", "a\n", "\x7f", "漢", "\udcff"])
def test_a_queue_that_has_been_there_under_another_name_is_served(name: str) -> None:
    assert file_error(name) == ""
    queues = queues_of()
    queue = queues.adopt(name, Recorder(), 1)
    assert queues.make(name, 2) is queue


def test_the_queue_for_expired_items_is_made_together_with_theirs() -> None:
    configs = {"a": QueueConfig(expire_to_queue="b"), "b": QueueConfig(expire_to_queue="a")}
    queues = Queues(lambda name: configs.get(name, QueueConfig(expire_to_queue="a.b")), lambda *_: Recorder())
    queues.make("a", 1)
    assert [queue.name for queue in queues] == ["a", "b"]
    queues.make("c", 1)
    assert [queue.name for queue in queues] == ["a", "b", "c"], "an illegal target is no reason to refuse its source"


def test_a_blocked_name_is_refused_with_its_reason() -> None:
    queues = queues_of()
    queues.block("q", "Permission denied")
    with pytest.raises(QueueRefused, match="Permission denied") as refused:
        queues.make("q", 1)
    assert not refused.value.client


def test_a_journal_that_cannot_be_created_leaves_no_queue() -> None:
    queues = queues_of(error=OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(QueueRefused, match="No space left") as refused:
        queues.make("q", 1)
    assert not refused.value.client and len(queues) == queues.created == 0


def test_a_queue_that_keeps_no_journal_asks_for_none() -> None:
    queues = queues_of(QueueConfig(keep_journal=False), OSError(errno.EIO, "never asked"))
    assert queues.make("q", 1).journal.batch == 0


def test_the_parent_of_a_fan_out_is_what_stands_before_its_first_plus() -> None:
    assert [parent_of(name) for name in ("a", "a+b", "a+b+c", "+b")] == ["", "a", "a", ""]
